//! Metrics, logs and traces.

mod access;
mod metrics;
mod traces;

pub(crate) use access::{AccessLine, Shown, TARGET as ACCESS_TARGET};
pub use metrics::MetadataLabels;
pub(crate) use metrics::{CacheUse, DropReason, Metrics, OpenConnection, Outcome, Series};
pub use traces::OtelProtocol;
pub(crate) use traces::{Finished, Trace, TraceExporter, TraceId, Tracer, start_tracing};
