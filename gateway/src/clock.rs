//! The only place of this crate that reads a clock.

use std::time::{Instant, SystemTime, UNIX_EPOCH};

use fastllm_contract::Timestamp;

/// Now, for measuring.
#[expect(clippy::disallowed_methods, reason = "this is the clock module")]
pub(crate) fn now() -> Instant {
    Instant::now()
}

/// Now, for expiry and for usage events.
#[expect(clippy::disallowed_methods, reason = "this is the clock module")]
pub(crate) fn timestamp() -> Timestamp {
    let since = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    Timestamp(i64::try_from(since.as_micros()).unwrap_or(i64::MAX))
}
