//! Metrics, logs and traces.

mod access;
mod metrics;
mod traces;

pub(crate) use access::{AccessLine, Displayed, TARGET as ACCESS_TARGET};
pub use metrics::MetadataLabels;
pub(crate) use metrics::{CacheUse, DropReason, Metrics, Observed, OpenConnection, Outcome};
pub use traces::OtelProtocol;
pub(crate) use traces::{FinishedRequest, Trace, TraceExporter, TraceId, Tracer, TracingConfig};
