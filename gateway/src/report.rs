//! What goes back to control: usage, health, and what was taken of limits. Nothing here is waited for by
//! a request.

mod backlog;
#[cfg(test)]
mod fixture;
mod frozen;
mod health;
mod queue;
mod reconcile;
mod spill;
mod usage;

pub(crate) use backlog::Backlog;
pub(crate) use frozen::Identity;
pub(crate) use health::HealthReporter;
pub(crate) use queue::{UsageQueue, Waiting, queue};
pub(crate) use reconcile::{LimitsStateSource, Reconciler};
pub(crate) use usage::UsageReporter;

use std::time::Duration;

/// Waits between retries: doubling from `first` to `most`, each shortened by
/// up to half at random, so that replicas do not march in step.
#[derive(Debug, Clone, Copy)]
pub(crate) struct BackOff {
    first: Duration,
    most: Duration,
    failures: u32,
}

impl BackOff {
    pub(crate) fn new(first: Duration, most: Duration) -> Self {
        Self {
            first,
            most,
            failures: 0,
        }
    }

    /// Takes note of a success.
    pub(crate) fn reset(&mut self) {
        self.failures = 0;
    }

    /// Takes note of a failure and says how long to wait.
    pub(crate) fn failed(&mut self) -> Duration {
        let wait = self
            .first
            .saturating_mul(1 << self.failures.min(16))
            .min(self.most);
        self.failures = self.failures.saturating_add(1);
        jittered(wait)
    }
}

/// Between half of `wait` and all of it.
pub(crate) fn jittered(wait: Duration) -> Duration {
    wait.mul_f64(0.5 + fastrand::f64() / 2.0)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::BackOff;

    #[test]
    fn waits_double_up_to_the_most_and_start_over_after_a_success() {
        let second = Duration::from_secs(1);
        let mut back_off = BackOff::new(second, 5 * second);
        for full in [1, 2, 4, 5, 5] {
            let wait = back_off.failed();
            assert!(
                wait >= full * second / 2 && wait <= full * second,
                "{wait:?}"
            );
        }
        back_off.reset();
        assert!(back_off.failed() <= second);
    }
}
