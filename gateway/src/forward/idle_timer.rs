//! The idle timeout and the heartbeat of a response.

use std::task::{Context, Poll, ready};
use std::time::Duration;

use crate::runtime::Deadline;

/// Idle time is measured in steps, so that a read requires no clock: the timeout
/// and the heartbeat interval are divided by these, and the shorter step is used.
const PARTS_OF_TIMEOUT: u32 = 8;
const PARTS_OF_HEARTBEAT: u32 = 4;

/// How long an upstream may be idle in the middle of its response, and how often
/// an idle stream sends a heartbeat to its client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct IdleTimeouts {
    step: Duration,
    /// Steps without a received byte after which the upstream has timed out.
    longest: u32,
    /// Steps without a sent byte after which a heartbeat is sent.
    heartbeat: Option<u32>,
}

/// The idle time of one response.
#[derive(Debug)]
pub(super) struct IdleTimer {
    timeouts: IdleTimeouts,
    /// A step is running.
    armed: bool,
    /// Steps that ended since the last received byte.
    silent_steps: u32,
    /// Steps that ended since the last sent byte.
    unsent_steps: u32,
}

/// The result of a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum IdleTick {
    /// No action is required.
    Wait,
    /// A heartbeat is due.
    Heartbeat,
    /// The upstream was idle for too long.
    Stalled,
    /// The request timed out.
    TimedOut,
}

impl IdleTimeouts {
    /// An upstream times out after `timeout`, or up to a quarter of that later.
    /// A heartbeat is sent every `heartbeat`; the first one of an idle period up
    /// to a quarter of that earlier. Both are longer than zero.
    pub(crate) fn new(timeout: Duration, heartbeat: Option<Duration>) -> Self {
        let step = timeout / PARTS_OF_TIMEOUT;
        let step = heartbeat.map_or(step, |every| step.min(every / PARTS_OF_HEARTBEAT));
        let steps = |whole: Duration| whole.as_nanos() / step.as_nanos().max(1);
        let count = |steps: u128| u32::try_from(steps).unwrap_or(u32::MAX);
        Self {
            step,
            // The first step may have begun just before the idle period.
            longest: count(steps(timeout.saturating_add(step).saturating_sub(NANO)))
                .saturating_add(1),
            heartbeat: heartbeat.map(|every| count(steps(every))),
        }
    }
}

/// Subtracted from a duration to round up.
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

    /// Bytes arrived; `sent` is whether any bytes are sent to the client.
    pub(super) fn record_read(&mut self, sent: bool) {
        self.silent_steps = 0;
        if sent {
            self.unsent_steps = 0;
        }
    }

    /// Ready at the end of a step; polled whenever no bytes have arrived.
    ///
    /// The deadline moves once per step and is not changed by reads.
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

    /// The time from now to a tick of this kind, if a step starts now.
    fn until(idle_timer: &mut IdleTimer, wanted: IdleTick) -> Duration {
        let mut steps = 1;
        while idle_timer.count() != wanted {
            steps += 1;
        }
        idle_timer.timeouts.step * steps
    }

    #[test]
    fn a_timeout_is_never_early_and_slightly_late_at_most() {
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
            // The last byte may have arrived anywhere in the step that now ends.
            let latest = until(&mut idle_timer, IdleTick::Stalled);
            let case = format!("{timeout:?} {heartbeat:?} {latest:?}");
            assert!(latest >= timeout + step, "{case}");
            assert!(latest <= timeout + step * 2, "{case}");
            assert!(step <= timeout / 8, "{case}");
        }
    }

    #[test]
    fn heartbeats_are_never_late_and_repeat() {
        let mut idle_timer = IdleTimer::new(IdleTimeouts::new(seconds(300), Some(seconds(15))));
        until(&mut idle_timer, IdleTick::Wait);
        idle_timer.record_read(true);
        for _ in 0..5 {
            assert_eq!(until(&mut idle_timer, IdleTick::Heartbeat), seconds(15));
        }
        // Received bytes that are not sent do not delay a heartbeat.
        until(&mut idle_timer, IdleTick::Wait);
        idle_timer.record_read(false);
        let step = idle_timer.timeouts.step;
        assert_eq!(
            until(&mut idle_timer, IdleTick::Heartbeat) + step,
            seconds(15)
        );
    }

    #[test]
    fn heartbeats_are_optional() {
        let mut idle_timer = IdleTimer::new(IdleTimeouts::new(seconds(8), None));
        for _ in 0..8 {
            assert_eq!(idle_timer.count(), IdleTick::Wait);
        }
        assert_eq!(idle_timer.count(), IdleTick::Stalled);
    }
}
