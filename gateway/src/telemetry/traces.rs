//! Traces: which requests are traced, and how their spans reach a collector
//! (OTLP). A request that is not traced costs one header lookup and one counter;
//! a traced one becomes one span, built from its request log when it has ended.

mod collector;
mod export;
mod parent;
mod span;

use std::fmt;
use std::num::NonZeroU64;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use fastllm_contract::Secret;
use http::header::HeaderValue;
use tokio::sync::mpsc::{self, Sender};
use url::Url;

pub use collector::OtelProtocol;
pub(crate) use collector::TracerError;
pub(crate) use export::TraceExporter;
pub(crate) use span::FinishedRequest;

use collector::Collector;
use parent::Parent;

use super::Metrics;
use super::metrics::SpanLoss;

/// The maximum number of queued spans; further ones are dropped and counted.
const WAITING: usize = 4_096;

/// Samples requests and enqueues their spans. Never waits.
#[derive(Debug)]
pub(crate) struct Tracer {
    one_in: NonZeroU64,
    seen: AtomicU64,
    queue: Sender<FinishedRequest>,
    metrics: Arc<Metrics>,
}

/// Where spans are sent, and which requests are traced.
#[derive(Debug, Clone)]
pub(crate) struct TracingConfig {
    pub(crate) endpoint: Url,
    pub(crate) protocol: OtelProtocol,
    /// Header fields for the collector: `name=value,name=value`, with
    /// percent-encoded values.
    pub(crate) headers: Option<Secret>,
    /// One in this many requests without a sampling decision is traced.
    pub(crate) sample_one_in: NonZeroU64,
    pub(crate) service_name: String,
    pub(crate) instance_id: String,
    /// Additional attributes of this process, in the format of `headers`.
    pub(crate) resource_attributes: String,
}

impl TracingConfig {
    /// A tracer, and the task that exports its spans.
    pub(crate) fn build(
        &self,
        tls: rustls::ClientConfig,
        metrics: &Arc<Metrics>,
    ) -> Result<(Tracer, TraceExporter), TracerError> {
        let collector = Collector::new(self, tls)?;
        let (queue, waiting) = mpsc::channel(WAITING);
        let tracer = Tracer::new(self.sample_one_in, queue, Arc::clone(metrics));
        let resource = span::resource(self);
        let exporter = TraceExporter::new(collector, resource, waiting, Arc::clone(metrics));
        Ok((tracer, exporter))
    }
}

/// Whether one request is traced, and its IDs.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Trace {
    parent: Option<Parent>,
    decision: Decision,
}

#[derive(Debug, Clone, Copy, Default)]
enum Decision {
    #[default]
    Open,
    No,
    Yes(SpanIds),
}

/// The identity of a span.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct SpanIds {
    pub(crate) trace: [u8; 16],
    pub(crate) span: [u8; 8],
    pub(crate) parent: Option<[u8; 8]>,
}

/// A trace ID in its standard text form.
#[derive(Debug, Clone, Copy)]
pub(crate) struct TraceId([u8; 16]);

impl fmt::Display for TraceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", u128::from_be_bytes(self.0))
    }
}

impl Tracer {
    fn new(one_in: NonZeroU64, queue: Sender<FinishedRequest>, metrics: Arc<Metrics>) -> Self {
        Self {
            one_in,
            seen: AtomicU64::new(0),
            queue,
            metrics,
        }
    }

    /// Decides, once, whether a proxied request is traced: as its caller did, or
    /// else one of a fixed number of requests.
    pub(crate) fn decide(&self, trace: &mut Trace) {
        if !matches!(trace.decision, Decision::Open) {
            return;
        }
        let chosen = || {
            let before = self.seen.fetch_add(1, Ordering::Relaxed);
            before.is_multiple_of(self.one_in.get())
        };
        let sampled = trace.parent.map(|parent| parent.sampled);
        trace.decision = if sampled.unwrap_or_else(chosen) {
            Decision::Yes(SpanIds::new(trace.parent))
        } else {
            Decision::No
        };
    }

    /// Enqueues the span of a finished request.
    pub(crate) fn take(&self, finished: FinishedRequest) {
        if self.queue.try_send(finished).is_err() {
            self.metrics.spans_lost(SpanLoss::QueueFull, 1);
        }
    }
}

impl SpanIds {
    fn new(parent: Option<Parent>) -> Self {
        // Zero is not a valid ID.
        let span = fastrand::u64(1..).to_be_bytes();
        match parent {
            Some(parent) => Self {
                trace: parent.trace,
                span,
                parent: Some(parent.span),
            },
            None => Self {
                trace: fastrand::u128(1..).to_be_bytes(),
                span,
                parent: None,
            },
        }
    }
}

impl Trace {
    /// The trace of a request that arrived with these `traceparent` fields.
    /// Whether it is sampled is decided later.
    pub(crate) fn arrived<'a>(traceparents: impl Iterator<Item = &'a [u8]>) -> Self {
        Self {
            parent: Parent::of(traceparents),
            decision: Decision::Open,
        }
    }

    /// The identity of the request's span, if it has one.
    pub(crate) fn ids(&self) -> Option<SpanIds> {
        match self.decision {
            Decision::Yes(ids) => Some(ids),
            Decision::Open | Decision::No => None,
        }
    }

    /// The trace of the request, whether recorded here or only by others.
    pub(crate) fn id(&self) -> Option<TraceId> {
        self.ids()
            .map(|ids| ids.trace)
            .or(self.parent.map(|parent| parent.trace))
            .map(TraceId)
    }

    /// The `traceparent` that replaces the client's; nothing if the client's is
    /// forwarded unchanged.
    pub(crate) fn upstream_traceparent(&self) -> Option<HeaderValue> {
        self.ids().map(|ids| parent::header(&ids))
    }
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU64;
    use std::sync::Arc;

    use tokio::sync::mpsc;

    use super::{Trace, Tracer};
    use crate::telemetry::Metrics;

    fn tracer(one_in: u64) -> Tracer {
        let (queue, _) = mpsc::channel(1);
        let metrics = Arc::new(Metrics::new().unwrap());
        Tracer::new(NonZeroU64::new(one_in).unwrap(), queue, metrics)
    }

    fn decided(tracer: &Tracer, traceparent: Option<&'static str>) -> Trace {
        let mut trace = Trace::arrived(traceparent.map(str::as_bytes).into_iter());
        tracer.decide(&mut trace);
        tracer.decide(&mut trace);
        trace
    }

    const CALLER: &str = "0af7651916cd43dd8448eb211c80319c";
    const YES: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
    const NO: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00";

    #[test]
    fn the_sampling_rate_is_exact() {
        let tracer = tracer(3);
        let chosen: Vec<bool> = (0..9)
            .map(|_| decided(&tracer, None).ids().is_some())
            .collect();
        let thrice = [true, false, false].repeat(3);
        assert_eq!(chosen, thrice);
    }

    #[test]
    fn the_callers_decision_applies_and_is_not_counted() {
        let tracer = tracer(2);
        for _ in 0..5 {
            assert!(decided(&tracer, Some(NO)).ids().is_none());
            assert!(decided(&tracer, Some(YES)).ids().is_some());
        }
        assert!(decided(&tracer, None).ids().is_some());
        assert!(decided(&tracer, None).ids().is_none());
    }

    #[test]
    fn upstreams_receive_the_gateways_span_in_the_callers_trace() {
        let trace = decided(&tracer(1), Some(YES));
        let ids = trace.ids().unwrap();
        assert_eq!(trace.id().unwrap().to_string(), CALLER);
        assert_eq!(ids.parent.unwrap(), 0xb7ad_6b71_6920_3331_u64.to_be_bytes());
        let traceparent = trace.upstream_traceparent().unwrap();
        let span = u64::from_be_bytes(ids.span);
        assert_eq!(traceparent, format!("00-{CALLER}-{span:016x}-01"));
        assert_ne!(traceparent, YES);

        let untraced = decided(&tracer(1), Some(NO));
        assert!(untraced.upstream_traceparent().is_none());
        assert_eq!(untraced.id().unwrap().to_string(), CALLER);
        assert!(decided(&tracer(1), None).ids().unwrap().parent.is_none());
        assert!(Trace::default().upstream_traceparent().is_none());
    }
}
