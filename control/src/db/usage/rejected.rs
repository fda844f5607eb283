use sqlx::PgConnection;

use super::BatchId;
use crate::accounting::RejectedEvent;
use crate::db::DbError;

const KEPT_DAYS: i32 = 30;
/// The number of latest rows that a cleanup keeps.
const KEPT: i64 = 1000;
/// The maximum number of rows; further events are not stored.
const MAX_ROWS: i64 = 10_000;

/// Stores rejected events, up to the maximum number of rows.
pub(super) async fn insert(
    connection: &mut PgConnection,
    batch: &BatchId<'_>,
    rejected: &[&RejectedEvent],
) -> Result<(), DbError> {
    let reasons: Vec<String> = rejected.iter().map(|event| event.reason.clone()).collect();
    let events: Vec<serde_json::Value> =
        rejected.iter().map(|event| event.excerpt.clone()).collect();
    query!(
        "INSERT INTO rejected_usage (replica, boot_id, sequence, reason, event) \
         SELECT $1, $2, $3, p.reason, p.event \
           FROM unnest($4::text[], $5::jsonb[]) AS p (reason, event) \
          WHERE (SELECT count(*) FROM (SELECT FROM rejected_usage LIMIT $6) AS held) < $6",
        batch.replica,
        batch.boot_id,
        batch.sequence,
        &reasons,
        &events,
        MAX_ROWS,
    )
    .execute(connection)
    .await?;
    Ok(())
}

/// Deletes old rows and all but the latest ones.
pub(crate) async fn prune(connection: &mut PgConnection) -> Result<u64, DbError> {
    let done = query!(
        "DELETE FROM rejected_usage \
          WHERE received_at < now() - make_interval(days => $1) \
             OR id <= (SELECT id FROM rejected_usage ORDER BY id DESC OFFSET $2 LIMIT 1)",
        KEPT_DAYS,
        KEPT,
    )
    .execute(connection)
    .await?;
    Ok(done.rows_affected())
}
