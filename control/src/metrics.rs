use prometheus::{
    Encoder, Histogram, HistogramOpts, IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Opts,
    Registry, TextEncoder,
};

use crate::Error;

/// What the control plane counts about itself.
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
    requests: Requests,
}

/// What was asked of the control plane.
struct Requests {
    usage_batches: IntCounterVec,
    usage_events: IntCounterVec,
    usage_unpriced: IntCounter,
    usage_metadata_dropped: IntCounter,
    logins: IntCounterVec,
    answers: IntCounterVec,
}

impl Requests {
    fn register(registry: &Registry) -> Result<Self, prometheus::Error> {
        Ok(Self {
            usage_batches: counters(
                registry,
                "fastllm_control_usage_batches_total",
                "Usage batches of gateways.",
                &["outcome"],
            )?,
            usage_events: counters(
                registry,
                "fastllm_control_usage_events_total",
                "Usage events of gateways.",
                &["outcome"],
            )?,
            usage_unpriced: counter(
                registry,
                "fastllm_control_usage_unpriced_total",
                "Usage events stored whose cost nobody knows.",
            )?,
            usage_metadata_dropped: counter(
                registry,
                "fastllm_control_usage_metadata_dropped_total",
                "Usage events whose metadata is beyond its bounds and is left out.",
            )?,
            logins: counters(
                registry,
                "fastllm_control_logins_total",
                "Attempts to log in.",
                &["outcome"],
            )?,
            answers: counters(
                registry,
                "fastllm_control_http_requests_total",
                "Requests answered, by route and class of status.",
                &["method", "route", "class"],
            )?,
        })
    }
}

/// What became of a usage batch.
#[derive(Debug, Clone, Copy)]
pub(crate) enum BatchLabel {
    Stored,
    Duplicate,
    Refused,
    Failed,
}

/// What became of a batch's events.
#[derive(Debug, Clone, Copy)]
pub(crate) struct EventCounts {
    pub(crate) accepted: u64,
    /// Of those that are accepted.
    pub(crate) unpriced: u64,
    /// Of unknown principals or models.
    pub(crate) dropped: u64,
    /// Set aside.
    pub(crate) rejected: u64,
    /// Kept without it.
    pub(crate) metadata_dropped: u64,
}

/// How a login ended.
#[derive(Debug, Clone, Copy)]
pub(crate) enum LoginLabel {
    Succeeded,
    Failed,
    Throttled,
}

impl Metrics {
    pub(crate) fn new() -> Result<Self, Error> {
        let registry = Registry::new();
        Self::register(registry).map_err(|_| Error::Internal("a metric is defined twice"))
    }

    fn register(registry: Registry) -> Result<Self, prometheus::Error> {
        Ok(Self {
            snapshot_version: gauge(
                &registry,
                "fastllm_control_snapshot_version",
                "Version of the configuration that is served to gateways.",
            )?,
            snapshot_waiters: gauge(
                &registry,
                "fastllm_control_snapshot_waiters",
                "Gateways that wait for a change.",
            )?,
            builds: counter(
                &registry,
                "fastllm_control_snapshot_builds_total",
                "Snapshots built.",
            )?,
            build_failures: counter(
                &registry,
                "fastllm_control_snapshot_build_failures_total",
                "Snapshots that could not be built.",
            )?,
            build_seconds: build_seconds(&registry)?,
            database_up: gauge(
                &registry,
                "fastllm_control_database_up",
                "1 while the database answers.",
            )?,
            listening: gauge(
                &registry,
                "fastllm_control_database_notifications",
                "1 while changes are told by the database, 0 while it is polled.",
            )?,
            connections: gauges(
                &registry,
                "fastllm_control_database_connections",
                "Open connections to the database.",
                &["state"],
            )?,
            requests: Requests::register(&registry)?,
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

    /// Of a batch that is stored.
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

    /// `route` is a pattern, `method` one of the known ones: both are bounded.
    pub(crate) fn http_request(&self, method: &str, route: &str, status: u16) {
        let class = format!("{}xx", status / 100);
        self.requests
            .answers
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

    /// Prometheus' text format.
    pub(crate) fn render(&self) -> Vec<u8> {
        let mut text = Vec::new();
        if let Err(error) = TextEncoder::new().encode(&self.registry.gather(), &mut text) {
            tracing::error!(%error, "metrics cannot be written");
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
            "Time from the first read to the published snapshot.",
        )
        .buckets(vec![0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5]),
    )?;
    registry.register(Box::new(metric.clone()))?;
    Ok(metric)
}
