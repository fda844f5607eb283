//! How long an answer may be silent, and what happens meanwhile.

use std::task::{Context, Poll, ready};
use std::time::Duration;

use crate::runtime::Deadline;

/// Silence is measured in steps, so that a read costs no look at the clock:
/// the least of these parts of the time-out and of the heartbeat.
const PARTS_OF_TIMEOUT: u32 = 8;
const PARTS_OF_HEARTBEAT: u32 = 4;

/// How long an upstream may be silent in the middle of its answer, and how
/// often a streamed answer tells its client that it is alive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct IdleTimeouts {
    step: Duration,
    /// Steps without a byte, after which the upstream is taken for dead.
    longest: u32,
    /// Steps in which nothing left for the client, after which a heartbeat does.
    heartbeat: Option<u32>,
}

/// The silence of one answer.
#[derive(Debug)]
pub(super) struct IdleTimer {
    timeouts: IdleTimeouts,
    /// A step is under way.
    armed: bool,
    /// Steps that ended since something came,
    silent_steps: u32,
    /// and since something left.
    unsent_steps: u32,
}

/// What a step of silence ended with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum IdleTick {
    /// Nothing yet.
    Wait,
    /// The client should hear something.
    Heartbeat,
    /// The upstream was silent for too long.
    Stalled,
    /// The time of the whole request is over.
    TimedOut,
}

impl IdleTimeouts {
    /// An upstream is taken for dead after `timeout`, or up to a quarter of that
    /// later. A heartbeat comes every `heartbeat`, the first of a silence
    /// up to a quarter of that earlier. Both are longer than zero.
    pub(crate) fn new(timeout: Duration, heartbeat: Option<Duration>) -> Self {
        let step = timeout / PARTS_OF_TIMEOUT;
        let step = heartbeat.map_or(step, |every| step.min(every / PARTS_OF_HEARTBEAT));
        let steps = |whole: Duration| whole.as_nanos() / step.as_nanos().max(1);
        let count = |steps: u128| u32::try_from(steps).unwrap_or(u32::MAX);
        Self {
            step,
            // The first step may have begun just before the silence did.
            longest: count(steps(timeout.saturating_add(step).saturating_sub(NANO)))
                .saturating_add(1),
            heartbeat: heartbeat.map(|every| count(steps(every))),
        }
    }
}

/// For rounding up.
const NANO: Duration = Duration::from_nanos(1);

impl IdleTimer {
    pub(super) fn new(timeouts: IdleTimeouts) -> Self {
        Self {
            timeouts,
            armed: false,
            silent_steps: 0,
            unsent_steps: 0,
        }
    }

    /// Something came; `sent` tells whether something leaves with it.
    pub(super) fn record_read(&mut self, sent: bool) {
        self.silent_steps = 0;
        if sent {
            self.unsent_steps = 0;
        }
    }

    /// Ready at the end of a step, to be asked whenever nothing has come.
    ///
    /// The deadline moves once a step and is not touched by reads.
    pub(super) fn poll(&mut self, cx: &mut Context<'_>, deadline: &mut Deadline) -> Poll<IdleTick> {
        if !self.armed {
            self.armed = true;
            deadline.arm(self.timeouts.step);
        }
        ready!(deadline.poll(cx));
        if deadline.request_is_over() {
            return Poll::Ready(IdleTick::TimedOut);
        }
        deadline.arm(self.timeouts.step);
        Poll::Ready(self.count())
    }

    fn count(&mut self) -> IdleTick {
        self.silent_steps += 1;
        self.unsent_steps += 1;
        if self.silent_steps >= self.timeouts.longest {
            return IdleTick::Stalled;
        }
        match self.timeouts.heartbeat {
            Some(steps) if self.unsent_steps >= steps => {
                self.unsent_steps = 0;
                IdleTick::Heartbeat
            }
            _ => IdleTick::Wait,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::{IdleTick, IdleTimeouts, IdleTimer};

    const fn seconds(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    /// How long it takes from now to a tick of this kind, if it begins with a
    /// step.
    fn until(idle_timer: &mut IdleTimer, wanted: IdleTick) -> Duration {
        let mut steps = 1;
        while idle_timer.count() != wanted {
            steps += 1;
        }
        idle_timer.timeouts.step * steps
    }

    #[test]
    fn a_time_out_is_never_early_and_hardly_late() {
        for (timeout, heartbeat) in [
            (seconds(300), None),
            (seconds(1), None),
            (seconds(300), Some(seconds(15))),
            (seconds(10), Some(seconds(7))),
            (seconds(1), Some(seconds(86_400))),
            (seconds(86_400), Some(seconds(1))),
        ] {
            let mut idle_timer = IdleTimer::new(IdleTimeouts::new(timeout, heartbeat));
            until(&mut idle_timer, IdleTick::Wait);
            idle_timer.record_read(false);
            let step = idle_timer.timeouts.step;
            // What was heard may have come anywhere in the step that now ends.
            let latest = until(&mut idle_timer, IdleTick::Stalled);
            let case = format!("{timeout:?} {heartbeat:?} {latest:?}");
            assert!(latest >= timeout + step, "{case}");
            assert!(latest <= timeout + step * 2, "{case}");
            assert!(step <= timeout / 8, "{case}");
        }
    }

    #[test]
    fn a_heartbeat_is_never_late_and_goes_on() {
        let mut idle_timer = IdleTimer::new(IdleTimeouts::new(seconds(300), Some(seconds(15))));
        until(&mut idle_timer, IdleTick::Wait);
        idle_timer.record_read(true);
        for _ in 0..5 {
            assert_eq!(until(&mut idle_timer, IdleTick::Heartbeat), seconds(15));
        }
        // What comes and does not leave is no sign of life.
        until(&mut idle_timer, IdleTick::Wait);
        idle_timer.record_read(false);
        let step = idle_timer.timeouts.step;
        assert_eq!(
            until(&mut idle_timer, IdleTick::Heartbeat) + step,
            seconds(15)
        );
    }

    #[test]
    fn without_a_heartbeat_there_is_none() {
        let mut idle_timer = IdleTimer::new(IdleTimeouts::new(seconds(8), None));
        for _ in 0..8 {
            assert_eq!(idle_timer.count(), IdleTick::Wait);
        }
        assert_eq!(idle_timer.count(), IdleTick::Stalled);
    }
}
