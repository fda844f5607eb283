//! What runs beside the request path where there is a control plane.

use std::sync::Arc;

use crate::config::Config;
use crate::link::Link;
use crate::record::Ledger;
use crate::report::{
    Backlog, HealthReporter, Identity, LimitsStateSource, Reconciler, UsageReporter, Waiting,
};
use crate::snapshot::{Current, DiskCache, DiskWriter, Follower, HttpSource};
use crate::tasks::Background;
use crate::telemetry::Metrics;

/// What goes to and comes from the control plane.
pub(crate) struct Plane {
    pub(crate) link: Link,
    pub(crate) waiting: Waiting,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) ledger: Arc<Ledger>,
    pub(crate) current: Arc<Current>,
    pub(crate) boot_id: Arc<str>,
}

impl Plane {
    /// Starts what talks to it.
    pub(crate) fn start(self, config: &Config, background: &mut Background) {
        let Self {
            link,
            waiting,
            metrics,
            ledger,
            current,
            boot_id,
        } = self;
        let stop = background.stop();
        let cache = DiskCache::new(config.snapshot_cache.clone());
        let writer = DiskWriter::new(cache.clone(), Arc::clone(&current));
        background.spawn("the snapshot's copy on disk", writer.run(stop.clone()));
        let identity = Identity::new(config.replica.clone(), Arc::clone(&boot_id));
        let most = config.usage_spill_max_mb << 20;
        let spill = config.usage_spill.clone().map(|path| (path, most));
        let usage = UsageReporter {
            link: link.clone(),
            backlog: Backlog::new(waiting, identity, spill, Arc::clone(&metrics)),
            metrics: Arc::clone(&metrics),
        };
        let late = background.late();
        background.spawn("the usage reporter", usage.run(stop.clone(), late));
        let health = HealthReporter {
            link: link.clone(),
            current: Arc::clone(&current),
            ledger,
            replica: config.replica.clone(),
            boot_id: Arc::clone(&boot_id),
            every: config.health_report_interval,
        };
        background.spawn("the health reporter", health.run(stop.clone()));
        let limits_state = LimitsStateSource::new(link.clone(), &config.snapshot_cache);
        let reconciler = Reconciler {
            source: limits_state.clone(),
            current: Arc::clone(&current),
            replica: config.replica.clone(),
            boot_id,
            every: config.rate_limit_reconcile_interval,
        };
        background.spawn("the reconciler", reconciler.run(stop.clone()));
        let follower = Follower {
            source: HttpSource::new(link),
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
