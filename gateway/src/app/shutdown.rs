use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, sleep, timeout};

use super::ShutdownConfig;
use crate::runtime::BackgroundTasks;
use crate::runtime::Workers;
use crate::serve::Shutdown;

/// The minimum time for the last usage batches, however long responses took.
const LAST_BATCHES: Duration = Duration::from_secs(2);

/// How long connections may take to close once they are aborted.
const CUT_OFF: Duration = Duration::from_secs(1);

/// The components to stop, in order.
pub(super) struct ShutdownSequence {
    pub(super) public_shutdown: Shutdown,
    pub(super) status_shutdown: Shutdown,
    pub(super) listeners: BackgroundTasks,
    pub(super) background: BackgroundTasks,
    pub(super) workers: Arc<Workers>,
}

impl ShutdownSequence {
    pub(super) async fn run(self, config: ShutdownConfig) {
        let Self {
            public_shutdown,
            status_shutdown,
            listeners,
            background,
            workers,
        } = self;
        tracing::info!(open = public_shutdown.connections.len(), "shutting down");
        // Load balancers need time to detect that the gateway is not ready.
        sleep(config.delay).await;
        let until = Instant::now() + config.grace;
        public_shutdown.stop_accepting.cancel();
        public_shutdown.last_request.cancel();
        // It ends at once; a hanging listener must not delay the shutdown.
        let _emptied = timeout(CUT_OFF, public_shutdown.backlog_served.cancelled()).await;
        let left = public_shutdown.connections.drained(config.grace).await;
        if left > 0 {
            tracing::warn!(left, "responses were not finished in time");
            // Each of them still has to end its request log.
            public_shutdown.abort.cancel();
            public_shutdown.connections.drained(CUT_OFF).await;
        }
        let grace = until
            .saturating_duration_since(Instant::now())
            .max(LAST_BATCHES);
        background.finish(grace).await;
        status_shutdown.stop_accepting.cancel();
        status_shutdown.last_request.cancel();
        listeners.finish(CUT_OFF).await;
        drop(workers);
        tracing::info!("exiting");
    }
}
