use std::future::poll_fn;
use std::io;
use std::num::NonZeroUsize;
use std::pin::pin;
use std::task::{Context, Poll, ready};

use fastllm_wire::http1::{
    BodySize, CHUNK_END, ChunkLine, Framing, HeadWriter, Http1Error, LAST_CHUNK, NextAction,
    ResponseFraming,
};

use tokio::io::AsyncWrite;

use super::connection::ClientConnection;
use crate::forward::{ForwardedResponse, StreamStep};
use crate::http::BodySource;
use crate::http::LocalResponse;
use crate::runtime::Deadline;
use crate::runtime::buffers;
use crate::serve::date;

/// The space before the data of a chunk for its length line.
const LINE_ROOM: usize = 18;

/// A response that is being sent.
struct ResponseWriter<'r> {
    relay: &'r mut ForwardedResponse,
    delivery: ResponseFraming,
    /// The bytes that could not be written yet; at first, the head.
    out: Vec<u8>,
    /// Set while the client does not receive the bytes in `out`.
    blocked: Deadline,
    /// Nothing has been written yet.
    fresh: bool,
    ended: bool,
}

impl ClientConnection {
    /// Sends a response of the gateway itself.
    pub(super) async fn send_local(
        &mut self,
        own: &LocalResponse,
        deadline: &mut Deadline,
    ) -> io::Result<NextAction> {
        let (status, body) = (own.status().as_u16(), own.body());
        let size = BodySize::Known(body.len() as u64);
        let delivery = self.codec.respond(status, size).map_err(unwritable)?;
        let mut out = buffers::take();
        let mut head = HeadWriter::response(&mut out, status);
        for (name, value) in own.headers() {
            head.field(name.as_str().as_bytes(), value.as_bytes());
        }
        end(head, delivery, false)?;
        if delivery.sends_body {
            out.extend_from_slice(body);
        }
        let mut blocked = Deadline::default();
        poll_fn(|cx| self.poll_write_in_time(cx, &mut out, &mut blocked)).await?;
        buffers::recycle(out);
        deadline.disarm();
        Ok(self.codec.responded())
    }

    /// Sends an upstream's response, each part in the poll in which it arrived.
    /// A client that disconnects before the end is an error.
    pub(super) async fn send_forwarded(
        &mut self,
        relay: &mut ForwardedResponse,
        deadline: &mut Deadline,
    ) -> io::Result<NextAction> {
        let size = relay.length().map_or(BodySize::Unknown, BodySize::Known);
        let delivery = self
            .codec
            .respond(relay.status(), size)
            .map_err(unwritable)?;
        let mut out = buffers::take();
        let mut head = HeadWriter::response(&mut out, relay.status());
        let mut dated = false;
        for field in relay.fields() {
            dated |= field.is("date");
            head.copy(field);
        }
        end(head, delivery, dated)?;
        let mut writer = ResponseWriter {
            relay,
            delivery,
            out,
            blocked: Deadline::default(),
            fresh: true,
            ended: false,
        };
        poll_fn(|cx| self.poll_relay(cx, &mut writer, deadline)).await?;
        buffers::recycle(writer.out);
        Ok(self.codec.responded())
    }

    fn poll_relay(
        &mut self,
        cx: &mut Context<'_>,
        writer: &mut ResponseWriter<'_>,
        deadline: &mut Deadline,
    ) -> Poll<io::Result<()>> {
        loop {
            // The head is sent together with the part of the body that has
            // arrived.
            if !writer.fresh && !writer.out.is_empty() {
                let ResponseWriter { out, blocked, .. } = writer;
                if self.poll_write_in_time(cx, out, blocked)?.is_pending() {
                    if deadline.poll_request(cx).is_ready() {
                        return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
                    }
                    return self.poll_left(cx);
                }
                writer.blocked.disarm();
                // The buffer is not needed while the upstream is idle.
                buffers::recycle(std::mem::take(&mut writer.out));
            }
            if writer.ended {
                return pin!(&mut self.socket).poll_flush(cx);
            }
            let mut data = buffers::take();
            let step = self.poll_step(cx, writer, deadline, &mut data);
            buffers::recycle(data);
            let waits = step?.is_pending();
            if waits && !writer.fresh {
                let _flushed = pin!(&mut self.socket).poll_flush(cx)?;
                return self.poll_left(cx);
            }
            writer.fresh = false;
        }
    }

    /// Reads once from the upstream and writes the result.
    fn poll_step(
        &mut self,
        cx: &mut Context<'_>,
        writer: &mut ResponseWriter<'_>,
        deadline: &mut Deadline,
        data: &mut Vec<u8>,
    ) -> io::Result<Poll<()>> {
        data.resize(LINE_ROOM, 0);
        let Poll::Ready(step) = writer.relay.poll_pump(cx, deadline, data) else {
            return Ok(Poll::Pending);
        };
        writer.ended = step == StreamStep::End;
        let sends_body = writer.delivery.sends_body;
        let chunked = writer.delivery.framing == Framing::Chunked;
        let from = match NonZeroUsize::new(data.len() - LINE_ROOM) {
            Some(len) if chunked => {
                let line = ChunkLine::new(len);
                let line = line.as_bytes();
                let from = LINE_ROOM - line.len();
                if let Some(room) = data.get_mut(from..LINE_ROOM) {
                    room.copy_from_slice(line);
                }
                data.extend_from_slice(CHUNK_END);
                from
            }
            _ => LINE_ROOM,
        };
        if writer.ended && chunked {
            data.extend_from_slice(LAST_CHUNK);
        }
        let part = data.get(from..).unwrap_or_default();
        if sends_body && !part.is_empty() {
            self.put_or_keep(cx, part, &mut writer.out)?;
        }
        if step == StreamStep::Aborted {
            // The bytes before the error still belong to the client.
            let _written = self.poll_write_all(cx, &mut writer.out)?;
            if writer.delivery.framing == Framing::UntilClose {
                self.socket.reset_on_drop()?;
            }
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        Ok(Poll::Ready(()))
    }

    /// Writes as much as possible at once and keeps the rest.
    fn put_or_keep(
        &mut self,
        cx: &mut Context<'_>,
        part: &[u8],
        out: &mut Vec<u8>,
    ) -> io::Result<()> {
        let mut written = 0;
        if out.is_empty()
            && let Poll::Ready(put) = self.socket.poll_write_some(cx, part)
        {
            written = put?;
        }
        out.extend_from_slice(part.get(written..).unwrap_or_default());
        Ok(())
    }

    /// Writes all of `out`; an error if the client does not receive it within the
    /// timeout from the first call.
    fn poll_write_in_time(
        &mut self,
        cx: &mut Context<'_>,
        out: &mut Vec<u8>,
        blocked: &mut Deadline,
    ) -> Poll<io::Result<()>> {
        if let Poll::Ready(written) = self.poll_write_all(cx, out) {
            return Poll::Ready(written);
        }
        blocked.arm_once(self.send_timeout);
        ready!(blocked.poll(cx));
        Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
    }

    /// The only remaining event is a disconnect of the client.
    fn poll_left(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_disconnected(cx));
        Poll::Ready(Err(io::ErrorKind::ConnectionAborted.into()))
    }
}

fn end(mut head: HeadWriter<'_>, delivery: ResponseFraming, dated: bool) -> io::Result<()> {
    if !dated {
        date::with(|date| {
            head.field(b"date", date);
        });
    }
    if let Some(length) = delivery.announces {
        head.announce(length);
    }
    head.end(delivery.framing, delivery.persistence)
        .map_err(unwritable)
}

fn unwritable(error: Http1Error) -> io::Error {
    io::Error::other(error)
}
