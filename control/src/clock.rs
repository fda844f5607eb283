//! The one place that reads the clocks of the machine, and the two forms in which
//! moments are kept.

use std::time::Instant;

use fastllm_contract::Timestamp;
use time::OffsetDateTime;

/// The wall clock, in UTC.
pub(crate) fn now() -> OffsetDateTime {
    OffsetDateTime::now_utc()
}

/// The clock for measuring how long something took.
#[expect(clippy::disallowed_methods, reason = "this is the clock module")]
pub(crate) fn monotonic() -> Instant {
    Instant::now()
}

/// A moment as gateways write it, in whole microseconds.
pub(crate) fn timestamp(at: OffsetDateTime) -> Timestamp {
    let micros = at.unix_timestamp_nanos().div_euclid(1000);
    Timestamp(i64::try_from(micros).unwrap_or(i64::MAX))
}

/// A moment as the database keeps it; nothing outside the years that it can.
pub(crate) fn moment(at: Timestamp) -> Option<OffsetDateTime> {
    OffsetDateTime::from_unix_timestamp_nanos(i128::from(at.0) * 1000)
        .ok()
        .filter(|at| (1..=9999).contains(&at.year()))
}
