use std::collections::VecDeque;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use fastllm_wire::{First, Forward, HeadTail, StreamTail, Usage};
use tokio::time::{Instant, Sleep, sleep, timeout};

use super::body::UpstreamBody;

/// An upstream that is silent for this long in the middle of an answer (and at
/// most for twice as long) is taken for dead.
const SILENCE: Duration = Duration::from_mins(5);

/// How long the beginning of a stream is held back, so that an error in its
/// first event can still fail over.
const HOLD: Duration = Duration::from_secs(10);

/// How many bytes of it are held back: comments, in practice.
const HOLD_BYTES: usize = 64 << 10;

/// What is looked into while an answer passes.
#[derive(Debug)]
pub(super) enum Meter {
    /// A stream of events.
    Events(Box<StreamTail>),
    /// One JSON text.
    Whole(HeadTail),
    /// Nothing: an error, or compressed against our wish.
    Blind,
}

/// How an answer ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum End {
    Complete,
    /// Why, without an address.
    BrokenOff(String),
}

/// An answer on its way: what came of it, what may leave, what was seen.
#[derive(Debug)]
pub(super) struct Flow {
    body: UpstreamBody,
    meter: Meter,
    /// Nearly always one chunk at most.
    next: Option<Bytes>,
    more: VecDeque<Bytes>,
    waiting: usize,
    end: Option<End>,
    silence: Option<Pin<Box<Sleep>>>,
    heard: bool,
}

impl Flow {
    pub(super) fn new(body: UpstreamBody, meter: Meter) -> Self {
        let end = body.is_end().then_some(End::Complete);
        Self {
            body,
            meter,
            next: None,
            more: VecDeque::new(),
            waiting: 0,
            end,
            silence: None,
            heard: false,
        }
    }

    /// The next bytes that may leave.
    pub(super) fn take(&mut self) -> Option<Bytes> {
        let chunk = self.next.take().or_else(|| self.more.pop_front())?;
        self.waiting -= chunk.len();
        Some(chunk)
    }

    /// Whether bytes wait to leave.
    pub(super) fn is_waiting(&self) -> bool {
        self.waiting > 0
    }

    /// How it ended, once it has. Bytes may still wait.
    pub(super) fn end(&self) -> Option<&End> {
        self.end.as_ref()
    }

    /// What the first event of a stream was; an answer for anything else.
    pub(super) fn first(&self) -> First {
        match &self.meter {
            Meter::Events(tail) => tail.first(),
            Meter::Whole(_) | Meter::Blind => First::Answer,
        }
    }

    pub(super) fn is_events(&self) -> bool {
        matches!(self.meter, Meter::Events(_))
    }

    /// What the answer said so far that it used.
    pub(super) fn usage(&mut self) -> Option<Usage> {
        match &mut self.meter {
            Meter::Events(tail) => tail.usage(),
            Meter::Whole(ends) => ends.usage(),
            Meter::Blind => None,
        }
    }

    /// Waits until it is known what the first event of a stream is, within
    /// bounds; past them the stream goes its way.
    pub(super) async fn hold(&mut self) {
        let known = poll_fn(|cx| {
            while self.first() == First::Pending && self.end.is_none() && self.waiting < HOLD_BYTES
            {
                ready!(self.poll_pump(cx));
            }
            Poll::Ready(())
        });
        // Out of time is one of the bounds.
        let _in_time = timeout(HOLD, known).await;
    }

    /// Takes one read, or the end. Must not be called after the end.
    pub(super) fn poll_pump(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let Poll::Ready(read) = self.body.poll_chunk(cx) else {
            return self.poll_silence(cx);
        };
        self.heard = true;
        match read {
            Some(Ok(chunk)) => {
                self.pass(chunk);
                if self.body.is_end() {
                    self.finish();
                }
            }
            Some(Err(reason)) => self.end = Some(End::BrokenOff(reason)),
            None => self.finish(),
        }
        Poll::Ready(())
    }

    fn pass(&mut self, chunk: Bytes) {
        match &mut self.meter {
            Meter::Events(tail) => {
                let forward = tail.push(&chunk);
                self.queue_forward(forward, &chunk);
            }
            Meter::Whole(ends) => {
                ends.push(&chunk);
                self.queue(chunk);
            }
            Meter::Blind => self.queue(chunk),
        }
    }

    fn finish(&mut self) {
        if let Meter::Events(tail) = &mut self.meter {
            let forward = tail.finish();
            self.queue_forward(forward, &Bytes::new());
        }
        self.end = Some(End::Complete);
    }

    fn queue_forward(&mut self, mut forward: Forward, chunk: &Bytes) {
        self.queue(Bytes::from(std::mem::take(&mut forward.carried)));
        for run in forward.runs() {
            self.queue(chunk.slice(run));
        }
    }

    /// Lets bytes leave after those that wait.
    pub(super) fn queue(&mut self, chunk: Bytes) {
        if chunk.is_empty() {
            return;
        }
        self.waiting += chunk.len();
        if self.next.is_none() && self.more.is_empty() {
            self.next = Some(chunk);
        } else {
            self.more.push_back(chunk);
        }
    }

    /// A timer that is armed only where there is something to wait for, and
    /// not touched by every read.
    fn poll_silence(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let timer = self.silence.get_or_insert_with(|| Box::pin(sleep(SILENCE)));
        while timer.as_mut().poll(cx).is_ready() {
            if !std::mem::take(&mut self.heard) {
                self.end = Some(End::BrokenOff("silent for too long".to_owned()));
                return Poll::Ready(());
            }
            timer.as_mut().reset(Instant::now() + SILENCE);
        }
        Poll::Pending
    }
}
