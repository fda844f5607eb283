use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, sleep, timeout};

use crate::cli::Config;
use crate::runtime::BackgroundTasks;
use crate::runtime::Workers;
use crate::serve::Shutdown;

/// The least time for the last usage batches, however long answers took.
const LAST_BATCHES: Duration = Duration::from_secs(2);

/// How long connections may take to end once they are cut off.
const CUT_OFF: Duration = Duration::from_secs(1);

/// What has to end, in order.
pub(super) struct ShutdownSequence {
    pub(super) public_shutdown: Shutdown,
    pub(super) status_shutdown: Shutdown,
    pub(super) listeners: BackgroundTasks,
    pub(super) background: BackgroundTasks,
    pub(super) workers: Arc<Workers>,
}

impl ShutdownSequence {
    pub(super) async fn run(self, config: &Config) {
        let Self {
            public_shutdown,
            status_shutdown,
            listeners,
            background,
            workers,
        } = self;
        tracing::info!(
            open = public_shutdown.connections.len(),
            "the gateway shuts down"
        );
        // Whoever routes to us needs time to see that we are not ready.
        sleep(config.shutdown_delay).await;
        let until = Instant::now() + config.shutdown_grace;
        public_shutdown.stop_accepting.cancel();
        public_shutdown.last_request.cancel();
        // It has nothing to wait for; a listener that hangs shall not hold us up.
        let _emptied = timeout(CUT_OFF, public_shutdown.backlog_served.cancelled()).await;
        let left = public_shutdown
            .connections
            .drained(config.shutdown_grace)
            .await;
        if left > 0 {
            tracing::warn!(left, "answers were not finished in time");
            // Each of them still has to be accounted for.
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
        tracing::info!("the gateway has ended");
    }
}
