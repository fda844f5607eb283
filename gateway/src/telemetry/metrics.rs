mod addresses;
mod cache;
mod connections;
mod contact;
mod labelled;
mod observed;
mod register;
mod usage;

pub(crate) use cache::CacheUse;
pub(crate) use connections::OpenConnection;
pub(crate) use observed::Observed;
pub use usage::MetadataLabels;

use std::time::Duration;

use fastllm_contract::{Metadata, ProcessCounters};
use fastllm_engine::{BackendMetrics, Category, RoutingState};
use fastllm_wire::Usage;
use http::StatusCode;
use prometheus::core::{AtomicU64, GenericGauge};
use prometheus::{Encoder, Histogram, IntCounter, IntGauge, Registry, TextEncoder};

use addresses::AddressMetrics;
use cache::CacheMetrics;
use connections::ConnectionMetrics;
use contact::ControlContact;
use labelled::LabelledMetrics;
use observed::Observer;
use register::{Register, Registered};
use usage::ByMetadata;

use crate::runtime::clock;

/// How a proxied request ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// The response was successful and complete.
    Ok,
    /// Rejected by the gateway.
    Rejected,
    /// The upstream responded with an error, or aborted its response.
    UpstreamError,
    /// No upstream responded.
    Unavailable,
    /// The client disconnected before its response was complete.
    ClientGone,
}

impl Outcome {
    const ALL: [(Self, &'static str); 5] = [
        (Self::Ok, "ok"),
        (Self::Rejected, "rejected"),
        (Self::UpstreamError, "upstream_error"),
        (Self::Unavailable, "unavailable"),
        (Self::ClientGone, "client_gone"),
    ];
}

/// The kinds of upstream responses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Class {
    Success,
    ClientError,
    RateLimited,
    ServerError,
}

impl Class {
    const ALL: [(Self, &'static str); 4] = [
        (Self::Success, "success"),
        (Self::ClientError, "client_error"),
        (Self::RateLimited, "rate_limited"),
        (Self::ServerError, "server_error"),
    ];

    fn of(status: StatusCode) -> Self {
        match status.as_u16() {
            429 => Self::RateLimited,
            500.. => Self::ServerError,
            400.. => Self::ClientError,
            _ => Self::Success,
        }
    }
}

/// Why a usage event was dropped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum DropReason {
    /// The queue of billable events was full, and no spill file was the reason.
    QueueFull,
    /// The queue of rejected requests was full.
    RefusedQueueFull,
    /// Control rejected the batch permanently (400, 413).
    BatchRefused,
    /// Control stored the batch without the event: its principal or model no
    /// longer exists.
    NotStored,
    /// Control did not accept it before the gateway exited.
    Shutdown,
    /// The queue of billable events was full because the spill file was full.
    SpillFull,
    /// The queue of billable events was full because the spill file could not be
    /// written.
    SpillFailed,
    /// The spill file was damaged at this event.
    SpillDamaged,
}

impl DropReason {
    const ALL: [(Self, &'static str); 8] = [
        (Self::QueueFull, "queue_full"),
        (Self::RefusedQueueFull, "refused_queue_full"),
        (Self::BatchRefused, "batch_refused"),
        (Self::NotStored, "not_stored"),
        (Self::Shutdown, "shutdown"),
        (Self::SpillFull, "spill_full"),
        (Self::SpillFailed, "spill_failed"),
        (Self::SpillDamaged, "spill_damaged"),
    ];
}

/// Why a span was dropped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SpanLoss {
    /// The queue was full.
    QueueFull,
    /// The collector rejected it permanently.
    Refused,
    /// The collector was unavailable for too long.
    Unreachable,
    /// It was not accepted before the gateway exited.
    Shutdown,
}

impl SpanLoss {
    const ALL: [(Self, &'static str); 4] = [
        (Self::QueueFull, "queue_full"),
        (Self::Refused, "refused"),
        (Self::Unreachable, "unreachable"),
        (Self::Shutdown, "shutdown"),
    ];
}

/// All metrics of the process. Labels come from fixed lists or from the
/// snapshot, never from a client.
#[derive(Debug)]
pub(crate) struct Metrics {
    registry: Registry,
    requests: Requests,
    labelled: LabelledMetrics,
    addresses: AddressMetrics,
    contact: ControlContact,
    connections: ConnectionMetrics,
    spans_exported: IntCounter,
    spans_lost: Vec<IntCounter>,
    usage_dropped: Vec<IntCounter>,
    usage_implausible: IntCounter,
    usage_queued: IntGauge,
    usage_spilled: IntGauge,
    usage_spill_bytes: IntGauge,
    by_metadata: Option<ByMetadata>,
    cache: CacheMetrics,
    snapshot_version: GenericGauge<AtomicU64>,
    snapshot_poll_failures: IntCounter,
    dns_failures: IntCounter,
    observer: Observer,
}

/// Counters over all requests.
#[derive(Debug)]
struct Requests {
    finished: IntCounter,
    failed: IntCounter,
    outcomes: Vec<IntCounter>,
    rejections: Vec<IntCounter>,
    upstream_status: Vec<IntCounter>,
    retries: IntCounter,
    failovers: IntCounter,
    fallbacks: IntCounter,
    duration: Histogram,
    first_token: Histogram,
}

impl Requests {
    fn new(register: &Register) -> Registered<Self> {
        Ok(Self {
            finished: register.counter("fastllm_requests_total", "Finished proxied requests")?,
            failed: register.counter(
                "fastllm_requests_failed_total",
                "Proxied requests that failed",
            )?,
            outcomes: register.fixed(
                "fastllm_request_outcomes_total",
                "Proxied requests by outcome",
                "outcome",
                Outcome::ALL.map(|(_, label)| label),
            )?,
            rejections: register.fixed(
                "fastllm_rejections_total",
                "Requests rejected by the gateway",
                "reason",
                Category::ALL.map(Category::as_str),
            )?,
            upstream_status: register.fixed(
                "fastllm_upstream_status_total",
                "Upstream responses that were forwarded",
                "class",
                Class::ALL.map(|(_, label)| label),
            )?,
            retries: register.counter("fastllm_retries_total", "Retries within one model")?,
            failovers: register.counter(
                "fastllm_failovers_total",
                "Fallbacks to the next model of a chain",
            )?,
            fallbacks: register.counter(
                "fastllm_fallback_used_total",
                "Requests that the fallback model served",
            )?,
            duration: register.histogram(
                "fastllm_request_duration_seconds",
                "From arrival to the end of the response",
            )?,
            first_token: register.histogram(
                "fastllm_time_to_first_token_seconds",
                "Time from arrival to the first event of a stream",
            )?,
        })
    }
}

impl Metrics {
    pub(crate) fn new() -> Registered<Self> {
        let register = Register::default();
        let version = ["version"];
        register
            .gauges("fastllm_build_info", "Release of this gateway", &version)?
            .with_label_values(&[env!("CARGO_PKG_VERSION")])
            .set(1);
        Ok(Self {
            requests: Requests::new(&register)?,
            labelled: LabelledMetrics::new(&register)?,
            addresses: AddressMetrics::new(&register)?,
            contact: ControlContact::new(&register)?,
            connections: ConnectionMetrics::new(&register)?,
            cache: CacheMetrics::new(&register)?,
            spans_exported: register.counter(
                "fastllm_trace_spans_exported_total",
                "Spans that the collector accepted",
            )?,
            spans_lost: register.fixed(
                "fastllm_trace_spans_dropped_total",
                "Dropped spans",
                "reason",
                SpanLoss::ALL.map(|(_, label)| label),
            )?,
            usage_dropped: register.fixed(
                "fastllm_usage_reports_dropped_total",
                "Dropped usage events",
                "reason",
                DropReason::ALL.map(|(_, label)| label),
            )?,
            usage_implausible: register.counter(
                "fastllm_usage_implausible_total",
                "Responses whose reported token counts were implausible",
            )?,
            usage_queued: register.gauge(
                "fastllm_usage_queue_depth",
                "Usage events waiting to be sent",
            )?,
            usage_spilled: register.gauge(
                "fastllm_usage_spill_events",
                "Usage events queued in the spill file",
            )?,
            usage_spill_bytes: register
                .gauge("fastllm_usage_spill_bytes", "Size of the spill file")?,
            by_metadata: None,
            snapshot_version: register.count(
                "fastllm_snapshot_version",
                "Version of the current snapshot",
            )?,
            snapshot_poll_failures: register.counter(
                "fastllm_snapshot_poll_failures_total",
                "Failed attempts to fetch or use a snapshot",
            )?,
            dns_failures: register.counter(
                "fastllm_dns_failures_total",
                "Failed lookups of upstream names",
            )?,
            observer: Observer::default(),
            registry: register.into_registry(),
        })
    }

    /// Like `new`, with usage counted by these client-chosen members of
    /// `metadata`.
    pub(crate) fn with_labels(mut self, labels: &MetadataLabels) -> Registered<Self> {
        let register = Register::of(&self.registry);
        self.by_metadata = ByMetadata::new(&register, labels)?;
        Ok(self)
    }

    /// Counts the usage of a request with this `metadata`.
    pub(crate) fn used(&self, metadata: Option<&Metadata>, usage: Option<&Usage>) {
        if let Some(by_metadata) = &self.by_metadata {
            by_metadata.count(metadata, usage);
        }
    }

    /// Counts a response whose reported usage is not used.
    pub(crate) fn usage_implausible(&self) {
        self.usage_implausible.inc();
    }

    /// Sets the contents of the spill file.
    pub(crate) fn usage_spilled(&self, events: u64, bytes: u64) {
        self.usage_spilled
            .set(i64::try_from(events).unwrap_or(i64::MAX));
        self.usage_spill_bytes
            .set(i64::try_from(bytes).unwrap_or(i64::MAX));
    }

    /// Counts a proxied request that has ended.
    pub(crate) fn finished(&self, outcome: Outcome, took: Duration) {
        self.requests.finished.inc();
        self.requests.outcomes[outcome as usize].inc();
        if !matches!(outcome, Outcome::Ok | Outcome::ClientGone) {
            self.requests.failed.inc();
        }
        self.requests.duration.observe(took.as_secs_f64());
    }

    /// Counts a rejected request.
    pub(crate) fn rejected(&self, category: Category) {
        self.requests.rejections[category as usize].inc();
    }

    /// Counts an upstream response that is forwarded to the client.
    pub(crate) fn forwarded(&self, status: StatusCode) {
        self.requests.upstream_status[Class::of(status) as usize].inc();
    }

    /// Counts a failover to the next model of a chain.
    pub(crate) fn failed_over(&self) {
        self.requests.failovers.inc();
    }

    /// Counts a response of the fallback model.
    pub(crate) fn fallback_used(&self) {
        self.requests.fallbacks.inc();
    }

    /// Counts a retry with another backend.
    pub(crate) fn retried(&self) {
        self.requests.retries.inc();
    }

    /// Observes the time to the first event of a stream.
    pub(crate) fn first_event(&self, series: Option<&dyn BackendMetrics>, after: Duration) {
        self.requests.first_token.observe(after.as_secs_f64());
        if let Some(series) = series {
            series.record_first_event(after);
        }
    }

    /// Counts spans that the collector accepted.
    pub(crate) fn spans_exported(&self, count: u64) {
        self.spans_exported.inc_by(count);
    }

    /// Counts dropped spans.
    pub(crate) fn spans_lost(&self, loss: SpanLoss, count: u64) {
        self.spans_lost[loss as usize].inc_by(count);
    }

    /// Counts a client connection.
    pub(crate) fn client_connected(&self) -> OpenConnection {
        self.connections.client()
    }

    /// Counts an upstream connection.
    pub(crate) fn upstream_connected(&self) -> OpenConnection {
        self.connections.upstream()
    }

    /// Counts lost usage events.
    pub(crate) fn usage_lost(&self, reason: DropReason, count: u64) {
        self.usage_dropped[reason as usize].inc_by(count);
    }

    /// Counts a use of the response cache.
    pub(crate) fn cache(&self, cache: CacheUse) {
        self.cache.used(cache);
    }

    /// Sets the source of values that are measured when metrics are read. Only
    /// the first call has an effect.
    pub(crate) fn observe_with(&self, observe: impl Fn() -> Observed + Send + Sync + 'static) {
        self.observer.set(observe);
    }

    /// Records a response of control to a poll.
    pub(crate) fn control_answered(&self) {
        self.contact.heard();
    }

    /// Counts a failed poll.
    pub(crate) fn poll_failed(&self) {
        self.snapshot_poll_failures.inc();
    }

    /// Counts a failed DNS lookup of an upstream.
    pub(crate) fn name_not_found(&self) {
        self.dns_failures.inc();
    }

    /// Attaches metrics to the backends of a snapshot that is about to be
    /// served.
    pub(crate) fn attach(&self, tables: &RoutingState) {
        self.labelled.attach(tables);
    }

    /// Records a new snapshot, and removes the labels of models and addresses
    /// that no longer exist.
    pub(crate) fn snapshot_published(&self, tables: &RoutingState) {
        self.snapshot_version.set(tables.version());
        self.contact.published();
        self.addresses.published(tables);
        self.labelled.prune(tables, &self.addresses);
    }

    /// Renders the text format 0.0.4.
    pub(crate) fn render(&self, tables: Option<&RoutingState>) -> Vec<u8> {
        let Observed {
            usage_queued,
            cache,
        } = self.observer.observe();
        self.usage_queued
            .set(i64::try_from(usage_queued).unwrap_or(i64::MAX));
        self.cache.set_occupancy(cache);
        self.contact.update(tables.is_some());
        if let Some(tables) = tables {
            self.addresses.update(tables);
        }
        let mut families = self.registry.gather();
        if let Some(tables) = tables {
            match addresses::gauges(tables, clock::timestamp()) {
                Ok(more) => families.extend(more),
                Err(error) => tracing::error!(%error, "cannot create the metrics of a backend"),
            }
        }
        let mut text = Vec::new();
        if let Err(error) = TextEncoder::new().encode(&families, &mut text) {
            tracing::error!(%error, "cannot encode the metrics");
        }
        text
    }

    /// The counters that a health report contains.
    pub(crate) fn process(&self) -> ProcessCounters {
        let Observed {
            usage_queued,
            cache,
        } = self.observer.observe();
        ProcessCounters {
            cache_hits: self.cache.uses(CacheUse::Hit),
            cache_misses: self.cache.uses(CacheUse::Miss),
            cache_entries: cache.entries,
            cache_bytes: cache.bytes,
            requests_ok: self.requests.outcomes[Outcome::Ok as usize].get(),
            requests_failed: self.requests.failed.get(),
            usage_dropped: self.usage_dropped.iter().map(IntCounter::get).sum(),
            usage_queued: usage_queued as u64,
            rejected_unauthenticated: self.requests.rejections[Category::Unauthenticated as usize]
                .get(),
            rejected_model_not_found: self.requests.rejections[Category::ModelNotFound as usize]
                .get(),
        }
    }
}

#[cfg(test)]
mod tests;
