//! What runs beside the request path where there is a control plane.

mod client;
mod health;
mod limits;
mod snapshot_client;
mod snapshot_file;
mod snapshot_follower;
mod usage;

pub(crate) use client::ControlClient;
pub use client::ControlUrl;
pub(crate) use usage::{UsageQueue, UsageReceiver, usage_queue};

use std::sync::Arc;

use crate::cli::Config;
use crate::request_log::AccountingSink;
use crate::runtime::BackgroundTasks;
use crate::snapshot::CurrentSnapshot;
use crate::telemetry::Metrics;
use health::HealthReporter;
use limits::{LimitsStateSource, Reconciler};
use snapshot_client::SnapshotClient;
use snapshot_file::{SnapshotFile, SnapshotWriter};
use snapshot_follower::SnapshotFollower;
use usage::{Backlog, BatchIdentity, UsageReporter};

/// What goes to and comes from the control plane.
pub(crate) struct ControlPlaneTasks {
    pub(crate) client: ControlClient,
    pub(crate) receiver: UsageReceiver,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) sink: Arc<AccountingSink>,
    pub(crate) current: Arc<CurrentSnapshot>,
    pub(crate) boot_id: Arc<str>,
}

impl ControlPlaneTasks {
    /// Starts what talks to it.
    pub(crate) fn start(self, config: &Config, background: &mut BackgroundTasks) {
        let Self {
            client,
            receiver,
            metrics,
            sink,
            current,
            boot_id,
        } = self;
        let stop = background.stop();
        let cache = SnapshotFile::new(config.snapshot_cache.clone());
        let writer = SnapshotWriter::new(cache.clone(), Arc::clone(&current));
        background.spawn("the snapshot's copy on disk", writer.run(stop.clone()));
        let identity = BatchIdentity::new(config.replica.clone(), Arc::clone(&boot_id));
        let most = config.usage_spill_max_mb << 20;
        let spill = config.usage_spill.clone().map(|path| (path, most));
        let usage = UsageReporter {
            client: client.clone(),
            backlog: Backlog::new(receiver, identity, spill, Arc::clone(&metrics)),
            metrics: Arc::clone(&metrics),
        };
        let late = background.late();
        background.spawn("the usage reporter", usage.run(stop.clone(), late));
        let health = HealthReporter {
            client: client.clone(),
            current: Arc::clone(&current),
            sink,
            replica: config.replica.clone(),
            boot_id: Arc::clone(&boot_id),
            every: config.health_report_interval,
        };
        background.spawn("the health reporter", health.run(stop.clone()));
        let limits_state = LimitsStateSource::new(client.clone(), &config.snapshot_cache);
        let reconciler = Reconciler {
            source: limits_state.clone(),
            current: Arc::clone(&current),
            replica: config.replica.clone(),
            boot_id,
            every: config.rate_limit_reconcile_interval,
        };
        background.spawn("the reconciler", reconciler.run(stop.clone()));
        let follower = SnapshotFollower {
            source: SnapshotClient::new(client),
            cache,
            current,
            metrics,
            poll: config.config_poll,
            etag: None,
        };
        background.spawn("the snapshot's follower", async move {
            if let Some(first) = stop.run_until_cancelled(limits_state.first()).await {
                follower.current.begin_with(first);
            }
            follower.run(stop).await;
        });
    }
}
