//! A form that is forwarded while it still arrives.
//!
//! Each read is inspected before any of it is sent, and the next read starts
//! when all of it was sent: an upload takes the memory of one read and, as long
//! as it can be retried, of the part that has arrived.

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
use fastllm_wire::{FormReader, Members, Splice};
use parking_lot::Mutex;

use super::AttemptError;
use super::outgoing::shared;
use crate::http::{
    BodyLimits, BodySource, BodyTime, MemoryShare, ReceivedBody, UnreadableBody, invalid_body,
};
use crate::runtime::Socket;
use crate::runtime::{Deadline, clock};
use crate::upstream::AwaitingResponse;
use crate::upstream::BufferedRequest;
use crate::upstream::ExchangeError;
use crate::upstream::Lease;
use crate::upstream::RequestWriter;

/// The maximum number of bytes after the beginning for which the upload is kept
/// in memory for a retry.
const MAX_REPLAYED: usize = 1 << 20;

/// A body whose beginning contained the model, and whose rest still arrives.
pub(crate) struct Upload<'c> {
    client: &'c mut dyn BodySource,
    limits: Arc<BodyLimits>,
    time: BodyTime,
    /// Until the body is complete.
    form: Option<FormReader>,
    /// The size of its files, once the body is complete.
    file_bytes: Option<u64>,
    /// The estimated tokens of its prompt, once the body is complete.
    prompt_tokens: Option<u64>,
    /// The length of the body, if the client has sent it.
    length: Option<u64>,
    came: u64,
    /// All bytes that arrived, while a retry is possible.
    replay: Option<ReplayBuffer>,
    read: BytesMut,
    /// The error of the client's body that ends the request.
    refusal: Option<Refusal>,
    waiting_for: WaitingFor,
    /// Bytes were read or written since the last check.
    progressed: bool,
}

struct ReplayBuffer {
    /// The beginning, and what had arrived before each further attempt.
    parts: Vec<Bytes>,
    /// What arrived since the last attempt started.
    since: BytesMut,
    /// The number of bytes that are kept besides the beginning.
    rest: usize,
    share: MemoryShare,
}

/// The peer that the upload waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum WaitingFor {
    Client,
    Upstream,
}

/// One attempt to send an upload.
pub(super) struct UploadAttempt<'u, 'c> {
    upload: &'u Mutex<Upload<'c>>,
    chunked: bool,
    /// The bytes that are being written: the head and the arrived part, then
    /// each read.
    buffered: Option<BufferedRequest>,
    /// These are the last bytes.
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
    /// Continues where `beginning` ends, which `form` has parsed.
    pub(crate) fn new(
        client: &'c mut dyn BodySource,
        beginning: ReceivedBody,
        form: FormReader,
        limits: Arc<BodyLimits>,
    ) -> Self {
        let (bytes, share, time) = beginning.into_parts();
        Self {
            length: client.content_length(),
            client,
            limits,
            time,
            form: Some(form),
            file_bytes: None,
            prompt_tokens: None,
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

    /// Ready once the client has disconnected.
    pub(crate) fn poll_disconnected(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if self.form.is_some() {
            // While the body is read, the reader detects a disconnect.
            return Poll::Pending;
        }
        self.client.poll_disconnected(cx)
    }

    /// The size of its files; nothing before the body is complete.
    pub(super) fn file_bytes(&self) -> Option<u64> {
        self.file_bytes
    }

    /// The estimated tokens of its prompt, as far as it has arrived.
    pub(super) fn prompt_tokens(&self) -> Option<u64> {
        let members = self.form.as_ref().and_then(FormReader::members);
        members.map(Members::prompt_tokens).or(self.prompt_tokens)
    }

    /// Whether another attempt is possible.
    pub(super) fn can_replay(&self) -> bool {
        self.replay.is_some()
    }

    /// The framing of the upstream request's body.
    pub(super) fn framing(&self, splice: &Splice<'_>) -> Framing {
        self.length
            .and_then(|length| usize::try_from(length).ok())
            .map_or(Framing::Chunked, |length| {
                Framing::Length(splice.len(length) as u64)
            })
    }

    /// Processes one read of the body.
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
        // The last byte completes a body of known length at the upstream.
        let complete = self.length.map_or(ended, |length| self.came >= length);
        if ended && !complete {
            return Err(UnreadableBody.into());
        }
        if complete && let Some(form) = self.form.take() {
            let members = form.finish().map_err(invalid_body)?;
            self.file_bytes = members.file_bytes();
            self.prompt_tokens = Some(members.prompt_tokens());
        }
        if let Some(replay) = &mut self.replay
            && !replay.append(read)
        {
            self.replay = None;
        }
        Ok(())
    }

    /// The timeout from now for the peer that the upload waits for, if there was
    /// progress.
    fn timeout(&mut self, upstream: Duration) -> Option<Duration> {
        if !std::mem::take(&mut self.progressed) {
            return None;
        }
        let now = clock::now();
        Some(match self.waiting_for {
            WaitingFor::Client => self.time.wait(now),
            WaitingFor::Upstream => {
                self.time.pause(now);
                upstream
            }
        })
    }

    /// The reason for the missing response, which takes precedence over the
    /// connection's error.
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
    /// Keeps a read; false if that exceeds the limit.
    fn append(&mut self, read: &[u8]) -> bool {
        self.rest += read.len();
        let fits = self.rest <= MAX_REPLAYED && self.share.grow(read.len() as u64).is_ok();
        if fits {
            self.since.extend_from_slice(read);
        }
        fits
    }

    /// All bytes from the first one, starting with the beginning.
    fn parts(&mut self) -> &[Bytes] {
        if !self.since.is_empty() {
            self.parts.push(self.since.split().freeze());
        }
        &self.parts
    }
}

impl<'u, 'c> UploadAttempt<'u, 'c> {
    /// An attempt that starts with `head`; nothing if the arrived bytes were
    /// discarded.
    pub(super) fn new(
        upload: &'u Mutex<Upload<'c>>,
        head: Vec<u8>,
        splice: &Splice<'_>,
    ) -> Option<Self> {
        let mut locked = upload.lock();
        locked.waiting_for = WaitingFor::Upstream;
        locked.time.pause(clock::now());
        let chunked = locked.framing(splice) == Framing::Chunked;
        let ends = locked.form.is_none();
        let parts = locked.replay.as_mut()?.parts();
        // The beginning always contains the model.
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

    /// The next part of the body, after `first`.
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

    /// Sends the upload over a new connection: on an idle connection that has
    /// been closed, bytes that are not kept could be lost. No wait for the
    /// upstream exceeds `limit`.
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
                deadline.arm_from(clock::recent(), timeout);
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
