//! The operator's metrics. No label contains the name of a Secret.

use std::collections::BTreeMap;
use std::time::Duration;

use fastllm_crds::FastllmProxy;
use prometheus::core::Collector;
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
    undecodable: IntGauge,
    definition_outdated: IntGauge,
    conditions: IntGaugeVec,
    leader: IntGauge,
}

impl Metrics {
    /// Registers the metrics.
    ///
    /// # Errors
    /// If two metrics have the same name.
    pub fn new() -> Result<Self, prometheus::Error> {
        let metrics = Registrar(Registry::new_custom(
            Some("fastllm_operator".to_owned()),
            None,
        )?);
        Ok(Self {
            reconcile_total: metrics.counters(
                "reconcile_total",
                "Reconciliations of resources, by outcome.",
                &["outcome"],
            )?,
            reconcile_errors: metrics.counter(
                "reconcile_errors_total",
                "Reconciliations that failed and are retried.",
            )?,
            reconcile_duration: metrics.add(Histogram::with_opts(HistogramOpts::new(
                "reconcile_duration_seconds",
                "Duration of a reconciliation in seconds.",
            )))?,
            rollout_total: metrics.counters(
                "rollout_total",
                "Started rollouts, by plane and reason.",
                &["plane", "reason"],
            )?,
            writes: metrics.counters(
                "writes_total",
                "Writes to the API server, by kind and verb.",
                &["kind", "verb"],
            )?,
            watch_restarts: metrics.counter(
                "watch_restarts_total",
                "Watches that disconnected and were restarted.",
            )?,
            managed: metrics.gauge("managed_resources", "Number of FastllmProxy resources.")?,
            undecodable: metrics.gauge(
                "undecodable_resources",
                "Number of FastllmProxy resources that do not decode and are not reconciled.",
            )?,
            definition_outdated: metrics.gauge(
                "crd_schema_outdated",
                "Whether the installed definition lacks fields of this release: 1 or 0.",
            )?,
            conditions: metrics.add(IntGaugeVec::new(
                Opts::new(
                    "condition",
                    "Number of resources, by condition type and status.",
                ),
                &["type", "status"],
            ))?,
            leader: metrics.gauge("leader", "Whether this replica is the leader: 1 or 0.")?,
            registry: metrics.0,
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

    /// Records the number of resources that do not decode.
    pub fn set_undecodable(&self, count: usize) {
        self.undecodable
            .set(i64::try_from(count).unwrap_or(i64::MAX));
    }

    /// Records whether the installed definition lacks fields.
    pub fn set_definition_outdated(&self, outdated: bool) {
        self.definition_outdated.set(i64::from(outdated));
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

/// Creates and registers metrics.
struct Registrar(Registry);

impl Registrar {
    fn add<M>(&self, metric: Result<M, prometheus::Error>) -> Result<M, prometheus::Error>
    where
        M: Collector + Clone + 'static,
    {
        let metric = metric?;
        self.0.register(Box::new(metric.clone()))?;
        Ok(metric)
    }

    fn counter(&self, name: &str, help: &str) -> Result<IntCounter, prometheus::Error> {
        self.add(IntCounter::new(name, help))
    }

    fn gauge(&self, name: &str, help: &str) -> Result<IntGauge, prometheus::Error> {
        self.add(IntGauge::new(name, help))
    }

    fn counters(
        &self,
        name: &str,
        help: &str,
        labels: &[&str],
    ) -> Result<IntCounterVec, prometheus::Error> {
        self.add(IntCounterVec::new(Opts::new(name, help), labels))
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
