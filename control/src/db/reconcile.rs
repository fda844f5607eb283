use fastllm_contract::Timestamp;
use sqlx::{PgConnection, PgTransaction};
use time::OffsetDateTime;

use super::DbError;
use crate::clock;

/// A gateway that has not reconciled for this long has no shares.
pub(crate) const LIVE_SECONDS: f64 = 30.0;
/// Older counts have decayed to almost nothing and are deleted, except those of live
/// gateways that hold a part of a concurrency limit.
const COUNTS_KEPT_MINUTES: i32 = 60;
/// How long after its last request at any gateway all gateways have a part of the
/// concurrency limit of a subject by demand.
const ACTIVE_SECONDS: f64 = 60.0;
/// An arbitrary number that identifies the advisory lock of limits.
const LIMITS_LOCK: i64 = 7_406_329_015_572;

/// The gateways that share limits and budgets.
pub(crate) struct Fleet {
    /// The number of live gateways, including the one that reconciles.
    pub(crate) live: usize,
    /// The number of live gateways with the name of the one that reconciles. More
    /// than one is a misconfiguration.
    pub(crate) duplicates: usize,
    /// The time of the database.
    pub(crate) now: Timestamp,
}

/// One start of a gateway: its name and the ID of the process.
#[derive(Clone, Copy)]
pub(crate) struct GatewayStart<'a> {
    pub(crate) replica: &'a str,
    pub(crate) boot_id: &'a str,
}

/// Registers that a gateway reconciles, and deletes gateways that have not
/// reconciled for `LIVE_SECONDS`.
pub(crate) async fn register(
    connection: &mut PgConnection,
    start: GatewayStart<'_>,
) -> Result<Fleet, DbError> {
    let GatewayStart { replica, boot_id } = start;
    let last = query!(
        r#"WITH last AS (SELECT boot_id, seen_at FROM limit_replicas WHERE replica = $1)
           INSERT INTO limit_replicas (replica, boot_id) VALUES ($1, $2)
           ON CONFLICT (replica) DO UPDATE SET boot_id = $2, seen_at = clock_timestamp()
           RETURNING (SELECT boot_id FROM last) AS boot_id, (SELECT seen_at FROM last) AS seen_at"#,
        replica,
        boot_id,
    )
    .fetch_one(&mut *connection)
    .await?;
    if let (Some(last), Some(seen_at)) = (last.boot_id, last.seen_at)
        && last != boot_id
    {
        replace_start(connection, start, &last, seen_at).await?;
    }
    // SKIP LOCKED: another transaction may be deleting the same rows.
    query!(
        "DELETE FROM limit_replicas WHERE replica IN \
            (SELECT replica FROM limit_replicas WHERE seen_at < now() - make_interval(secs => $1) \
                FOR UPDATE SKIP LOCKED)",
        LIVE_SECONDS,
    )
    .execute(&mut *connection)
    .await?;
    fleet(connection, Some(replica)).await
}

/// Moves the previous start of a gateway to `duplicate_gateways`. If the new
/// start is already there, both run concurrently; otherwise the gateway was
/// restarted.
async fn replace_start(
    connection: &mut PgConnection,
    start: GatewayStart<'_>,
    previous: &str,
    previous_seen_at: OffsetDateTime,
) -> Result<(), DbError> {
    query!(
        "DELETE FROM duplicate_gateways WHERE (replica, boot_id) IN \
            (SELECT replica, boot_id FROM duplicate_gateways \
              WHERE seen_at < now() - make_interval(secs => $1) FOR UPDATE SKIP LOCKED)",
        LIVE_SECONDS,
    )
    .execute(&mut *connection)
    .await?;
    let GatewayStart { replica, boot_id } = start;
    let returned = query!(
        r#"UPDATE duplicate_gateways SET concurrent_at = clock_timestamp() WHERE replica = $1 AND boot_id = $2
           RETURNING NOT EXISTS (SELECT FROM duplicate_gateways AS b
                                  WHERE b.replica = $1
                                    AND b.concurrent_at >= now() - make_interval(secs => $3))
                     AS "first!""#,
        replica,
        boot_id,
        LIVE_SECONDS,
    )
    .fetch_optional(&mut *connection)
    .await?;
    // If the new start is an earlier one that returned, the previous start runs
    // concurrently with it.
    query!(
        "INSERT INTO duplicate_gateways AS v (replica, boot_id, seen_at, concurrent_at) \
         VALUES ($1, $2, $3, CASE WHEN $4 THEN clock_timestamp() END) \
         ON CONFLICT (replica, boot_id) DO UPDATE \
            SET seen_at = excluded.seen_at, concurrent_at = coalesce(excluded.concurrent_at, v.concurrent_at)",
        replica,
        previous,
        previous_seen_at,
        returned.is_some(),
    )
    .execute(&mut *connection)
    .await?;
    if returned.is_some_and(|returned| returned.first) {
        tracing::warn!(
            replica,
            "two gateways use the same replica name; names must be unique"
        );
    }
    Ok(())
}

/// The live gateways, without registering one. With `replica`, `duplicates` is
/// the number of live gateways of that name.
pub(crate) async fn fleet(
    connection: &mut PgConnection,
    replica: Option<&str>,
) -> Result<Fleet, DbError> {
    let row = query!(
        r#"SELECT count(*) AS "live!", count(*) FILTER (WHERE replica = $2) AS "duplicates!",
                  now() AS "now!"
             FROM gateway_starts WHERE seen_at >= now() - make_interval(secs => $1)"#,
        LIVE_SECONDS,
        replica,
    )
    .fetch_one(connection)
    .await?;
    let now: OffsetDateTime = row.now;
    let at_least_one = |count| usize::try_from(count).unwrap_or(1).max(1);
    Ok(Fleet {
        live: at_least_one(row.live),
        duplicates: at_least_one(row.duplicates),
        now: clock::timestamp(now),
    })
}

/// The recent demand of one subject at one gateway.
pub(crate) struct CountRow {
    pub(crate) subject: String,
    pub(crate) replica: String,
    pub(crate) requests: f64,
    pub(crate) tokens: f64,
    /// 0 without a limit of concurrent requests.
    pub(crate) concurrency_limit: i64,
    /// The requests that the gateway may have in flight until its next report.
    pub(crate) concurrency_held: i64,
    /// Age of the row in seconds.
    pub(crate) age_seconds: f64,
}

/// Waits until no other transaction divides limits, so that no part of a limit is
/// granted twice.
pub(crate) async fn lock_limits(transaction: &mut PgTransaction<'_>) -> Result<(), DbError> {
    query!("SELECT pg_advisory_xact_lock($1)", LIMITS_LOCK)
        .execute(transaction)
        .await?;
    Ok(())
}

/// The counts of live gateways for these subjects, and for at most `more` others
/// with a concurrency limit that recently sent requests to gateways other than
/// `replica`. The newest come last.
pub(crate) async fn counts(
    connection: &mut PgConnection,
    replica: &str,
    subjects: &[String],
    more: usize,
) -> Result<Vec<CountRow>, DbError> {
    let rows = query_as!(
        CountRow,
        r#"SELECT c.subject, c.replica, c.requests, c.tokens, c.concurrency_limit,
                  c.concurrency_held,
                  extract(epoch FROM clock_timestamp() - c.reported_at)::float8 AS "age_seconds!"
             FROM limit_counts AS c JOIN limit_replicas AS r USING (replica)
            WHERE r.seen_at >= statement_timestamp() - make_interval(secs => $2)
              AND (c.subject = ANY ($1)
                   OR c.subject IN (SELECT DISTINCT active.subject FROM limit_counts AS active
                                     WHERE active.replica <> $3 AND active.concurrency_limit > 0
                                       AND active.requests > 0
                                       AND active.reported_at >= statement_timestamp() - make_interval(secs => $4)
                                       AND active.subject <> ALL ($1)
                                     LIMIT $5))
            ORDER BY c.reported_at"#,
        subjects,
        LIVE_SECONDS,
        replica,
        ACTIVE_SECONDS,
        i64::try_from(more).unwrap_or(i64::MAX),
    )
    .fetch_all(connection)
    .await?;
    Ok(rows)
}

/// The counts of one gateway, as columns with one value per subject.
#[derive(Default)]
pub(crate) struct NewCounts {
    /// Sorted and unique.
    pub(crate) subjects: Vec<String>,
    pub(crate) requests: Vec<f64>,
    pub(crate) tokens: Vec<f64>,
    /// 0 without a limit of concurrent requests.
    pub(crate) concurrency_limits: Vec<i64>,
    pub(crate) concurrency_held: Vec<i64>,
}

pub(crate) async fn put_counts(
    connection: &mut PgConnection,
    replica: &str,
    counts: &NewCounts,
) -> Result<(), DbError> {
    let NewCounts {
        subjects,
        requests,
        tokens,
        concurrency_limits,
        concurrency_held,
    } = counts;
    query!(
        "INSERT INTO limit_counts (subject, replica, requests, tokens, concurrency_limit, \
                concurrency_held) \
         SELECT c.subject, $1, c.requests, c.tokens, c.concurrency_limit, c.concurrency_held \
           FROM unnest($2::text[], $3::float8[], $4::float8[], $5::bigint[], $6::bigint[]) \
                AS c (subject, requests, tokens, concurrency_limit, concurrency_held) \
         ON CONFLICT (subject, replica) DO UPDATE \
            SET requests = excluded.requests, tokens = excluded.tokens, \
                concurrency_limit = excluded.concurrency_limit, \
                concurrency_held = excluded.concurrency_held, reported_at = clock_timestamp()",
        replica,
        subjects,
        requests,
        tokens,
        concurrency_limits,
        concurrency_held,
    )
    .execute(connection)
    .await?;
    Ok(())
}

pub(crate) async fn prune_counts(connection: &mut PgConnection) -> Result<u64, DbError> {
    let done = query!(
        "DELETE FROM limit_counts AS c \
          WHERE c.reported_at < now() - make_interval(mins => $1) \
            AND (c.concurrency_held = 0 OR NOT EXISTS (SELECT FROM limit_replicas AS r \
                  WHERE r.replica = c.replica AND r.seen_at >= now() - make_interval(secs => $2)))",
        COUNTS_KEPT_MINUTES,
        LIVE_SECONDS,
    )
    .execute(connection)
    .await?;
    Ok(done.rows_affected())
}
