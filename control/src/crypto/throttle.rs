use std::collections::HashMap;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::digest;

/// The number of failed logins without a delay.
const FREE_FAILURES: u32 = 5;
const MAX_WAIT: Duration = Duration::from_mins(1);
/// Failures are forgotten after this time without another one.
const FORGOTTEN_AFTER: Duration = Duration::from_mins(15);
/// The maximum number of names; the one that failed longest ago is evicted.
const MAX_NAMES: usize = 10_000;

/// Slows down password guessing: after [`FREE_FAILURES`] failed logins for a name,
/// each further failure doubles the delay before the next attempt, up to
/// [`MAX_WAIT`], so that an attacker cannot lock out a user for longer.
#[derive(Default)]
pub(crate) struct LoginThrottle(Mutex<HashMap<[u8; 32], Failures>>);

struct Failures {
    count: u32,
    last: Instant,
}

impl Failures {
    fn wait(&self) -> Duration {
        let over = self.count.saturating_sub(FREE_FAILURES - 1);
        if over == 0 {
            return Duration::ZERO;
        }
        Duration::from_secs(1 << over.min(6)).min(MAX_WAIT)
    }
}

impl LoginThrottle {
    /// `Ok` if an attempt may be made now, otherwise the remaining delay.
    pub(crate) fn admit(&self, name: &str, now: Instant) -> Result<(), Duration> {
        let held = self.0.lock();
        let Some(failures) = held.get(&digest(name.as_bytes())) else {
            return Ok(());
        };
        let wait = failures
            .wait()
            .saturating_sub(now.duration_since(failures.last));
        if wait.is_zero() { Ok(()) } else { Err(wait) }
    }

    pub(crate) fn failed(&self, name: &str, now: Instant) {
        let mut held = self.0.lock();
        let key = digest(name.as_bytes());
        if held.len() >= MAX_NAMES && !held.contains_key(&key) {
            held.retain(|_, failures| now.duration_since(failures.last) < FORGOTTEN_AFTER);
            let oldest = held
                .iter()
                .min_by_key(|(_, failures)| failures.last)
                .map(|(key, _)| *key);
            if let Some(oldest) = oldest.filter(|_| held.len() >= MAX_NAMES) {
                held.remove(&oldest);
            }
        }
        let failures = held.entry(key).or_insert(Failures {
            count: 0,
            last: now,
        });
        if now.duration_since(failures.last) >= FORGOTTEN_AFTER {
            failures.count = 0;
        }
        failures.count = failures.count.saturating_add(1);
        failures.last = now;
    }

    pub(crate) fn succeeded(&self, name: &str) {
        self.0.lock().remove(&digest(name.as_bytes()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock;

    #[test]
    fn delay_grows_up_to_its_bound() {
        let throttle = LoginThrottle::default();
        let mut now = clock::monotonic();
        for _ in 0..FREE_FAILURES {
            assert_eq!(throttle.admit("root", now), Ok(()));
            throttle.failed("root", now);
        }
        assert_eq!(throttle.admit("root", now), Err(Duration::from_secs(2)));
        assert_eq!(throttle.admit("other", now), Ok(()));
        for _ in 0..20 {
            throttle.failed("root", now);
        }
        assert_eq!(throttle.admit("root", now), Err(MAX_WAIT));
        now += MAX_WAIT;
        assert_eq!(throttle.admit("root", now), Ok(()));
        throttle.succeeded("root");
        throttle.failed("root", now);
        assert_eq!(throttle.admit("root", now), Ok(()));
    }

    #[test]
    fn number_of_names_is_bounded() {
        let throttle = LoginThrottle::default();
        let now = clock::monotonic();
        for number in 0..MAX_NAMES + 50 {
            throttle.failed(
                &number.to_string(),
                now + Duration::from_micros(number as u64),
            );
        }
        assert_eq!(throttle.0.lock().len(), MAX_NAMES);
    }
}
