//! The only module of this crate that reads a clock.

use std::cell::Cell;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use fastllm_contract::Timestamp;

/// How long the time of day is derived from one reading of the system clock.
const ANCHORED: Duration = Duration::from_secs(1);

thread_local! {
    static LAST: Cell<Option<Instant>> = const { Cell::new(None) };
    static ANCHOR: Cell<Option<(Instant, i64)>> = const { Cell::new(None) };
}

/// Now, for measuring durations.
#[expect(clippy::disallowed_methods, reason = "this is the clock module")]
pub(crate) fn now() -> Instant {
    let now = Instant::now();
    LAST.set(Some(now));
    now
}

/// The last reading of this thread. Use it only where [`now`] was called shortly
/// before, and nothing was awaited since.
pub(crate) fn recent() -> Instant {
    LAST.get().unwrap_or_else(now)
}

/// The current time of day.
pub(crate) fn timestamp() -> Timestamp {
    timestamp_of(now())
}

/// The time of day at a moment of the last second, derived from a reading of the
/// system clock that is at most a second old.
pub(crate) fn timestamp_of(moment: Instant) -> Timestamp {
    let anchored = ANCHOR.get().and_then(|(anchor, at)| {
        let since = moment.checked_duration_since(anchor)?;
        (since < ANCHORED).then(|| at.saturating_add(micros(since)))
    });
    Timestamp(anchored.unwrap_or_else(|| {
        let at = time_of_day();
        ANCHOR.set(Some((now(), at)));
        at
    }))
}

#[expect(clippy::disallowed_methods, reason = "this is the clock module")]
fn time_of_day() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    micros(since.unwrap_or_default())
}

fn micros(duration: Duration) -> i64 {
    i64::try_from(duration.as_micros()).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::{ANCHORED, now, recent, time_of_day, timestamp, timestamp_of};

    #[test]
    fn the_time_of_day_is_derived_from_a_reading() {
        assert_eq!(now(), recent());
        let before = time_of_day();
        let first = timestamp().0;
        let second = timestamp().0;
        let after = time_of_day();
        assert!(before - 1000 <= first && first <= second && second <= after + 1000);
        // Later, the system clock is read again.
        let later = timestamp_of(now() + ANCHORED * 3).0;
        assert!((second..after + 1_000_000).contains(&later), "{later}");
    }
}
