//! Delays between attempts that grow with each failure.

use std::time::Duration;

/// Largest number of doublings.
const MAX_DOUBLINGS: u32 = 16;

/// Bounds of a back-off.
#[derive(Debug, Clone, Copy)]
pub struct Config {
    /// Delay after the first failure, before jitter.
    pub first: Duration,
    /// Longest delay, before jitter.
    pub longest: Duration,
    /// Random part of each delay.
    pub jitter: Jitter,
}

/// Delays that double from the first to the longest.
#[derive(Debug, Clone, Copy)]
pub struct BackOff {
    config: Config,
    failures: u32,
}

/// Range of the random factor that a delay is multiplied by, so that several
/// processes do not act at the same moment.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Jitter {
    /// Smallest factor.
    pub min: f64,
    /// Largest factor.
    pub max: f64,
}

impl Config {
    /// A back-off with [`Jitter::HALF`].
    pub const fn new(first: Duration, longest: Duration) -> Self {
        Self {
            first,
            longest,
            jitter: Jitter::HALF,
        }
    }

    /// The same bounds with another jitter.
    #[must_use]
    pub const fn with_jitter(self, jitter: Jitter) -> Self {
        Self { jitter, ..self }
    }

    /// A back-off without failures so far.
    pub const fn build(self) -> BackOff {
        BackOff {
            config: self,
            failures: 0,
        }
    }
}

impl BackOff {
    /// Starts over after a success.
    pub fn reset(&mut self) {
        self.failures = 0;
    }

    /// Counts a failure and returns the delay before the next attempt.
    pub fn next_delay(&mut self) -> Duration {
        let Config {
            first,
            longest,
            jitter,
        } = self.config;
        let delay = first
            .saturating_mul(1 << self.failures.min(MAX_DOUBLINGS))
            .min(longest);
        self.failures = self.failures.saturating_add(1);
        jitter.apply(delay)
    }
}

impl Jitter {
    /// Exact delays.
    pub const NONE: Self = Self { min: 1.0, max: 1.0 };

    /// Between half of the delay and all of it.
    pub const HALF: Self = Self { min: 0.5, max: 1.0 };

    /// Multiplies `delay` by a random factor of the range.
    pub fn apply(self, delay: Duration) -> Duration {
        delay.mul_f64(self.min + fastrand::f64() * (self.max - self.min))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::{Config, Jitter};

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn delays_double_up_to_the_longest_and_start_over_after_a_success() {
        let mut back_off = Config::new(SECOND, 5 * SECOND).build();
        for full in [1, 2, 4, 5, 5] {
            let delay = back_off.next_delay();
            assert!(
                delay >= full * SECOND / 2 && delay <= full * SECOND,
                "{delay:?}"
            );
        }
        back_off.reset();
        assert!(back_off.next_delay() <= SECOND);
    }

    #[test]
    fn delays_without_jitter_are_exact() {
        let config = Config::new(SECOND, Duration::MAX).with_jitter(Jitter::NONE);
        let mut back_off = config.build();
        for full in [1, 2, 4, 8] {
            assert_eq!(back_off.next_delay(), full * SECOND);
        }
        back_off.failures = u32::MAX;
        assert_eq!(back_off.next_delay(), 65_536 * SECOND);
    }

    #[test]
    fn jitter_stays_in_its_range() {
        let jitter = Jitter { min: 0.8, max: 1.2 };
        for _ in 0..100 {
            let delay = jitter.apply(10 * SECOND);
            assert!(delay >= 8 * SECOND && delay <= 12 * SECOND, "{delay:?}");
        }
    }
}
