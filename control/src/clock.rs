//! The only module that reads the system clocks, and conversions between the two
//! representations of time.

use std::time::Instant;

use fastllm_contract::Timestamp;
use time::OffsetDateTime;

/// The wall clock, in UTC.
pub(crate) fn now() -> OffsetDateTime {
    OffsetDateTime::now_utc()
}

/// The monotonic clock, to measure durations.
#[expect(clippy::disallowed_methods, reason = "this is the clock module")]
pub(crate) fn monotonic() -> Instant {
    Instant::now()
}

/// Converts to the representation of gateways: whole microseconds.
pub(crate) fn timestamp(at: OffsetDateTime) -> Timestamp {
    let micros = at.unix_timestamp_nanos().div_euclid(1000);
    Timestamp(i64::try_from(micros).unwrap_or(i64::MAX))
}

/// Converts to the representation of the database. `None` for times that the
/// database cannot store.
pub(crate) fn moment(at: Timestamp) -> Option<OffsetDateTime> {
    OffsetDateTime::from_unix_timestamp_nanos(i128::from(at.0) * 1000)
        .ok()
        .filter(|at| (1..=9999).contains(&at.year()))
}
