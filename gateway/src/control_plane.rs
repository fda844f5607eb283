//! Communication with the control plane: snapshots, usage, health, and this
//! gateway's shares of limits and budgets.

mod client;
mod health;
mod limits;
mod snapshot_client;
mod snapshot_file;
mod snapshot_follower;
mod usage;

pub use client::ControlUrl;
pub(crate) use client::{ControlClient, ControlError};
pub(crate) use usage::{QueuedUsage, SpillConfig, UsageQueue, UsageReceiver, usage_queue};

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use fastllm_contract::Secret;
use tokio_util::sync::CancellationToken;

use crate::runtime::BackgroundTasks;
use crate::snapshot::CurrentSnapshot;
use crate::telemetry::Metrics;
use health::HealthReporter;
use limits::{LimitsStateSource, Reconciler};
use snapshot_client::SnapshotClient;
use snapshot_file::{SnapshotFile, SnapshotWriter};
use snapshot_follower::SnapshotFollower;
use usage::{Backlog, BatchIdentity, UsageReporter};

/// How a gateway works with its control plane.
#[derive(Debug, Clone)]
pub(crate) struct Config {
    pub(crate) url: ControlUrl,
    pub(crate) token: Secret,
    /// The name of this gateway in reports.
    pub(crate) replica: String,
    /// The file that holds the last known good snapshot.
    pub(crate) snapshot_cache: PathBuf,
    /// Time between two polls where control does not hold a request open.
    pub(crate) snapshot_poll: Duration,
    pub(crate) health_report_interval: Duration,
    /// Zero: limits are not reconciled.
    pub(crate) reconcile_interval: Duration,
    pub(crate) usage_spill: Option<SpillConfig>,
}

impl Config {
    /// A client of the configured control plane.
    pub(crate) fn client(&self, tls: rustls::ClientConfig) -> Result<ControlClient, ControlError> {
        ControlClient::new(self.url.clone(), &self.token, tls)
    }
}

/// The tasks that communicate with the control plane.
pub(crate) struct ControlPlaneTasks {
    pub(crate) client: ControlClient,
    pub(crate) receiver: UsageReceiver,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) current: Arc<CurrentSnapshot>,
    pub(crate) boot_id: Arc<str>,
}

impl ControlPlaneTasks {
    /// Starts them.
    pub(crate) fn start(self, config: Config, background: &mut BackgroundTasks) {
        let Config {
            url: _,
            token: _,
            replica,
            snapshot_cache,
            snapshot_poll,
            health_report_interval,
            reconcile_interval,
            usage_spill,
        } = config;
        let Self {
            client,
            receiver,
            metrics,
            current,
            boot_id,
        } = self;
        let stop = background.stop();
        let limits_state = LimitsStateSource::new(client.clone(), &snapshot_cache);
        let cache = SnapshotFile::new(snapshot_cache);
        let writer = SnapshotWriter::new(cache.clone(), Arc::clone(&current));
        background.spawn("the snapshot's copy on disk", writer.run(stop.clone()));
        let identity = BatchIdentity::new(replica.clone(), Arc::clone(&boot_id));
        let usage = UsageReporter {
            client: client.clone(),
            backlog: Backlog::new(receiver, identity, usage_spill, Arc::clone(&metrics)),
            metrics: Arc::clone(&metrics),
        };
        let late = background.late();
        background.spawn("the usage reporter", usage.run(stop.clone(), late));
        let health = HealthReporter {
            client: client.clone(),
            current: Arc::clone(&current),
            metrics: Arc::clone(&metrics),
            replica: replica.clone(),
            boot_id: Arc::clone(&boot_id),
            every: health_report_interval,
        };
        background.spawn("the health reporter", health.run(stop.clone()));
        let reconciler = Reconciler {
            source: limits_state.clone(),
            current: Arc::clone(&current),
            replica,
            boot_id,
            every: reconcile_interval,
        };
        background.spawn("the reconciler", reconciler.run(stop.clone()));
        let follower = SnapshotFollower {
            source: SnapshotClient::new(client),
            cache,
            current,
            metrics,
            poll: snapshot_poll,
            etag: None,
        };
        background.spawn(
            "the snapshot's follower",
            follow(follower, limits_state, stop),
        );
    }
}

/// Follows snapshots once the first state of limits is known, until `stop`.
async fn follow(
    follower: SnapshotFollower,
    limits_state: LimitsStateSource,
    stop: CancellationToken,
) {
    if let Some(first) = stop.run_until_cancelled(limits_state.first()).await {
        follower.current.begin_with(first);
    }
    follower.run(stop).await;
}
