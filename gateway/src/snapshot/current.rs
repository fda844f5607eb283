use std::sync::Arc;

use arc_swap::{ArcSwapOption, Guard};
use fastllm_contract::{LimitsState, Snapshot};
use fastllm_engine::{InvalidSnapshot, RoutingState, Tuning};
use parking_lot::Mutex;
use tokio::sync::watch;

use crate::telemetry::Metrics;

/// The routing state that requests currently use.
#[derive(Debug)]
pub(crate) struct CurrentSnapshot {
    tables: ArcSwapOption<RoutingState>,
    /// The snapshot that the tables were built from. The lock also serializes
    /// publishing, so that snapshots are built one at a time.
    held: Mutex<Option<Arc<Snapshot>>>,
    published: watch::Sender<u64>,
    metrics: Arc<Metrics>,
    tuning: Tuning,
    /// Applied to the first tables.
    limits_state: Mutex<Option<LimitsState>>,
}

impl CurrentSnapshot {
    pub(crate) fn new(metrics: Arc<Metrics>, tuning: Tuning) -> Self {
        Self {
            tables: ArcSwapOption::empty(),
            held: Mutex::new(None),
            published: watch::Sender::new(0),
            metrics,
            tuning,
            limits_state: Mutex::new(None),
        }
    }

    /// Sets the limits state for the first snapshot, so that shares and amounts
    /// spent are available before the first request.
    pub(crate) fn begin_with(&self, limits_state: LimitsState) {
        *self.limits_state.lock() = Some(limits_state);
    }

    /// The tables for the duration of one decision; the guard must not be held
    /// across an await.
    pub(crate) fn load(&self) -> Guard<Option<Arc<RoutingState>>> {
        self.tables.load()
    }

    /// The tables as an owned reference.
    pub(crate) fn tables(&self) -> Option<Arc<RoutingState>> {
        self.tables.load_full()
    }

    /// The snapshot that the tables were built from.
    pub(crate) fn held(&self) -> Option<Arc<Snapshot>> {
        self.held.lock().clone()
    }

    /// Changes with every published snapshot.
    pub(crate) fn changes(&self) -> watch::Receiver<u64> {
        self.published.subscribe()
    }

    /// Builds tables from a complete snapshot and serves them. An invalid
    /// snapshot changes nothing. Slow: not for request threads.
    pub(crate) fn publish(
        &self,
        snapshot: Arc<Snapshot>,
    ) -> Result<Arc<RoutingState>, InvalidSnapshot> {
        self.publish_tuned(snapshot, &self.tuning)
    }

    /// Like `publish`, with the given tuning. Models whose digest is unchanged
    /// keep the tuning that they were built with.
    pub(crate) fn publish_tuned(
        &self,
        snapshot: Arc<Snapshot>,
        tuning: &Tuning,
    ) -> Result<Arc<RoutingState>, InvalidSnapshot> {
        let mut held = self.held.lock();
        let before = self.tables.load_full();
        let built = RoutingState::build(&snapshot, before.as_deref(), tuning)?;
        for skipped in &built.skipped_backends {
            tracing::warn!(
                model = skipped.model.as_str(),
                backend = skipped.backend.0,
                reason = %skipped.reason,
                "a backend is left out"
            );
        }
        let tables = Arc::new(built.state);
        if let Some(limits_state) = self.limits_state.lock().take() {
            tables.accounts().apply_limits_state(&limits_state);
        }
        self.metrics.attach(&tables);
        self.tables.store(Some(Arc::clone(&tables)));
        *held = Some(snapshot);
        self.metrics.snapshot_published(&tables);
        self.published.send_modify(|count| *count += 1);
        tracing::info!(
            version = tables.version(),
            models = tables.pools().count(),
            backends = tables.backends().count(),
            keys = tables.key_count(),
            "snapshot published"
        );
        Ok(tables)
    }
}
