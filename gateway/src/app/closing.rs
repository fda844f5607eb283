use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, sleep, timeout};

use crate::config::Config;
use crate::serve::Door;
use crate::tasks::Background;
use crate::workers::Workers;

/// The least time for the last usage batches, however long answers took.
const LAST_BATCHES: Duration = Duration::from_secs(2);

/// How long connections may take to end once they are cut off.
const CUT_OFF: Duration = Duration::from_secs(1);

/// What has to end, in order.
pub(super) struct Closing {
    pub(super) door: Door,
    pub(super) status_door: Door,
    pub(super) doors: Background,
    pub(super) background: Background,
    pub(super) workers: Arc<Workers>,
}

impl Closing {
    pub(super) async fn run(self, config: &Config) {
        let Self {
            door,
            status_door,
            doors,
            background,
            workers,
        } = self;
        tracing::info!(open = door.connections.len(), "the gateway shuts down");
        // Whoever routes to us needs time to see that we are not ready.
        sleep(config.shutdown_delay).await;
        let until = Instant::now() + config.shutdown_grace;
        door.closed.cancel();
        door.last_request.cancel();
        // It has nothing to wait for; a listener that hangs shall not hold us up.
        let _emptied = timeout(CUT_OFF, door.emptied.cancelled()).await;
        let left = door.connections.drained(config.shutdown_grace).await;
        if left > 0 {
            tracing::warn!(left, "answers were not finished in time");
            // Each of them still has to be accounted for.
            door.cut_off.cancel();
            door.connections.drained(CUT_OFF).await;
        }
        let grace = until
            .saturating_duration_since(Instant::now())
            .max(LAST_BATCHES);
        background.finish(grace).await;
        status_door.closed.cancel();
        status_door.last_request.cancel();
        doors.finish(CUT_OFF).await;
        drop(workers);
        tracing::info!("the gateway has ended");
    }
}
