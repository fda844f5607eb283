//! A form that is sent on while it still comes.
//!
//! Each read is looked into before any of it leaves, and the next is taken when
//! all of it has left: an upload costs the memory of one read, and as long as
//! it can be sent again that of what came so far.

use std::fmt;
use std::future::{Future, poll_fn};
use std::io;
use std::num::NonZeroUsize;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use fastllm_engine::Refusal;
use fastllm_wire::http1::{CHUNK_END, ChunkLine, Framing, LAST_CHUNK};
use fastllm_wire::{FormReader, Splice};
use parking_lot::Mutex;

use super::AttemptError;
use super::outgoing::shared;
use crate::http::{
    BodyLimits, BodySource, MemoryShare, ReceivedBody, UnreadableBody, invalid_body,
};
use crate::runtime::Deadline;
use crate::runtime::Socket;
use crate::upstream::AwaitingResponse;
use crate::upstream::BufferedRequest;
use crate::upstream::ExchangeError;
use crate::upstream::Lease;
use crate::upstream::RequestWriter;

/// What may come after the beginning for the upload to be sent again from
/// memory, in bytes.
const MAX_REPLAYED: usize = 1 << 20;

/// A body whose beginning has told the model, and whose rest still comes.
pub(crate) struct Upload<'c> {
    client: &'c mut dyn BodySource,
    limits: Arc<BodyLimits>,
    /// Until the end has come.
    form: Option<FormReader>,
    /// What its files take, once the end has come.
    file_bytes: Option<u64>,
    /// How many bytes there will be, where the client has said so.
    length: Option<u64>,
    came: u64,
    /// Everything that came, while it may be sent again.
    replay: Option<ReplayBuffer>,
    read: BytesMut,
    /// Why the client's body ends the request.
    refusal: Option<Refusal>,
    waiting_for: WaitingFor,
    /// Something was read or written since this was last asked.
    progressed: bool,
}

struct ReplayBuffer {
    /// The beginning, and what had come of the rest before each further attempt.
    parts: Vec<Bytes>,
    /// What came since the last of them.
    since: BytesMut,
    /// How many bytes are kept besides the beginning.
    rest: usize,
    share: MemoryShare,
}

/// Who is waited for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum WaitingFor {
    Client,
    Upstream,
}

/// One attempt at sending an upload.
pub(super) struct UploadAttempt<'u, 'c> {
    upload: &'u Mutex<Upload<'c>>,
    chunked: bool,
    /// What is being written: the head with what has come, then each read.
    buffered: Option<BufferedRequest>,
    /// That is the last of it.
    ends: bool,
}

impl fmt::Debug for Upload<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Upload")
            .field("came", &self.came)
            .field("length", &self.length)
            .finish_non_exhaustive()
    }
}

impl<'c> Upload<'c> {
    /// Goes on where `beginning` ends, which `form` has seen.
    pub(crate) fn new(
        client: &'c mut dyn BodySource,
        beginning: ReceivedBody,
        form: FormReader,
        limits: Arc<BodyLimits>,
    ) -> Self {
        let (bytes, share) = beginning.into_parts();
        Self {
            length: client.content_length(),
            client,
            limits,
            form: Some(form),
            file_bytes: None,
            came: bytes.len() as u64,
            replay: Some(ReplayBuffer {
                parts: vec![bytes],
                since: BytesMut::new(),
                rest: 0,
                share,
            }),
            read: BytesMut::new(),
            refusal: None,
            waiting_for: WaitingFor::Upstream,
            progressed: false,
        }
    }

    /// Ready once the client is known to have left.
    pub(crate) fn poll_disconnected(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if self.form.is_some() {
            // Its end is found by whoever reads the body.
            return Poll::Pending;
        }
        self.client.poll_disconnected(cx)
    }

    /// The bytes of its files; nothing before its end has come.
    pub(super) fn file_bytes(&self) -> Option<u64> {
        self.file_bytes
    }

    /// Whether there can be another attempt.
    pub(super) fn can_replay(&self) -> bool {
        self.replay.is_some()
    }

    /// How the upstream's body is delimited.
    pub(super) fn framing(&self, splice: &Splice<'_>) -> Framing {
        self.length
            .and_then(|length| usize::try_from(length).ok())
            .map_or(Framing::Chunked, |length| {
                Framing::Length(splice.len(length) as u64)
            })
    }

    /// Takes one read of the body.
    fn poll_read(&mut self, cx: &mut Context<'_>) -> Poll<Result<Bytes, Refusal>> {
        loop {
            let ended = ready!(self.client.poll_body(cx, &mut self.read))?;
            let read = self.read.split().freeze();
            if ended || !read.is_empty() {
                self.progressed = true;
                return Poll::Ready(self.take(&read, ended).map(|()| read));
            }
        }
    }

    fn take(&mut self, read: &Bytes, ended: bool) -> Result<(), Refusal> {
        self.came += read.len() as u64;
        self.limits.check(self.came)?;
        if let Some(form) = &mut self.form {
            form.push(read).map_err(invalid_body)?;
        }
        // With its last byte a body of known length is complete upstream.
        let complete = self.length.map_or(ended, |length| self.came >= length);
        if ended && !complete {
            return Err(UnreadableBody.into());
        }
        if complete && let Some(form) = self.form.take() {
            self.file_bytes = form.finish().map_err(invalid_body)?.file_bytes();
        }
        if let Some(replay) = &mut self.replay
            && !replay.append(read)
        {
            self.replay = None;
        }
        Ok(())
    }

    /// What is waited for, where it is something new.
    fn timeout(&mut self, upstream: Duration) -> Option<Duration> {
        std::mem::take(&mut self.progressed).then_some(match self.waiting_for {
            WaitingFor::Client => self.limits.timeout(),
            WaitingFor::Upstream => upstream,
        })
    }

    /// Why there is no answer, in spite of what the connection says.
    fn failure(&mut self, error: Option<AttemptError>) -> AttemptError {
        match (self.refusal.take(), error, self.waiting_for) {
            (Some(refusal), ..) => AttemptError::Refused(refusal),
            (None, Some(error), _) => error,
            (None, None, WaitingFor::Client) => AttemptError::Refused(Refusal::BodyTimeout),
            (None, None, WaitingFor::Upstream) => AttemptError::Exchange(ExchangeError::Timeout),
        }
    }
}

impl ReplayBuffer {
    /// Keeps a read; false where that would be too much.
    fn append(&mut self, read: &[u8]) -> bool {
        self.rest += read.len();
        let fits = self.rest <= MAX_REPLAYED && self.share.grow(read.len() as u64).is_ok();
        if fits {
            self.since.extend_from_slice(read);
        }
        fits
    }

    /// Everything, from the first byte on. The beginning comes first.
    fn parts(&mut self) -> &[Bytes] {
        if !self.since.is_empty() {
            self.parts.push(self.since.split().freeze());
        }
        &self.parts
    }
}

impl<'u, 'c> UploadAttempt<'u, 'c> {
    /// An attempt that begins with `head`; nothing where what has come was
    /// given up.
    pub(super) fn new(
        upload: &'u Mutex<Upload<'c>>,
        head: Vec<u8>,
        splice: &Splice<'_>,
    ) -> Option<Self> {
        let mut locked = upload.lock();
        locked.waiting_for = WaitingFor::Upstream;
        let chunked = locked.framing(splice) == Framing::Chunked;
        let ends = locked.form.is_none();
        let parts = locked.replay.as_mut()?.parts();
        // The model is in the beginning, or it would not be known.
        let (beginning, rest) = parts.split_first()?;
        let mut body = shared(splice, beginning);
        body.extend_from_slice(rest);
        let mut attempt = Self {
            upload,
            chunked,
            buffered: None,
            ends,
        };
        attempt.buffered = Some(attempt.framed(head, body));
        Some(attempt)
    }

    /// The next part of the body behind `first`.
    fn framed(&self, mut first: Vec<u8>, mut body: Vec<Bytes>) -> BufferedRequest {
        if self.chunked {
            let length = body.iter().map(Bytes::len).sum();
            if let Some(length) = NonZeroUsize::new(length) {
                first.extend_from_slice(ChunkLine::new(length).as_bytes());
                body.push(Bytes::from_static(CHUNK_END));
            }
            if self.ends {
                body.push(Bytes::from_static(LAST_CHUNK));
            }
        }
        BufferedRequest::new(first, body)
    }

    /// Sends it over a connection of its own: on one that was idle, and is dead
    /// by now, bytes could be lost that are not kept. No wait for the upstream
    /// is longer than `limit`.
    pub(super) async fn exchange(
        mut self,
        connecting: impl Future<Output = Result<Lease, ExchangeError>>,
        limit: Duration,
        deadline: &mut Deadline,
        sent: &AwaitingResponse,
    ) -> Result<Lease, AttemptError> {
        let upload = self.upload;
        let mut answered = pin!(async {
            let mut lease = connecting.await?;
            lease
                .connection
                .exchange(&mut self, sent)
                .await
                .map_err(ExchangeError::from)?;
            Ok(lease)
        });
        deadline.arm(limit);
        let outcome = poll_fn(|cx| {
            if let Poll::Ready(answered) = answered.as_mut().poll(cx) {
                return Poll::Ready(Some(answered));
            }
            if let Some(timeout) = upload.lock().timeout(limit) {
                deadline.arm(timeout);
            }
            deadline.poll(cx).map(|()| None)
        })
        .await;
        deadline.disarm();
        match outcome {
            Some(Ok(lease)) => Ok(lease),
            Some(Err(error)) => Err(upload.lock().failure(Some(error))),
            None if deadline.request_is_over() => {
                Err(AttemptError::Exchange(ExchangeError::RequestTimeout))
            }
            None => Err(upload.lock().failure(None)),
        }
    }
}

impl RequestWriter for UploadAttempt<'_, '_> {
    fn poll_send(&mut self, socket: &mut Socket, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut upload = self.upload.lock();
        loop {
            if let Some(buffered) = &mut self.buffered {
                upload.waiting_for = WaitingFor::Upstream;
                let before = buffered.sent();
                let sent = buffered.poll_send(socket, cx);
                upload.progressed |= buffered.sent() > before;
                ready!(sent)?;
                self.buffered = None;
            }
            if self.ends {
                return Poll::Ready(Ok(()));
            }
            upload.waiting_for = WaitingFor::Client;
            match ready!(upload.poll_read(cx)) {
                Ok(read) => {
                    self.ends = upload.form.is_none();
                    let parts = if read.is_empty() {
                        Vec::new()
                    } else {
                        vec![read]
                    };
                    self.buffered = Some(self.framed(Vec::new(), parts));
                }
                Err(refusal) => {
                    upload.refusal = Some(refusal);
                    return Poll::Ready(Err(io::ErrorKind::InvalidData.into()));
                }
            }
        }
    }
}

#[cfg(test)]
mod tests;
