use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use fastllm_contract::{BackendHealth, HealthReport};
use tokio::time::{MissedTickBehavior, interval, timeout};
use tokio_util::sync::CancellationToken;

use super::client::{ControlClient, ControlError};
use crate::snapshot::CurrentSnapshot;
use crate::telemetry::Metrics;

/// The timeout of one report.
const POST_TIMEOUT: Duration = Duration::from_secs(5);

/// Reports the health of this gateway and its backends to control. Each report
/// is built when it is sent; a failed report is not repeated.
#[derive(Debug)]
pub(crate) struct HealthReporter {
    pub(crate) client: ControlClient,
    pub(crate) current: Arc<CurrentSnapshot>,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) replica: String,
    pub(crate) boot_id: Arc<str>,
    pub(crate) every: Duration,
}

impl HealthReporter {
    pub(crate) async fn run(self, stop: CancellationToken) {
        let started = tokio::time::Instant::now();
        // A report without a snapshot contains no useful state.
        let mut changes = self.current.changes();
        tokio::select! {
            _ = timeout(self.every, changes.wait_for(|count| *count > 0)) => {}
            () = stop.cancelled() => return,
        }
        let mut tick = interval(self.every);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut failing = false;
        loop {
            tokio::select! {
                _ = tick.tick() => {}
                () = stop.cancelled() => return,
            }
            let result = tokio::select! {
                result = self.post(started.elapsed()) => result,
                () = stop.cancelled() => return,
            };
            let failed_before = std::mem::replace(&mut failing, result.is_err());
            match result {
                Err(error) if !failed_before => {
                    tracing::warn!(%error, "health report failed; retrying");
                }
                _ => {}
            }
        }
    }

    async fn post(&self, uptime: Duration) -> Result<(), ControlError> {
        let report = serde_json::to_vec(&self.report(uptime))
            .map_err(|error| ControlError::Unreadable(error.to_string()))?;
        match self
            .client
            .post("health-report", Bytes::from(report), POST_TIMEOUT)
            .await?
        {
            (200..=299, _) => Ok(()),
            (status, _) => Err(ControlError::Status(status)),
        }
    }

    fn report(&self, uptime: Duration) -> HealthReport {
        let tables = self.current.tables();
        let backends = tables.iter().flat_map(|tables| tables.backends());
        HealthReport {
            replica: self.replica.clone(),
            boot_id: self.boot_id.to_string(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            snapshot_version: tables.as_ref().map_or(0, |tables| tables.version()),
            uptime_seconds: uptime.as_secs(),
            backends: backends
                .map(|(model, backend)| BackendHealth {
                    id: backend.id(),
                    api_base: backend.api_base().to_string(),
                    model: model.clone(),
                    healthy: backend.state().healthy(),
                    inflight: backend.state().in_flight(),
                    waiting: backend.state().waiting() as u64,
                    requests_total: backend.state().requests(),
                    errors_total: backend.state().errors(),
                })
                .collect(),
            process: self.metrics.process(),
        }
    }
}
