use std::future::poll_fn;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use fastllm_wire::http1::Response;
use fastllm_wire::{
    BodyInspector, FirstEvent, Gunzip, Measure, Quantities, StreamInspector, Usage,
};

use super::idle_timer::{IdleTick, IdleTimeouts, IdleTimer};
use crate::runtime::Deadline;
use crate::upstream::Lease;

/// A comment, which readers of events skip: it tells whoever stands between us
/// and the client that the connection is alive.
const HEARTBEAT: &[u8] = b": keep-alive\n\n";

/// How long the beginning of a stream is held back, so that an error in its
/// first event can still fail over.
const HOLD: Duration = Duration::from_secs(10);

/// How many bytes of it are held back: comments, in practice.
const HOLD_BYTES: usize = 64 << 10;

/// What is looked into while an answer passes.
#[derive(Debug)]
pub(super) enum UsageTap {
    /// A stream of events.
    Events(Box<StreamInspector>),
    /// An answer in one piece.
    Whole(BodyInspector),
    /// One of both, compressed against our wish. Its bytes pass as they are:
    /// nothing is held back and nothing put between them.
    Gzip(Box<Gunzip>),
    /// Nothing: an error, or compressed in another way.
    Blind,
}

/// How an answer ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum StreamEnd {
    Complete,
    /// Why, without an address.
    Aborted(String),
    /// Nothing came for too long.
    Stalled,
    /// The time of the request was over before its end.
    TimedOut,
}

/// An answer on its way: what was held of it, what was seen, how it ended.
#[derive(Debug)]
pub(super) struct ResponseStream {
    /// Until the answer has left.
    lease: Option<Lease>,
    meter: UsageTap,
    held: Vec<u8>,
    end: Option<StreamEnd>,
    idle_timer: IdleTimer,
}

impl UsageTap {
    /// Adds what may leave of a part of the body.
    fn pass(&mut self, part: &[u8], out: &mut Vec<u8>) {
        match self {
            Self::Events(tail) => {
                let forward = tail.push(part);
                for slice in forward.slices(part) {
                    out.extend_from_slice(slice);
                }
            }
            Self::Whole(ends) => {
                ends.push(part);
                out.extend_from_slice(part);
            }
            Self::Gzip(gunzip) => {
                gunzip.push(part);
                out.extend_from_slice(part);
            }
            Self::Blind => out.extend_from_slice(part),
        }
    }

    /// Adds what may leave at the end.
    fn finish(&mut self, out: &mut Vec<u8>) {
        match self {
            Self::Events(tail) => {
                let forward = tail.finish();
                for slice in forward.slices(&[]) {
                    out.extend_from_slice(slice);
                }
            }
            Self::Gzip(gunzip) => gunzip.finish(),
            Self::Whole(_) | Self::Blind => {}
        }
    }

    /// What is remembered of a stream.
    fn stream(&self) -> Option<&StreamInspector> {
        match self {
            Self::Events(tail) => Some(tail),
            Self::Gzip(gunzip) => gunzip.stream(),
            Self::Whole(_) | Self::Blind => None,
        }
    }

    /// What is remembered of an answer in one piece.
    fn piece(&mut self) -> Option<&mut BodyInspector> {
        match self {
            Self::Whole(tail) => Some(tail),
            Self::Gzip(gunzip) => gunzip.piece(),
            Self::Events(_) | Self::Blind => None,
        }
    }
}

impl ResponseStream {
    /// The answer whose head has come over this connection.
    pub(super) fn new(lease: Lease, meter: UsageTap, timeouts: IdleTimeouts) -> Self {
        Self {
            lease: Some(lease),
            meter,
            held: Vec::new(),
            end: None,
            idle_timer: IdleTimer::new(timeouts),
        }
    }

    /// The head of the answer, until it is released.
    pub(super) fn head(&self) -> Option<Response<'_>> {
        Some(self.lease.as_ref()?.connection.response_head())
    }

    /// How many bytes leave, where that is known.
    pub(super) fn length(&self) -> Option<u64> {
        if self.is_events() {
            return None;
        }
        self.lease.as_ref()?.connection.length()
    }

    /// The head of an answer in one piece that says itself where that ends,
    /// until it is released.
    pub(super) fn in_one_piece(&self) -> Option<Response<'_>> {
        let lease = self.lease.as_ref().filter(|_| !self.is_stream())?;
        let delimited = lease.connection.is_delimited();
        delimited.then(|| lease.connection.response_head())
    }

    /// How it ended, once it has. Held bytes may still wait.
    pub(super) fn end(&self) -> Option<&StreamEnd> {
        self.end.as_ref()
    }

    /// What the first event of a stream was; an answer for anything else.
    pub(super) fn first(&self) -> FirstEvent {
        self.meter
            .stream()
            .map_or(FirstEvent::Answer, StreamInspector::first)
    }

    /// Whether a stream brought an error after its first event.
    pub(super) fn failed_later(&self) -> bool {
        self.meter
            .stream()
            .is_some_and(StreamInspector::failed_later)
    }

    /// Whether a stream said that it is complete; anything else is by its
    /// framing.
    pub(super) fn is_whole(&self) -> bool {
        self.meter.stream().is_none_or(StreamInspector::is_complete)
    }

    /// Whether it is a stream whose events are seen.
    pub(super) fn is_stream(&self) -> bool {
        self.meter.stream().is_some()
    }

    /// Whether it is a stream that events can be added to.
    pub(super) fn is_events(&self) -> bool {
        matches!(self.meter, UsageTap::Events(_))
    }

    /// What the answer said so far that it used.
    pub(super) fn usage(&mut self) -> Option<Usage> {
        if let Some(tail) = self.meter.stream() {
            return tail.usage();
        }
        self.meter.piece()?.usage()
    }

    /// What it tells beside tokens, as the endpoint measures it.
    pub(super) fn quantities(&mut self, measure: Measure) -> Quantities {
        if let Some(tail) = self.meter.stream() {
            return tail.quantities(measure);
        }
        let piece = self.meter.piece();
        piece.map(BodyInspector::quantities).unwrap_or_default()
    }

    /// How many tokens came of a text so far, by a rough count; nothing where a
    /// stream has not brought an event. Of what is not looked into, none.
    pub(super) fn estimated_tokens(&mut self) -> Option<u64> {
        if let Some(tail) = self.meter.stream() {
            return (tail.first() == FirstEvent::Answer).then(|| tail.estimated_tokens());
        }
        let piece = self.meter.piece();
        Some(piece.map_or(0, |tail| tail.estimated_tokens()))
    }

    /// Waits until it is known what the first event of a stream is, within
    /// bounds; past them the stream goes its way.
    pub(super) async fn hold(&mut self, deadline: &mut Deadline) {
        let mut held = Vec::new();
        deadline.arm(HOLD);
        let known = poll_fn(|cx| {
            while self.first() == FirstEvent::Pending
                && self.end.is_none()
                && held.len() < HOLD_BYTES
            {
                ready!(self.poll_read(cx, &mut held));
            }
            Poll::Ready(())
        });
        // Out of time is one of the bounds.
        let _in_time = deadline.before(known).await;
        deadline.disarm();
        self.held = held;
    }

    /// Adds to `out` what one read brings, or takes the end. Must not be called
    /// after the end.
    pub(super) fn poll_pump(
        &mut self,
        cx: &mut Context<'_>,
        deadline: &mut Deadline,
        out: &mut Vec<u8>,
    ) -> Poll<()> {
        if !self.held.is_empty() {
            out.append(&mut std::mem::take(&mut self.held));
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
                self.end = Some(StreamEnd::Complete);
            }
            Err(reason) => self.end = Some(StreamEnd::Aborted(reason)),
        }
        Poll::Ready(())
    }

    /// What there is to do while nothing comes.
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
                IdleTick::Stalled => self.end = Some(StreamEnd::Stalled),
                IdleTick::TimedOut => self.end = Some(StreamEnd::TimedOut),
            }
            return Poll::Ready(());
        }
    }

    /// Whether a comment can be put behind what has left.
    fn takes_comments(&self) -> bool {
        matches!(&self.meter, UsageTap::Events(tail) if tail.is_between_events())
    }

    /// The answer has left: its connection is free.
    pub(super) fn release(&mut self) {
        if let Some(lease) = self.lease.take() {
            lease.release();
        }
    }
}

impl Drop for ResponseStream {
    fn drop(&mut self) {
        self.release();
    }
}
