use std::future::poll_fn;
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use fastllm_wire::http1::Response;
use fastllm_wire::{
    BodyInspector, ErrorClass, FirstEvent, Gunzip, Measure, Quantities, Redactor, StreamInspector,
    StreamPosition, Usage,
};

use super::buffers::{BufferShare, ResponseBuffers};
use super::event_tap::EventTap;
use super::idle_timer::{IdleTick, IdleTimeouts, IdleTimer};
use crate::http::{Coding, is_json};
use crate::runtime::{Deadline, buffers, clock};
use crate::upstream::Lease;

/// A comment, which clients ignore: it shows proxies between gateway and client
/// that the connection is alive. It is one line, since some clients take a blank
/// line after it as an event without data.
const HEARTBEAT: &[u8] = b": keep-alive\n";

/// Why a stream whose body has ended is not complete.
const ENDED_EARLY: &str = "the body ended before the stream was complete";

/// Replaces the body of a compressed error.
const UNREADABLE: &[u8] = b"{\"error\":{\"message\":\"the upstream reported an error in a \
compressed body, which is not forwarded\",\"type\":\"upstream_error\",\"param\":null,\
\"code\":\"upstream_error_compressed\"}}";

/// How many bytes of the beginning of a stream are held, so that an error in its
/// first event can still cause a failover: comments, in practice.
const HOLD_BYTES: usize = 64 << 10;

/// The most held bytes that are passed on at once.
const PART: usize = 64 << 10;

/// How long the body of an error is held, so that its class is known.
const ERROR_HOLD: Duration = Duration::from_secs(2);

/// How many bytes of it are held.
const ERROR_HOLD_BYTES: usize = 16 << 10;

/// How a response is inspected.
#[derive(Debug)]
pub(super) enum UsageTap {
    /// A stream of events.
    Events(Box<EventTap>),
    /// A complete body.
    Whole(BodyInspector),
    /// A stream or body that is compressed although that was not requested. Its
    /// bytes are forwarded unchanged: nothing is held and nothing is inserted.
    Gzip(Box<Gunzip>),
    /// An error, which is forwarded without the secrets of the backend.
    Error(Box<Redactor>),
    /// A compressed error, whose body is replaced: it may hold secrets.
    Unreadable,
    /// Not inspected: compressed with another coding, or an error of a backend
    /// without secrets.
    Blind,
}

/// How a response ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum StreamEnd {
    Complete,
    /// The response was aborted; the reason contains no address.
    Aborted(String),
    /// The upstream was idle for too long.
    Stalled,
    /// The request timed out before the end.
    TimedOut,
}

/// A response in progress: held bytes, inspected content, and its end.
#[derive(Debug)]
pub(super) struct ResponseStream {
    /// Held until the response was received.
    lease: Option<Lease>,
    meter: UsageTap,
    held: Vec<u8>,
    /// The number of held bytes that were passed on.
    passed: usize,
    /// The memory of the held bytes, unless they are few.
    room: Option<BufferShare>,
    end: Option<StreamEnd>,
    idle_timer: IdleTimer,
}

impl UsageTap {
    /// Adds the bytes of a body part that may be sent.
    fn pass(&mut self, part: &[u8], out: &mut Vec<u8>) {
        match self {
            Self::Events(tap) => tap.pass(part, out),
            Self::Whole(ends) => {
                ends.push(part);
                out.extend_from_slice(part);
            }
            Self::Gzip(gunzip) => {
                gunzip.push(part);
                out.extend_from_slice(part);
            }
            Self::Error(redactor) => redactor.push(part, out),
            Self::Unreadable => {}
            Self::Blind => out.extend_from_slice(part),
        }
    }

    /// Adds the bytes that may be sent at the end.
    fn finish(&mut self, out: &mut Vec<u8>) {
        match self {
            Self::Events(tap) => tap.finish(out),
            Self::Gzip(gunzip) => gunzip.finish(),
            Self::Error(redactor) => redactor.finish(out),
            Self::Unreadable => out.extend_from_slice(UNREADABLE),
            Self::Whole(_) | Self::Blind => {}
        }
    }

    /// The inspection state of a stream.
    fn stream(&self) -> Option<&StreamInspector> {
        match self {
            Self::Events(tap) => Some(tap.inspector()),
            Self::Gzip(gunzip) => gunzip.stream(),
            Self::Whole(_) | Self::Error(_) | Self::Unreadable | Self::Blind => None,
        }
    }

    /// The inspection state of a complete body.
    fn piece(&mut self) -> Option<&mut BodyInspector> {
        match self {
            Self::Whole(tail) => Some(tail),
            Self::Gzip(gunzip) => gunzip.piece(),
            Self::Events(_) | Self::Error(_) | Self::Unreadable | Self::Blind => None,
        }
    }
}

impl ResponseStream {
    /// The response whose head arrived over this connection.
    pub(super) fn new(lease: Lease, meter: UsageTap, timeouts: IdleTimeouts) -> Self {
        Self {
            lease: Some(lease),
            meter,
            held: Vec::new(),
            passed: 0,
            room: None,
            end: None,
            idle_timer: IdleTimer::new(timeouts),
        }
    }

    /// The head of the response, until it is released.
    pub(super) fn head(&self) -> Option<Response<'_>> {
        Some(self.lease.as_ref()?.connection.response_head())
    }

    /// The number of bytes for the client, if it is known.
    pub(super) fn length(&self) -> Option<u64> {
        if self.is_events() {
            return None;
        }
        if self.is_replaced() {
            return Some(UNREADABLE.len() as u64);
        }
        self.lease.as_ref()?.connection.length()
    }

    /// The head of a complete body with a defined end, until it is released.
    pub(super) fn in_one_piece(&self) -> Option<Response<'_>> {
        let lease = self.lease.as_ref().filter(|_| !self.is_stream())?;
        let delimited = lease.connection.is_delimited();
        delimited.then(|| lease.connection.response_head())
    }

    /// The bytes that are held; none if they are compressed.
    pub(super) fn held_text(&self) -> &[u8] {
        match self.head().map(|head| Coding::of(head.fields())) {
            Some(Coding::Identity) => &self.held,
            Some(Coding::Gzip | Coding::Other) | None => &[],
        }
    }

    /// How it ended, once it has. Held bytes may still be pending.
    pub(super) fn end(&self) -> Option<&StreamEnd> {
        self.end.as_ref()
    }

    /// How it ended, once all of it was passed on.
    pub(super) fn passed_end(&self) -> Option<&StreamEnd> {
        self.end().filter(|_| self.held.is_empty())
    }

    /// The kind of the first event of a stream; a normal event for other
    /// responses.
    pub(super) fn first(&self) -> FirstEvent {
        self.meter
            .stream()
            .map_or(FirstEvent::Response, StreamInspector::first)
    }

    /// The class of an error in a stream after its first event.
    pub(super) fn later_error(&self) -> Option<ErrorClass> {
        self.meter.stream()?.later_error()
    }

    /// Whether nothing of a response is missing that its framing should have
    /// included: a stream contained its end, a JSON object its last brace. Only
    /// meaningful at the end, before the release.
    pub(super) fn is_whole(&mut self) -> bool {
        if let Some(stream) = self.meter.stream() {
            return stream.is_complete();
        }
        let is_json = self.head().is_some_and(|head| is_json(head.fields()));
        let piece = self.meter.piece().filter(|_| is_json);
        !piece.is_some_and(|piece| piece.is_truncated_json())
    }

    /// Whether a stream contained an error that the client has received.
    pub(super) fn reports_error(&self) -> bool {
        self.meter
            .stream()
            .is_some_and(StreamInspector::reports_error)
    }

    /// Whether it is a stream whose events are inspected.
    pub(super) fn is_stream(&self) -> bool {
        self.meter.stream().is_some()
    }

    /// Whether this is a stream that events can be inserted into.
    pub(super) fn is_events(&self) -> bool {
        matches!(self.meter, UsageTap::Events(_))
    }

    /// The class of an error in a compressed first event, which cannot be forwarded
    /// without the secrets that it may hold.
    pub(super) fn compressed_error(&self) -> Option<ErrorClass> {
        match self.first() {
            FirstEvent::Error(class) if !self.is_events() => Some(class),
            FirstEvent::Error(_) | FirstEvent::Response | FirstEvent::Pending => None,
        }
    }

    /// Whether the body is replaced by one of the gateway.
    pub(super) fn is_replaced(&self) -> bool {
        matches!(self.meter, UsageTap::Unreadable)
    }

    /// The ID of a JSON response.
    pub(super) fn id(&mut self) -> Option<String> {
        self.meter.piece()?.id()
    }

    /// The usage that the response reported so far.
    pub(super) fn usage(&mut self) -> Option<Usage> {
        if let Some(tail) = self.meter.stream() {
            return tail.usage();
        }
        self.meter.piece()?.usage()
    }

    /// Whether the usage that it reported is implausible.
    pub(super) fn has_implausible_usage(&mut self) -> bool {
        if let Some(tail) = self.meter.stream() {
            return tail.has_implausible_usage();
        }
        let piece = self.meter.piece();
        piece.is_some_and(BodyInspector::has_implausible_usage)
    }

    /// The quantities other than tokens that it reported, in the unit of the
    /// endpoint.
    pub(super) fn quantities(&mut self, measure: Measure) -> Quantities {
        if let Some(tail) = self.meter.stream() {
            return tail.quantities(measure);
        }
        let piece = self.meter.piece();
        piece.map(BodyInspector::quantities).unwrap_or_default()
    }

    /// An estimate of the tokens received so far; nothing if a stream has had no
    /// event. Zero for responses that are not inspected.
    pub(super) fn estimated_tokens(&mut self) -> Option<u64> {
        if let Some(tail) = self.meter.stream() {
            return (tail.first() == FirstEvent::Response).then(|| tail.estimated_tokens());
        }
        let piece = self.meter.piece();
        Some(piece.map_or(0, |tail| tail.estimated_tokens()))
    }

    /// Waits until the kind of a stream's first event is known, at most until this
    /// moment. Returns whether the stream can be forwarded or has ended; otherwise
    /// nothing of it has arrived in time.
    pub(super) async fn hold(&mut self, deadline: &mut Deadline, until: Instant) -> bool {
        self.hold_while(deadline, until, |stream, held| {
            stream.first() == FirstEvent::Pending && held.len() < HOLD_BYTES
        })
        .await;
        let is_full = self.held.len() >= HOLD_BYTES;
        is_full || self.end.is_some() || self.first() != FirstEvent::Pending
    }

    /// Waits for the rest of a complete body, at most until this moment, if it is
    /// JSON and has room: its backend can be replaced meanwhile. Returns whether the
    /// body has ended.
    pub(super) async fn hold_whole(
        &mut self,
        deadline: &mut Deadline,
        until: Instant,
        buffers: &ResponseBuffers,
    ) -> bool {
        let is_json = self.head().is_some_and(|head| is_json(head.fields()));
        let fits = self.length().is_none_or(|length| buffers.fits(length));
        if !matches!(self.meter, UsageTap::Whole(_)) || !is_json || !fits {
            return false;
        }
        let mut room = None;
        self.hold_while(deadline, until, |_, held| {
            buffers.admits(&mut room, held.len())
        })
        .await;
        self.room = room;
        self.end.is_some()
    }

    /// Waits for the body of an error, within limits; beyond them, its beginning
    /// has to do.
    pub(super) async fn hold_error(&mut self, deadline: &mut Deadline) {
        self.hold_while(deadline, clock::now() + ERROR_HOLD, |_, held| {
            held.len() < ERROR_HOLD_BYTES
        })
        .await;
    }

    /// Reads as long as `incomplete`, at most until the end or this moment.
    async fn hold_while(
        &mut self,
        deadline: &mut Deadline,
        until: Instant,
        mut incomplete: impl FnMut(&Self, &[u8]) -> bool,
    ) {
        let mut held = buffers::take();
        deadline.arm_from(until, Duration::ZERO);
        let known = poll_fn(|cx| {
            while self.end.is_none() && incomplete(self, &held) {
                ready!(self.poll_read(cx, &mut held));
            }
            Poll::Ready(())
        });
        // The timeout is one of the limits.
        let _in_time = deadline.before(known).await;
        deadline.disarm();
        self.held = held;
    }

    /// Passes on a part of the held bytes, and releases their memory at the end.
    fn pass_held(&mut self, out: &mut Vec<u8>) {
        let part = self.held.get(self.passed..).unwrap_or_default();
        let part = part.get(..PART).unwrap_or(part);
        out.extend_from_slice(part);
        self.passed += part.len();
        if self.passed == self.held.len() {
            buffers::recycle(std::mem::take(&mut self.held));
            self.room = None;
        }
    }

    /// Adds the bytes of one read to `out`, or records the end. Must not be
    /// called after the end.
    pub(super) fn poll_pump(
        &mut self,
        cx: &mut Context<'_>,
        deadline: &mut Deadline,
        out: &mut Vec<u8>,
    ) -> Poll<()> {
        if !self.held.is_empty() {
            self.pass_held(out);
            return Poll::Ready(());
        }
        if self.end.is_some() {
            return Poll::Ready(());
        }
        let before = out.len();
        if self.poll_read(cx, out).is_ready() {
            self.idle_timer.record_read(out.len() > before);
            return Poll::Ready(());
        }
        self.poll_quiet(cx, deadline, out)
    }

    fn poll_read(&mut self, cx: &mut Context<'_>, out: &mut Vec<u8>) -> Poll<()> {
        let Self { lease, meter, .. } = self;
        let Some(lease) = lease else {
            return Poll::Pending;
        };
        let mut pass = |part: &[u8]| meter.pass(part, out);
        match ready!(lease.connection.poll_body(cx, &mut pass)) {
            Ok(false) => {}
            Ok(true) => {
                self.meter.finish(out);
                let early = self.is_stream() && !self.is_whole() && !self.reports_error();
                self.end = Some(if early {
                    StreamEnd::Aborted(ENDED_EARLY.to_owned())
                } else {
                    StreamEnd::Complete
                });
            }
            Err(reason) => self.abort(StreamEnd::Aborted(reason)),
        }
        Poll::Ready(())
    }

    /// Records the end of the upstream's work. A stream whose last event was
    /// received is complete, although its body is not.
    fn abort(&mut self, end: StreamEnd) {
        let is_final = self.meter.stream().is_some_and(StreamInspector::is_final);
        self.end = Some(if is_final { StreamEnd::Complete } else { end });
    }

    /// The action that is due while no bytes arrive.
    fn poll_quiet(
        &mut self,
        cx: &mut Context<'_>,
        deadline: &mut Deadline,
        out: &mut Vec<u8>,
    ) -> Poll<()> {
        loop {
            match ready!(self.idle_timer.poll(cx, deadline)) {
                IdleTick::Heartbeat if self.takes_comments() => out.extend_from_slice(HEARTBEAT),
                IdleTick::Heartbeat | IdleTick::Wait => continue,
                IdleTick::Stalled => self.abort(StreamEnd::Stalled),
                IdleTick::TimedOut => self.abort(StreamEnd::TimedOut),
            }
            return Poll::Ready(());
        }
    }

    /// The position after the bytes that were sent, in a stream that events can
    /// be inserted into.
    pub(super) fn position(&self) -> Option<StreamPosition> {
        match &self.meter {
            UsageTap::Events(tap) => Some(tap.inspector().position()),
            UsageTap::Whole(_)
            | UsageTap::Gzip(_)
            | UsageTap::Error(_)
            | UsageTap::Unreadable
            | UsageTap::Blind => None,
        }
    }

    /// Whether a comment can follow the bytes that were sent.
    fn takes_comments(&self) -> bool {
        self.position() == Some(StreamPosition::BetweenEvents)
    }

    /// The response was received: releases its connection. The rest of a response
    /// that is not whole could follow on it, so it is closed then.
    pub(super) fn release(&mut self) {
        let truncated = matches!(&self.meter, UsageTap::Gzip(gunzip) if gunzip.is_truncated());
        let whole = self.is_whole() && !truncated;
        if let Some(lease) = self.lease.take().filter(|_| whole) {
            lease.release();
        }
    }
}

impl Drop for ResponseStream {
    fn drop(&mut self) {
        self.release();
    }
}
