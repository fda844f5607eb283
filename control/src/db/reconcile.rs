use fastllm_contract::Timestamp;
use sqlx::PgConnection;
use time::OffsetDateTime;

use super::DbError;
use crate::clock;

/// A gateway that has not asked for its shares for so long has none.
pub(crate) const LIVE_SECONDS: f64 = 30.0;
/// A count that is older is not worth to be kept.
const COUNTS_KEPT_MINUTES: i32 = 60;

/// Which gateways share what there is.
pub(crate) struct Fleet {
    /// How many, the one that asked included.
    pub(crate) live: usize,
    /// How many of them have the name of the one that asked: more than one is a
    /// mistake.
    pub(crate) namesakes: usize,
    /// The database's clock.
    pub(crate) now: Timestamp,
}

/// Notes that a gateway asks, and forgets those that have not for long.
pub(crate) async fn seen(
    connection: &mut PgConnection,
    replica: &str,
    boot_id: &str,
) -> Result<Fleet, DbError> {
    let last = sqlx::query!(
        r#"WITH last AS (SELECT boot_id, seen_at FROM limit_replicas WHERE replica = $1)
           INSERT INTO limit_replicas (replica, boot_id) VALUES ($1, $2)
           ON CONFLICT (replica) DO UPDATE SET boot_id = $2, seen_at = now()
           RETURNING (SELECT boot_id FROM last) AS boot_id, (SELECT seen_at FROM last) AS seen_at"#,
        replica,
        boot_id,
    )
    .fetch_one(&mut *connection)
    .await?;
    if let (Some(last), Some(seen_at)) = (last.boot_id, last.seen_at)
        && last != boot_id
    {
        succeed(connection, replica, (&last, seen_at), boot_id).await?;
    }
    // Somebody else may be at it.
    sqlx::query!(
        "DELETE FROM limit_replicas WHERE replica IN \
            (SELECT replica FROM limit_replicas WHERE seen_at < now() - make_interval(secs => $1) \
                FOR UPDATE SKIP LOCKED)",
        LIVE_SECONDS,
    )
    .execute(&mut *connection)
    .await?;
    fleet(connection, Some(replica)).await
}

/// Another start of a gateway asks than the last time: it began anew, or has
/// asked before that one did, and runs beside it.
async fn succeed(
    connection: &mut PgConnection,
    replica: &str,
    (last, seen_at): (&str, OffsetDateTime),
    boot_id: &str,
) -> Result<(), DbError> {
    sqlx::query!(
        "DELETE FROM limit_rivals WHERE (replica, boot_id) IN \
            (SELECT replica, boot_id FROM limit_rivals \
              WHERE seen_at < now() - make_interval(secs => $1) FOR UPDATE SKIP LOCKED)",
        LIVE_SECONDS,
    )
    .execute(&mut *connection)
    .await?;
    let returned = sqlx::query!(
        r#"UPDATE limit_rivals SET beside_at = now() WHERE replica = $1 AND boot_id = $2
           RETURNING NOT EXISTS (SELECT FROM limit_rivals AS b
                                  WHERE b.replica = $1
                                    AND b.beside_at >= now() - make_interval(secs => $3))
                     AS "first!""#,
        replica,
        boot_id,
        LIVE_SECONDS,
    )
    .fetch_optional(&mut *connection)
    .await?;
    // What came in between runs as well as the one that is back.
    sqlx::query!(
        "INSERT INTO limit_rivals AS v (replica, boot_id, seen_at, beside_at) \
         VALUES ($1, $2, $3, CASE WHEN $4 THEN now() END) \
         ON CONFLICT (replica, boot_id) DO UPDATE \
            SET seen_at = excluded.seen_at, beside_at = coalesce(excluded.beside_at, v.beside_at)",
        replica,
        last,
        seen_at,
        returned.is_some(),
    )
    .execute(&mut *connection)
    .await?;
    if returned.is_some_and(|returned| returned.first) {
        tracing::warn!(
            replica,
            "two gateways report under one name; give each a name of its own"
        );
    }
    Ok(())
}

/// Which gateways ask, without asking; with the name of one of them, how many
/// share it.
pub(crate) async fn fleet(
    connection: &mut PgConnection,
    replica: Option<&str>,
) -> Result<Fleet, DbError> {
    let row = sqlx::query!(
        r#"SELECT count(*) AS "live!", count(*) FILTER (WHERE replica = $2) AS "namesakes!",
                  now() AS "now!"
             FROM limit_starts WHERE seen_at >= now() - make_interval(secs => $1)"#,
        LIVE_SECONDS,
        replica,
    )
    .fetch_one(connection)
    .await?;
    let now: OffsetDateTime = row.now;
    let at_least_one = |count| usize::try_from(count).unwrap_or(1).max(1);
    Ok(Fleet {
        live: at_least_one(row.live),
        namesakes: at_least_one(row.namesakes),
        now: clock::timestamp(now),
    })
}

/// What one gateway let one holder ask for lately.
pub(crate) struct CountRow {
    pub(crate) holder: String,
    pub(crate) replica: String,
    pub(crate) requests: f64,
    pub(crate) tokens: f64,
    /// Since it was written.
    pub(crate) age_seconds: f64,
}

/// Of the gateways that are live.
pub(crate) async fn counts(
    connection: &mut PgConnection,
    holders: &[String],
) -> Result<Vec<CountRow>, DbError> {
    let rows = sqlx::query_as!(
        CountRow,
        r#"SELECT c.holder, c.replica, c.requests, c.tokens,
                  extract(epoch FROM now() - c.reported_at)::float8 AS "age_seconds!"
             FROM limit_counts AS c JOIN limit_replicas AS r USING (replica)
            WHERE c.holder = ANY ($1) AND r.seen_at >= now() - make_interval(secs => $2)"#,
        holders,
        LIVE_SECONDS,
    )
    .fetch_all(connection)
    .await?;
    Ok(rows)
}

/// The counts of one gateway: one value of each for each holder.
#[derive(Default)]
pub(crate) struct NewCounts {
    /// Sorted, each once.
    pub(crate) holders: Vec<String>,
    pub(crate) requests: Vec<f64>,
    pub(crate) tokens: Vec<f64>,
}

pub(crate) async fn put_counts(
    connection: &mut PgConnection,
    replica: &str,
    counts: &NewCounts,
) -> Result<(), DbError> {
    let NewCounts {
        holders,
        requests,
        tokens,
    } = counts;
    sqlx::query!(
        "INSERT INTO limit_counts (holder, replica, requests, tokens) \
         SELECT c.holder, $1, c.requests, c.tokens \
           FROM unnest($2::text[], $3::float8[], $4::float8[]) AS c (holder, requests, tokens) \
         ON CONFLICT (holder, replica) DO UPDATE \
            SET requests = excluded.requests, tokens = excluded.tokens, reported_at = now()",
        replica,
        holders,
        requests,
        tokens,
    )
    .execute(connection)
    .await?;
    Ok(())
}

pub(crate) async fn prune_counts(connection: &mut PgConnection) -> Result<u64, DbError> {
    let done = sqlx::query!(
        "DELETE FROM limit_counts WHERE reported_at < now() - make_interval(mins => $1)",
        COUNTS_KEPT_MINUTES,
    )
    .execute(connection)
    .await?;
    Ok(done.rows_affected())
}
