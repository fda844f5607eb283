use std::future::{Future, poll_fn};
use std::io;
use std::pin::pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::{BufMut, BytesMut};
use fastllm_wire::http1::{Framing, Http1Error, Limits, NextAction, Server};
use tokio::io::{AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio_util::sync::CancellationToken;

use crate::http::Head;
use crate::http::{BodySource, UnreadableBody};
use crate::runtime::Deadline;
use crate::runtime::Socket;
use crate::runtime::buffers;
use crate::serve::connection::{ConnectionTerms, LAST_HEAD};

/// The read size while a head is expected: these bytes are copied.
const FIRST_READ: usize = 16 << 10;

/// The bytes behind a request that are kept for the next ones. If a client sends
/// more before its response is complete, the connection is closed after it.
const PIPELINED: usize = 64 << 10;

/// The bytes beyond [`PIPELINED`] that are discarded, so that the end of the
/// stream is noticed behind them. A client that sends more is disconnected.
const DISCARDED: usize = 64 << 20;

/// How long input is still read from a client after the last response.
const LINGER: Duration = Duration::from_secs(2);

/// The maximum number of bytes that are read then.
const LINGERING: usize = 1 << 20;

/// One client's connection: its socket, its state, and the bytes that were read
/// ahead.
#[derive(Debug)]
pub(crate) struct ClientConnection {
    pub(super) socket: Socket,
    pub(super) codec: Server,
    inbox: Vec<u8>,
    /// The framing of the current request's body.
    framing: Framing,
    /// The remaining bytes of the body, if the length is known.
    left: u64,
    /// The bytes behind the current request that were discarded.
    discarded: usize,
    /// The timeout for the head of a request, including the idle time before it.
    head_timeout: Duration,
    /// The timeout for the client to receive a part of its response.
    pub(super) send_timeout: Duration,
}

/// Why there is no request head.
pub(super) enum NoHead {
    Closed,
    Malformed(Http1Error),
}

impl ClientConnection {
    /// A connection with these bytes already read.
    pub(crate) fn new(socket: Socket, inbox: Vec<u8>, terms: &ConnectionTerms) -> Self {
        Self {
            socket,
            codec: Server::new(Limits::default()),
            inbox,
            framing: Framing::None,
            left: 0,
            discarded: 0,
            head_timeout: terms.head_timeout,
            send_timeout: terms.send_timeout,
        }
    }

    /// The current request, or the next one, is the last.
    pub(super) fn last_request(&mut self) {
        self.codec.last_request();
    }

    /// Whether bytes have arrived that will not be read.
    pub(super) fn has_unread(&self) -> bool {
        !self.inbox.is_empty()
    }

    /// Waits for the head of the next request.
    pub(super) async fn next_head(
        &mut self,
        head: &mut Head,
        deadline: &mut Deadline,
        closing: &CancellationToken,
    ) -> Result<(), NoHead> {
        deadline.arm(self.head_timeout);
        let mut closed = pin!(closing.cancelled());
        let mut is_closing = false;
        let found = poll_fn(|cx| {
            if let Poll::Ready(found) = self.poll_head(cx, head) {
                return Poll::Ready(found);
            }
            if !is_closing && closed.as_mut().poll(cx).is_ready() {
                is_closing = true;
                // A request of which some bytes have arrived is still served.
                deadline.shorten(LAST_HEAD);
            }
            if is_closing && self.inbox.is_empty() {
                return Poll::Ready(Err(NoHead::Closed));
            }
            deadline.poll(cx).map(|()| Err(NoHead::Closed))
        })
        .await;
        deadline.disarm();
        found
    }

    fn poll_head(&mut self, cx: &mut Context<'_>, head: &mut Head) -> Poll<Result<(), NoHead>> {
        loop {
            if !self.inbox.is_empty() {
                let inbox = std::mem::take(&mut self.inbox);
                let found = self.take_head(&inbox, head);
                match found {
                    Ok(Some(len)) => {
                        self.inbox = inbox;
                        self.inbox.drain(..len);
                        return Poll::Ready(Ok(()));
                    }
                    Ok(None) => self.inbox = inbox,
                    Err(error) => return Poll::Ready(Err(NoHead::Malformed(error))),
                }
            }
            let read = buffers::with_read_buffer(|buffer| {
                let room = buffer.get_mut(..FIRST_READ).unwrap_or_default();
                let read = match ready!(self.socket.poll_read_some(cx, room)) {
                    Ok(read) if read > 0 => room.get(..read).unwrap_or_default(),
                    Ok(_) | Err(_) => return Poll::Ready(Err(NoHead::Closed)),
                };
                if !self.inbox.is_empty() {
                    self.inbox.extend_from_slice(read);
                    return Poll::Ready(Ok(false));
                }
                let found = self.take_head(read, head).map_err(NoHead::Malformed)?;
                let rest = read.get(found.unwrap_or(0)..).unwrap_or_default();
                if !rest.is_empty() {
                    self.inbox = buffers::take();
                    self.inbox.extend_from_slice(rest);
                }
                Poll::Ready(Ok(found.is_some()))
            });
            if ready!(read)? {
                return Poll::Ready(Ok(()));
            }
        }
    }

    fn take_head(&mut self, bytes: &[u8], head: &mut Head) -> Result<Option<usize>, Http1Error> {
        let found = self.codec.read_head(bytes, &mut head.parsed)?;
        if let Some(len) = found {
            head.keep(bytes.get(..len).unwrap_or_default());
            self.framing = head.parsed.framing();
            self.left = match self.framing {
                Framing::Length(length) => length,
                Framing::None | Framing::Chunked | Framing::UntilClose => 0,
            };
        }
        Ok(found)
    }

    /// Decodes the bytes that arrived, and appends those of the body.
    fn decode(
        &mut self,
        input: &[u8],
        body: &mut BytesMut,
    ) -> Result<(usize, bool), UnreadableBody> {
        let mut consumed = 0;
        loop {
            let rest = input.get(consumed..).unwrap_or_default();
            let part = self.codec.read_body(rest).map_err(|_| UnreadableBody)?;
            body.extend_from_slice(rest.get(part.data.clone()).unwrap_or_default());
            self.left = self.left.saturating_sub(part.data.len() as u64);
            consumed += part.consumed;
            if part.end || part.consumed == 0 {
                return Ok((consumed, part.end));
            }
        }
    }

    /// Reads the rest of a body of known length directly into its buffer.
    fn poll_straight(
        &mut self,
        cx: &mut Context<'_>,
        body: &mut BytesMut,
    ) -> Poll<Result<bool, UnreadableBody>> {
        let left = usize::try_from(self.left).unwrap_or(usize::MAX);
        let room = left.min(buffers::READ);
        body.reserve(room);
        let room = room.max((body.capacity() - body.len()).min(left));
        let before = body.len();
        let mut limited = (&mut *body).limit(room);
        let read = pin!(self.socket.read_buf(&mut limited));
        match ready!(read.poll(cx)) {
            Ok(read) if read > 0 => {}
            Ok(_) | Err(_) => return Poll::Ready(Err(UnreadableBody)),
        }
        let came = body.get(before..).unwrap_or_default();
        let part = self.codec.read_body(came).map_err(|_| UnreadableBody)?;
        self.left = self.left.saturating_sub(part.consumed as u64);
        Poll::Ready(Ok(part.end))
    }

    /// Reads bytes that no request will be read from; false at the end of the
    /// stream.
    fn poll_discard(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<bool>> {
        self.codec.last_request();
        let polled = buffers::with_read_buffer(|buffer| self.socket.poll_read_some(cx, buffer));
        let read = ready!(polled)?;
        self.discarded += read;
        Poll::Ready(Ok(read > 0))
    }

    /// Reads into the inbox; false at the end of the stream.
    fn poll_inbox(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<bool>> {
        buffers::with_read_buffer(|buffer| {
            let read = ready!(self.socket.poll_read_some(cx, buffer))?;
            self.inbox
                .extend_from_slice(buffer.get(..read).unwrap_or_default());
            Poll::Ready(Ok(read > 0))
        })
    }

    /// Writes all of `out`.
    pub(super) fn poll_write_all(
        &mut self,
        cx: &mut Context<'_>,
        out: &mut Vec<u8>,
    ) -> Poll<io::Result<()>> {
        while !out.is_empty() {
            let written = ready!(self.socket.poll_write_some(cx, out))?;
            out.drain(..written);
        }
        pin!(&mut self.socket).poll_flush(cx)
    }

    /// Discards the unread rest of a body. Returns nothing if the client does
    /// not send it.
    pub(super) async fn drain(&mut self, deadline: &mut Deadline) -> Option<NextAction> {
        let drained = poll_fn(|cx| {
            loop {
                let drained = self.codec.drain(&self.inbox);
                self.inbox.drain(..drained.consumed);
                if drained.next != NextAction::Drain {
                    return Poll::Ready(Some(drained.next));
                }
                match ready!(self.poll_inbox(cx)) {
                    Ok(true) => {}
                    Ok(false) | Err(_) => return Poll::Ready(None),
                }
            }
        });
        deadline.arm(LINGER);
        let next = deadline.before(drained).await.flatten();
        deadline.disarm();
        next
    }

    /// Closes a connection that has no current request.
    pub(super) async fn end(&mut self, deadline: &mut Deadline) {
        if self.socket.needs_close_notify() {
            deadline.arm(LINGER);
            // A client that has disconnected requires no response.
            let _said = deadline.before(self.socket.shutdown()).await;
            deadline.disarm();
        }
    }

    /// Closes the connection so that the client receives the complete response:
    /// input is read for a while, since a reset could discard sent bytes.
    pub(super) async fn close(&mut self, deadline: &mut Deadline) {
        deadline.arm(LINGER);
        if let Some(Ok(())) = deadline.before(self.socket.shutdown()).await {
            let mut lingered = 0;
            let read_on = poll_fn(|cx| {
                while lingered < LINGERING {
                    let read =
                        buffers::with_read_buffer(|buffer| self.socket.poll_read_some(cx, buffer));
                    match ready!(read) {
                        Ok(read) if read > 0 => lingered += read,
                        Ok(_) | Err(_) => break,
                    }
                }
                Poll::Ready(())
            });
            // The timeout ends it, too.
            let _ended = deadline.before(read_on).await;
        }
        deadline.disarm();
    }
}

impl BodySource for ClientConnection {
    fn content_length(&self) -> Option<u64> {
        match self.framing {
            Framing::None => Some(0),
            Framing::Length(length) => Some(length),
            Framing::Chunked | Framing::UntilClose => None,
        }
    }

    fn poll_body(
        &mut self,
        cx: &mut Context<'_>,
        body: &mut BytesMut,
    ) -> Poll<Result<bool, UnreadableBody>> {
        if !self.inbox.is_empty() || self.codec.has_request() {
            let inbox = std::mem::take(&mut self.inbox);
            let (consumed, end) = self.decode(&inbox, body)?;
            if consumed < inbox.len() {
                self.inbox = inbox;
                self.inbox.drain(..consumed);
            } else {
                buffers::recycle(inbox);
            }
            if end || consumed > 0 {
                return Poll::Ready(Ok(end));
            }
        }
        if let Some(go_on) = self.codec.take_continue() {
            // A client that waits has not sent enough to fill its window.
            let put = self.socket.poll_write_some(cx, go_on);
            if !matches!(put, Poll::Ready(Ok(written)) if written == go_on.len()) {
                return Poll::Ready(Err(UnreadableBody));
            }
        }
        if self.left > 0 {
            return self.poll_straight(cx, body);
        }
        buffers::with_read_buffer(|buffer| {
            let read = match ready!(self.socket.poll_read_some(cx, buffer)) {
                Ok(read) if read > 0 => buffer.get(..read).unwrap_or_default(),
                Ok(_) | Err(_) => return Poll::Ready(Err(UnreadableBody)),
            };
            let (consumed, end) = self.decode(read, body)?;
            self.inbox
                .extend_from_slice(read.get(consumed..).unwrap_or_default());
            Poll::Ready(Ok(end))
        })
    }

    fn poll_disconnected(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        while self.discarded < DISCARDED {
            let read = if self.inbox.len() < PIPELINED {
                self.poll_inbox(cx)
            } else {
                self.poll_discard(cx)
            };
            match ready!(read) {
                Ok(true) => {}
                Ok(false) | Err(_) => break,
            }
        }
        Poll::Ready(())
    }
}
