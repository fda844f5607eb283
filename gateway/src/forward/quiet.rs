//! How long an answer may be silent, and what happens meanwhile.

use std::task::{Context, Poll, ready};
use std::time::Duration;

use crate::deadline::Deadline;

/// Silence is measured in steps, so that a read costs no look at the clock:
/// the least of these parts of the time-out and of the heartbeat.
const PARTS_OF_TIMEOUT: u32 = 8;
const PARTS_OF_HEARTBEAT: u32 = 4;

/// How long an upstream may be silent in the middle of its answer, and how
/// often a streamed answer tells its client that it is alive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Patience {
    step: Duration,
    /// Steps without a byte, after which the upstream is taken for dead.
    longest: u32,
    /// Steps in which nothing left for the client, after which a heartbeat does.
    heartbeat: Option<u32>,
}

/// The silence of one answer.
#[derive(Debug)]
pub(super) struct Quiet {
    patience: Patience,
    /// A step is under way.
    counts: bool,
    /// Steps that ended since something came,
    silent: u32,
    /// and since something left.
    unsent: u32,
}

/// What a step of silence ended with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Tick {
    /// Nothing yet.
    Wait,
    /// The client should hear something.
    Heartbeat,
    /// The upstream was silent for too long.
    Stalled,
    /// The time of the whole request is over.
    OutOfTime,
}

impl Patience {
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

impl Quiet {
    pub(super) fn new(patience: Patience) -> Self {
        Self {
            patience,
            counts: false,
            silent: 0,
            unsent: 0,
        }
    }

    /// Something came; `sent` tells whether something leaves with it.
    pub(super) fn heard(&mut self, sent: bool) {
        self.silent = 0;
        if sent {
            self.unsent = 0;
        }
    }

    /// Ready at the end of a step, to be asked whenever nothing has come.
    ///
    /// The deadline moves once a step and is not touched by reads.
    pub(super) fn poll(&mut self, cx: &mut Context<'_>, deadline: &mut Deadline) -> Poll<Tick> {
        if !self.counts {
            self.counts = true;
            deadline.arm(self.patience.step);
        }
        ready!(deadline.poll(cx));
        if deadline.request_is_over() {
            return Poll::Ready(Tick::OutOfTime);
        }
        deadline.arm(self.patience.step);
        Poll::Ready(self.count())
    }

    fn count(&mut self) -> Tick {
        self.silent += 1;
        self.unsent += 1;
        if self.silent >= self.patience.longest {
            return Tick::Stalled;
        }
        match self.patience.heartbeat {
            Some(steps) if self.unsent >= steps => {
                self.unsent = 0;
                Tick::Heartbeat
            }
            _ => Tick::Wait,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::{Patience, Quiet, Tick};

    const fn seconds(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    /// How long it takes from now to a tick of this kind, if it begins with a
    /// step.
    fn until(quiet: &mut Quiet, wanted: Tick) -> Duration {
        let mut steps = 1;
        while quiet.count() != wanted {
            steps += 1;
        }
        quiet.patience.step * steps
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
            let mut quiet = Quiet::new(Patience::new(timeout, heartbeat));
            until(&mut quiet, Tick::Wait);
            quiet.heard(false);
            let step = quiet.patience.step;
            // What was heard may have come anywhere in the step that now ends.
            let latest = until(&mut quiet, Tick::Stalled);
            let case = format!("{timeout:?} {heartbeat:?} {latest:?}");
            assert!(latest >= timeout + step, "{case}");
            assert!(latest <= timeout + step * 2, "{case}");
            assert!(step <= timeout / 8, "{case}");
        }
    }

    #[test]
    fn a_heartbeat_is_never_late_and_goes_on() {
        let mut quiet = Quiet::new(Patience::new(seconds(300), Some(seconds(15))));
        until(&mut quiet, Tick::Wait);
        quiet.heard(true);
        for _ in 0..5 {
            assert_eq!(until(&mut quiet, Tick::Heartbeat), seconds(15));
        }
        // What comes and does not leave is no sign of life.
        until(&mut quiet, Tick::Wait);
        quiet.heard(false);
        let step = quiet.patience.step;
        assert_eq!(until(&mut quiet, Tick::Heartbeat) + step, seconds(15));
    }

    #[test]
    fn without_a_heartbeat_there_is_none() {
        let mut quiet = Quiet::new(Patience::new(seconds(8), None));
        for _ in 0..8 {
            assert_eq!(quiet.count(), Tick::Wait);
        }
        assert_eq!(quiet.count(), Tick::Stalled);
    }
}
