//! Metrics and logs.

mod logging;
mod metrics;

pub use logging::{LogError, LogFormat, LogGuard, init_logging};
pub(crate) use metrics::{DropReason, Metrics, Outcome};
