//! Periodic deletion of expired rows.

use std::time::Duration;

use fastllm_process::error::Chain;
use tokio::time::{MissedTickBehavior, interval};
use tokio_util::sync::CancellationToken;

use crate::db::{Db, DbError, gateways, reconcile, sessions, shares, spending, usage};

const EVERY: Duration = Duration::from_mins(10);

/// Runs until `stop`. Several control plane replicas may run it concurrently.
pub(crate) async fn run(db: Db, stop: CancellationToken) {
    let mut tick = interval(EVERY);
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    while stop.run_until_cancelled(tick.tick()).await.is_some() {
        match prune(&db).await {
            Ok(rows) => tracing::debug!(rows, "deleted expired rows"),
            Err(error) => {
                tracing::info!(error = %Chain(&error), "deleting expired rows failed; it is retried");
            }
        }
    }
}

async fn prune(db: &Db) -> Result<u64, DbError> {
    let mut connection = db.acquire().await?;
    let sessions = sessions::prune(&mut connection).await?;
    let reporters = usage::prune_reporters(&mut connection).await?;
    let rejected = usage::prune_rejected(&mut connection).await?;
    let gateways = gateways::prune(&mut connection).await?;
    let counts = reconcile::prune_counts(&mut connection).await?;
    let windows = spending::prune(&mut connection).await?;
    let shares = shares::prune(&mut connection).await?;
    Ok(sessions + reporters + rejected + gateways + counts + windows + shares)
}
