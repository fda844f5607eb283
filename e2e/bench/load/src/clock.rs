//! The only module of this crate that reads a clock.

use std::time::Instant;

/// The current time, for measurements.
#[expect(clippy::disallowed_methods, reason = "this is the clock module")]
pub(crate) fn now() -> Instant {
    Instant::now()
}
