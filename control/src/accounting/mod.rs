//! What usage events say and what they add to budgets, without the database.

mod event;
mod poison;
mod spending;

use fastllm_contract::Timestamp;
use time::OffsetDateTime;

pub(crate) use event::{Event, read};
pub(crate) use poison::Poison;
pub(crate) use spending::{AppliedBudget, Spending, Used};

/// A moment as the database has it; nothing outside the calendar.
fn moment(at: Timestamp) -> Option<OffsetDateTime> {
    OffsetDateTime::from_unix_timestamp_nanos(i128::from(at.0) * 1000).ok()
}

/// A moment as gateways have it, in whole microseconds.
pub(crate) fn timestamp(at: OffsetDateTime) -> Timestamp {
    let micros = at.unix_timestamp_nanos().div_euclid(1000);
    Timestamp(i64::try_from(micros).unwrap_or(i64::MAX))
}
