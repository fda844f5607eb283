//! The only place of this crate that reads a clock.

use std::time::Instant;

/// Now, for measuring.
#[expect(clippy::disallowed_methods, reason = "this is the clock module")]
pub(crate) fn now() -> Instant {
    Instant::now()
}
