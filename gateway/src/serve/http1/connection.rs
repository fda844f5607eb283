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

/// What is read at once where a head is expected: it is copied.
const FIRST_READ: usize = 16 << 10;

/// Bytes that a client may send ahead of the answer to its last request.
const PIPELINED: usize = 64 << 10;

/// How long a client that is still sending is read from after the end.
const LINGER: Duration = Duration::from_secs(2);

/// Bytes that are read from it at most.
const LINGERING: usize = 1 << 20;

/// One client's connection: its socket, the order of things on it, and what
/// came before it was wanted.
#[derive(Debug)]
pub(crate) struct ClientConnection {
    pub(super) socket: Socket,
    pub(super) codec: Server,
    inbox: Vec<u8>,
    /// How the body of the request under way is delimited.
    framing: Framing,
    /// Bytes of it that are still to come, where that is known.
    left: u64,
    /// How long a client may take for the head of a request, idle time before
    /// it included.
    head_timeout: Duration,
}

/// Why there is no head.
pub(super) enum NoHead {
    Closed,
    Malformed(Http1Error),
}

impl ClientConnection {
    /// A connection of which some bytes were read already, and on which a head
    /// may take as long as `head_timeout`.
    pub(crate) fn new(socket: Socket, inbox: Vec<u8>, head_timeout: Duration) -> Self {
        Self {
            socket,
            codec: Server::new(Limits::default()),
            inbox,
            framing: Framing::None,
            left: 0,
            head_timeout,
        }
    }

    /// The request under way, or the next one, is the last.
    pub(super) fn last_request(&mut self) {
        self.codec.last_request();
    }

    /// Whether bytes came that nobody will read.
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
        let found = poll_fn(|cx| {
            if let Poll::Ready(found) = self.poll_head(cx, head) {
                return Poll::Ready(found);
            }
            // A request that has begun to come is still served.
            if self.inbox.is_empty() && closed.as_mut().poll(cx).is_ready() {
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

    /// Decodes what came, and adds what of it is the body's.
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

    /// Reads what is left of a body of known length to where it belongs.
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

    /// Reads into the inbox; false at the end.
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

    /// Reads past the rest of a body that was not wanted. Nothing where the
    /// client does not send it.
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

    /// Ends a connection on which nothing is under way.
    pub(super) async fn end(&mut self, deadline: &mut Deadline) {
        if self.socket.needs_close_notify() {
            deadline.arm(LINGER);
            // A client that has left need not hear it.
            let _said = deadline.before(self.socket.shutdown()).await;
            deadline.disarm();
        }
    }

    /// Ends the connection so that the client gets all of its answer: reads on
    /// for a while, since a reset could overtake it.
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
            // Out of patience is an end, too.
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
            // A client that waits has sent nothing that could fill its window.
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
        while self.inbox.len() < PIPELINED {
            match ready!(self.poll_inbox(cx)) {
                Ok(true) => {}
                Ok(false) | Err(_) => return Poll::Ready(()),
            }
        }
        Poll::Pending
    }
}
