use prometheus::{
    Encoder, Histogram, HistogramOpts, IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Opts,
    Registry, TextEncoder,
};

use crate::Error;

/// The metrics of the control plane.
pub(crate) struct Metrics {
    registry: Registry,
    pub(crate) snapshot_version: IntGauge,
    pub(crate) snapshot_waiters: IntGauge,
    pub(crate) builds: IntCounter,
    pub(crate) build_failures: IntCounter,
    pub(crate) build_seconds: Histogram,
    pub(crate) database_up: IntGauge,
    pub(crate) listening: IntGauge,
    connections: IntGaugeVec,
    requests: RequestMetrics,
}

/// Metrics of requests.
struct RequestMetrics {
    usage_batches: IntCounterVec,
    usage_events: IntCounterVec,
    usage_unpriced: IntCounter,
    usage_metadata_dropped: IntCounter,
    logins: IntCounterVec,
    responses: IntCounterVec,
}

impl RequestMetrics {
    fn register(registry: &Registry) -> Result<Self, prometheus::Error> {
        Ok(Self {
            usage_batches: counters(
                registry,
                "fastllm_control_usage_batches_total",
                "Usage batches received from gateways.",
                &["outcome"],
            )?,
            usage_events: counters(
                registry,
                "fastllm_control_usage_events_total",
                "Usage events in these batches.",
                &["outcome"],
            )?,
            usage_unpriced: counter(
                registry,
                "fastllm_control_usage_unpriced_total",
                "Stored usage events of unknown cost.",
            )?,
            usage_metadata_dropped: counter(
                registry,
                "fastllm_control_usage_metadata_dropped_total",
                "Usage events whose metadata was outside its bounds and was dropped.",
            )?,
            logins: counters(
                registry,
                "fastllm_control_logins_total",
                "Login attempts.",
                &["outcome"],
            )?,
            responses: counters(
                registry,
                "fastllm_control_http_requests_total",
                "HTTP requests, by route and status class.",
                &["method", "route", "class"],
            )?,
        })
    }
}

/// The outcome of a usage batch.
#[derive(Debug, Clone, Copy)]
pub(crate) enum BatchLabel {
    Stored,
    Duplicate,
    Refused,
    Failed,
}

/// The outcomes of the events of a batch.
#[derive(Debug, Clone, Copy)]
pub(crate) struct EventCounts {
    pub(crate) accepted: u64,
    /// Accepted events of unknown cost.
    pub(crate) unpriced: u64,
    /// Events of unknown principals or models.
    pub(crate) dropped: u64,
    /// Events that cannot be read or stored.
    pub(crate) rejected: u64,
    /// Accepted events whose metadata was dropped.
    pub(crate) metadata_dropped: u64,
}

/// The outcome of a login.
#[derive(Debug, Clone, Copy)]
pub(crate) enum LoginLabel {
    Succeeded,
    Failed,
    Throttled,
}

impl Metrics {
    pub(crate) fn new() -> Result<Self, Error> {
        let registry = Registry::new();
        Self::register(registry).map_err(Error::Metrics)
    }

    fn register(registry: Registry) -> Result<Self, prometheus::Error> {
        Ok(Self {
            snapshot_version: gauge(
                &registry,
                "fastllm_control_snapshot_version",
                "Version of the published configuration.",
            )?,
            snapshot_waiters: gauge(
                &registry,
                "fastllm_control_snapshot_waiters",
                "Gateways waiting for a change.",
            )?,
            builds: counter(
                &registry,
                "fastllm_control_snapshot_builds_total",
                "Snapshots built.",
            )?,
            build_failures: counter(
                &registry,
                "fastllm_control_snapshot_build_failures_total",
                "Failed snapshot builds.",
            )?,
            build_seconds: build_seconds(&registry)?,
            database_up: gauge(
                &registry,
                "fastllm_control_database_up",
                "1 while the database is available.",
            )?,
            listening: gauge(
                &registry,
                "fastllm_control_database_notifications",
                "1 while the database sends notifications of changes, 0 while it is polled.",
            )?,
            connections: gauges(
                &registry,
                "fastllm_control_database_connections",
                "Open database connections.",
                &["state"],
            )?,
            requests: RequestMetrics::register(&registry)?,
            registry,
        })
    }

    pub(crate) fn usage_batch(&self, outcome: BatchLabel) {
        let label = match outcome {
            BatchLabel::Stored => "stored",
            BatchLabel::Duplicate => "duplicate",
            BatchLabel::Refused => "refused",
            BatchLabel::Failed => "failed",
        };
        self.requests
            .usage_batches
            .with_label_values(&[label])
            .inc();
    }

    /// Records the events of a stored batch.
    pub(crate) fn usage_events(&self, counts: EventCounts) {
        let EventCounts {
            accepted,
            unpriced,
            dropped,
            rejected,
            metadata_dropped,
        } = counts;
        for (outcome, count) in [
            ("accepted", accepted),
            ("dropped", dropped),
            ("rejected", rejected),
        ] {
            self.requests
                .usage_events
                .with_label_values(&[outcome])
                .inc_by(count);
        }
        self.requests.usage_unpriced.inc_by(unpriced);
        self.requests
            .usage_metadata_dropped
            .inc_by(metadata_dropped);
    }

    pub(crate) fn login(&self, outcome: LoginLabel) {
        let label = match outcome {
            LoginLabel::Succeeded => "succeeded",
            LoginLabel::Failed => "failed",
            LoginLabel::Throttled => "throttled",
        };
        self.requests.logins.with_label_values(&[label]).inc();
    }

    /// Records a response. `route` is a pattern and `method` a known method, so that
    /// label values are bounded.
    pub(crate) fn http_request(&self, method: &str, route: &str, status: u16) {
        let class = format!("{}xx", status / 100);
        self.requests
            .responses
            .with_label_values(&[method, route, &class])
            .inc();
    }

    pub(crate) fn connections(&self, idle: usize, size: u32) {
        let idle = i64::try_from(idle).unwrap_or(i64::MAX);
        self.connections.with_label_values(&["idle"]).set(idle);
        self.connections
            .with_label_values(&["used"])
            .set((i64::from(size) - idle).max(0));
    }

    /// The metrics in the Prometheus text format.
    pub(crate) fn render(&self) -> Vec<u8> {
        let mut text = Vec::new();
        if let Err(error) = TextEncoder::new().encode(&self.registry.gather(), &mut text) {
            tracing::error!(%error, "cannot encode metrics");
        }
        text
    }
}

fn gauge(registry: &Registry, name: &str, help: &str) -> Result<IntGauge, prometheus::Error> {
    let metric = IntGauge::new(name, help)?;
    registry.register(Box::new(metric.clone()))?;
    Ok(metric)
}

fn gauges(
    registry: &Registry,
    name: &str,
    help: &str,
    labels: &[&str],
) -> Result<IntGaugeVec, prometheus::Error> {
    let metric = IntGaugeVec::new(Opts::new(name, help), labels)?;
    registry.register(Box::new(metric.clone()))?;
    Ok(metric)
}

fn counter(registry: &Registry, name: &str, help: &str) -> Result<IntCounter, prometheus::Error> {
    let metric = IntCounter::new(name, help)?;
    registry.register(Box::new(metric.clone()))?;
    Ok(metric)
}

fn counters(
    registry: &Registry,
    name: &str,
    help: &str,
    labels: &[&str],
) -> Result<IntCounterVec, prometheus::Error> {
    let metric = IntCounterVec::new(Opts::new(name, help), labels)?;
    registry.register(Box::new(metric.clone()))?;
    Ok(metric)
}

fn build_seconds(registry: &Registry) -> Result<Histogram, prometheus::Error> {
    let metric = Histogram::with_opts(
        HistogramOpts::new(
            "fastllm_control_snapshot_build_seconds",
            "Time from reading the database to the published snapshot.",
        )
        .buckets(vec![0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5]),
    )?;
    registry.register(Box::new(metric.clone()))?;
    Ok(metric)
}
