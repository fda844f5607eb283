//! Periodic deletion of expired rows.

use std::time::Duration;

use fastllm_process::error::Chain;
use sqlx::PgConnection;
use tokio::time::{MissedTickBehavior, interval};
use tokio_util::sync::CancellationToken;

use crate::db::{Db, DbError, gateways, logins, reconcile, sessions, shares, spending, usage};

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
    let sessions = pruned(db, sessions::prune).await?;
    let reporters = pruned(db, usage::prune_reporters).await?;
    let rejected = pruned(db, usage::prune_rejected).await?;
    let gateways = pruned(db, gateways::prune).await?;
    let counts = pruned(db, reconcile::prune_counts).await?;
    let windows = pruned(db, spending::prune).await?;
    let shares = pruned(db, shares::prune).await?;
    let logins = pruned(db, logins::prune).await?;
    Ok(logins + sessions + reporters + rejected + gateways + counts + windows + shares)
}

/// Prunes one table in its own transaction, so that no locks are held meanwhile.
async fn pruned(
    db: &Db,
    prune: impl AsyncFnOnce(&mut PgConnection) -> Result<u64, DbError>,
) -> Result<u64, DbError> {
    let mut transaction = db.begin().await?;
    let rows = prune(&mut transaction).await?;
    transaction.commit().await?;
    Ok(rows)
}
