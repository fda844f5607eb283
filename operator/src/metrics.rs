//! The operator's metrics. No label contains the name of a Secret.

use std::collections::BTreeMap;
use std::time::Duration;

use fastllm_crds::FastllmProxy;
use prometheus::{
    Encoder as _, Histogram, HistogramOpts, IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Opts,
    Registry, TextEncoder,
};

/// The operator's metrics.
pub struct Metrics {
    registry: Registry,
    reconcile_total: IntCounterVec,
    reconcile_errors: IntCounter,
    reconcile_duration: Histogram,
    rollout_total: IntCounterVec,
    writes: IntCounterVec,
    watch_restarts: IntCounter,
    managed: IntGauge,
    conditions: IntGaugeVec,
    leader: IntGauge,
}

impl Metrics {
    /// Registers the metrics.
    ///
    /// # Errors
    /// If two metrics have the same name.
    pub fn new() -> Result<Self, prometheus::Error> {
        let registry = Registry::new_custom(Some("fastllm_operator".to_owned()), None)?;
        let counters = |name: &str, help: &str, labels: &[&str]| {
            let metric = IntCounterVec::new(Opts::new(name, help), labels)?;
            registry.register(Box::new(metric.clone()))?;
            Ok::<_, prometheus::Error>(metric)
        };
        let reconcile_total = counters(
            "reconcile_total",
            "Reconciliations of resources, by outcome.",
            &["outcome"],
        )?;
        let rollout_total = counters(
            "rollout_total",
            "Started rollouts, by plane and reason.",
            &["plane", "reason"],
        )?;
        let writes = counters(
            "writes_total",
            "Writes to the API server, by kind and verb.",
            &["kind", "verb"],
        )?;
        let reconcile_errors = IntCounter::new(
            "reconcile_errors_total",
            "Reconciliations that failed and are retried.",
        )?;
        let watch_restarts = IntCounter::new(
            "watch_restarts_total",
            "Watches that disconnected and were restarted.",
        )?;
        let reconcile_duration = Histogram::with_opts(HistogramOpts::new(
            "reconcile_duration_seconds",
            "Duration of a reconciliation in seconds.",
        ))?;
        let managed = IntGauge::new("managed_resources", "Number of FastllmProxy resources.")?;
        let conditions = IntGaugeVec::new(
            Opts::new(
                "condition",
                "Number of resources, by condition type and status.",
            ),
            &["type", "status"],
        )?;
        let leader = IntGauge::new("leader", "Whether this replica is the leader: 1 or 0.")?;
        registry.register(Box::new(reconcile_errors.clone()))?;
        registry.register(Box::new(watch_restarts.clone()))?;
        registry.register(Box::new(reconcile_duration.clone()))?;
        registry.register(Box::new(managed.clone()))?;
        registry.register(Box::new(conditions.clone()))?;
        registry.register(Box::new(leader.clone()))?;
        Ok(Self {
            registry,
            reconcile_total,
            reconcile_errors,
            reconcile_duration,
            rollout_total,
            writes,
            watch_restarts,
            managed,
            conditions,
            leader,
        })
    }

    /// Records a finished reconciliation.
    pub fn record_reconcile(&self, outcome: &str, took: Duration) {
        self.reconcile_total.with_label_values(&[outcome]).inc();
        self.reconcile_duration.observe(took.as_secs_f64());
        if outcome == "error" {
            self.reconcile_errors.inc();
        }
    }

    /// Records the start of a rollout.
    pub fn record_rollout(&self, plane: &str, reason: &str) {
        self.rollout_total.with_label_values(&[plane, reason]).inc();
    }

    /// Records a write to the API server.
    pub fn record_write(&self, kind: &str, verb: &str) {
        self.writes.with_label_values(&[kind, verb]).inc();
    }

    /// Records a disconnected watch.
    pub fn record_watch_restart(&self) {
        self.watch_restarts.inc();
    }

    /// Records whether this replica is the leader.
    pub fn set_leader(&self, leads: bool) {
        self.leader.set(i64::from(leads));
    }

    /// Counts the resources. Called for each scrape, so that deletions are included.
    pub fn count<'p>(&self, proxies: impl IntoIterator<Item = &'p FastllmProxy>) {
        let mut managed = 0;
        let mut counts: BTreeMap<(String, String), i64> = BTreeMap::new();
        for proxy in proxies {
            managed += 1;
            for condition in proxy.status.iter().flat_map(|s| &s.conditions) {
                let key = (condition.type_.clone(), condition.status.clone());
                *counts.entry(key).or_default() += 1;
            }
        }
        self.managed.set(managed);
        self.conditions.reset();
        for ((kind, status), count) in counts {
            self.conditions
                .with_label_values(&[&kind, &status])
                .set(count);
        }
    }

    /// Renders the metrics in Prometheus' text format.
    pub fn render(&self) -> String {
        let mut text = Vec::new();
        // Writing to a Vec cannot fail.
        let _ = TextEncoder::new().encode(&self.registry.gather(), &mut text);
        String::from_utf8(text).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::Metrics;

    #[test]
    fn names_are_registered_once_and_prefixed() {
        let metrics = Metrics::new().unwrap();
        metrics.set_leader(true);
        assert!(metrics.render().contains("fastllm_operator_leader 1"));
    }
}
