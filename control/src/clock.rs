//! The one place that reads the clocks of the machine.

use std::time::Instant;

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
