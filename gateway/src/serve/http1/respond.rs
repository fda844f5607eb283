use std::future::poll_fn;
use std::io;
use std::num::NonZeroUsize;
use std::pin::pin;
use std::task::{Context, Poll, ready};

use fastllm_wire::http1::{
    CHUNK_END, ChunkLine, Delivery, Framing, HeadWriter, Http1Error, LAST_CHUNK, Next, Size,
};

use tokio::io::AsyncWrite;

use super::super::answer::Own;
use super::super::body::Client;
use super::super::date;
use super::link::Link;
use crate::deadline::Deadline;
use crate::forward::{Relay, Step};
use crate::scratch;

/// Room before the data of a chunk for the line that says its length.
const LINE_ROOM: usize = 18;

/// An answer that is under way.
struct Giving<'r> {
    relay: &'r mut Relay,
    delivery: Delivery,
    /// What could not be written yet: the head at first.
    out: Vec<u8>,
    /// Nothing was written yet.
    fresh: bool,
    ended: bool,
}

impl Link {
    /// Gives an answer of the gateway's own.
    pub(super) async fn give(&mut self, own: &Own, deadline: &mut Deadline) -> io::Result<Next> {
        let (status, body) = (own.status().as_u16(), own.body());
        let size = Size::Known(body.len() as u64);
        let delivery = self.codec.respond(status, size).map_err(unwritable)?;
        let mut out = scratch::take();
        let mut head = HeadWriter::response(&mut out, status);
        for (name, value) in own.headers() {
            head.field(name.as_str().as_bytes(), value.as_bytes());
        }
        end(head, delivery, false)?;
        if delivery.sends_body {
            out.extend_from_slice(body);
        }
        poll_fn(|cx| self.poll_put_all(cx, &mut out)).await?;
        scratch::give(out);
        deadline.disarm();
        Ok(self.codec.responded())
    }

    /// Gives an upstream's answer, each part in the poll in which it came. A
    /// client that leaves before its end is an error.
    pub(super) async fn relay(
        &mut self,
        relay: &mut Relay,
        deadline: &mut Deadline,
    ) -> io::Result<Next> {
        let size = relay.length().map_or(Size::Unknown, Size::Known);
        let delivery = self
            .codec
            .respond(relay.status(), size)
            .map_err(unwritable)?;
        let mut out = scratch::take();
        let mut head = HeadWriter::response(&mut out, relay.status());
        let mut dated = false;
        for field in relay.fields() {
            dated |= field.is("date");
            head.copy(field);
        }
        end(head, delivery, dated)?;
        let mut giving = Giving {
            relay,
            delivery,
            out,
            fresh: true,
            ended: false,
        };
        poll_fn(|cx| self.poll_relay(cx, &mut giving, deadline)).await?;
        scratch::give(giving.out);
        Ok(self.codec.responded())
    }

    fn poll_relay(
        &mut self,
        cx: &mut Context<'_>,
        giving: &mut Giving<'_>,
        deadline: &mut Deadline,
    ) -> Poll<io::Result<()>> {
        loop {
            // The head leaves with what comes of the body at once.
            if !giving.fresh && !giving.out.is_empty() {
                if self.poll_put_all(cx, &mut giving.out)?.is_pending() {
                    if deadline.poll_request(cx).is_ready() {
                        return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
                    }
                    return self.poll_left(cx);
                }
                // Nothing of it is needed while the upstream thinks.
                scratch::give(std::mem::take(&mut giving.out));
            }
            if giving.ended {
                return pin!(&mut self.socket).poll_flush(cx);
            }
            let mut data = scratch::take();
            let step = self.poll_step(cx, giving, deadline, &mut data);
            scratch::give(data);
            let waits = step?.is_pending();
            if waits && !giving.fresh {
                let _flushed = pin!(&mut self.socket).poll_flush(cx)?;
                return self.poll_left(cx);
            }
            giving.fresh = false;
        }
    }

    /// Takes one read of the upstream's and writes it.
    fn poll_step(
        &mut self,
        cx: &mut Context<'_>,
        giving: &mut Giving<'_>,
        deadline: &mut Deadline,
        data: &mut Vec<u8>,
    ) -> io::Result<Poll<()>> {
        data.resize(LINE_ROOM, 0);
        let Poll::Ready(step) = giving.relay.poll_pump(cx, deadline, data) else {
            return Ok(Poll::Pending);
        };
        giving.ended = step == Step::End;
        let sends_body = giving.delivery.sends_body;
        let chunked = giving.delivery.framing == Framing::Chunked;
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
        if giving.ended && chunked {
            data.extend_from_slice(LAST_CHUNK);
        }
        let part = data.get(from..).unwrap_or_default();
        if sends_body && !part.is_empty() {
            self.put_or_keep(cx, part, &mut giving.out)?;
        }
        if step == Step::BrokenOff {
            // What came before it is still the client's.
            let _written = self.poll_put_all(cx, &mut giving.out)?;
            if giving.delivery.framing == Framing::UntilClose {
                self.socket.break_at_end()?;
            }
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        Ok(Poll::Ready(()))
    }

    /// Writes what can be written at once and keeps the rest.
    fn put_or_keep(
        &mut self,
        cx: &mut Context<'_>,
        part: &[u8],
        out: &mut Vec<u8>,
    ) -> io::Result<()> {
        let mut written = 0;
        if out.is_empty()
            && let Poll::Ready(put) = self.socket.poll_put(cx, part)
        {
            written = put?;
        }
        out.extend_from_slice(part.get(written..).unwrap_or_default());
        Ok(())
    }

    /// Nothing can be done but to see whether the client is still there.
    fn poll_left(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_gone(cx));
        Poll::Ready(Err(io::ErrorKind::ConnectionAborted.into()))
    }
}

fn end(mut head: HeadWriter<'_>, delivery: Delivery, dated: bool) -> io::Result<()> {
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
