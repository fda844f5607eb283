use serde::Serialize;
use sqlx::{PgConnection, PgTransaction};
use time::OffsetDateTime;

use super::{Db, DbError, Page};

/// How long the last batch number of a gateway's start is remembered. A batch
/// repeated later than that would be stored again.
const REPORTERS_KEPT_DAYS: i32 = 7;

/// A usage event as it is stored.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct UsageRecord {
    #[serde(with = "time::serde::rfc3339")]
    pub(crate) at: OffsetDateTime,
    pub(crate) principal_id: i64,
    pub(crate) key_id: Option<i64>,
    pub(crate) model: String,
    pub(crate) requested_model: Option<String>,
    pub(crate) endpoint: Option<String>,
    pub(crate) request_id: Option<String>,
    pub(crate) attempts: Option<i64>,
    pub(crate) prompt_tokens: i64,
    pub(crate) completion_tokens: i64,
    pub(crate) cached_tokens: Option<i64>,
    pub(crate) reasoning_tokens: Option<i64>,
    pub(crate) usage_reported: bool,
    pub(crate) estimated: bool,
    pub(crate) refusal: Option<String>,
    pub(crate) duration_ms: Option<i64>,
    pub(crate) ttft_ms: Option<i64>,
    pub(crate) status: Option<i32>,
    /// What the provider said that it cost.
    pub(crate) cost_micros: Option<i64>,
}

/// Which batch of which start of which gateway.
pub(crate) struct BatchId<'a> {
    pub(crate) replica: &'a str,
    pub(crate) boot_id: &'a str,
    pub(crate) sequence: i64,
}

/// What became of a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum BatchOutcome {
    /// So many events are stored now.
    Stored(u64),
    /// It was stored before.
    Duplicate,
}

/// Stores a batch once, however often and from however many connections it
/// comes: the events and the gateway's high-water mark are one transaction.
///
/// An event whose principal or model never existed is left out; one whose
/// principal or model was deleted since is history and kept.
pub(crate) async fn store(
    db: &Db,
    batch: &BatchId<'_>,
    records: &[UsageRecord],
) -> Result<BatchOutcome, DbError> {
    let mut transaction = db.pool().begin().await?;
    if !claim(&mut transaction, batch).await? {
        return Ok(BatchOutcome::Duplicate);
    }
    let events = serde_json::to_value(records)
        .map_err(|_| DbError::Failed("usage events cannot be written".to_owned()))?;
    let stored = insert(&mut transaction, batch.replica, &events).await?;
    transaction.commit().await?;
    // The batch is stored: what fails from here on must not make it look lost.
    if let Err(error) = touch_keys(db, &events).await {
        tracing::debug!(%error, "the keys' last use is not noted");
    }
    Ok(BatchOutcome::Stored(stored))
}

/// Whether the batch is new; holds the gateway's row until the end.
async fn claim(
    transaction: &mut PgTransaction<'static>,
    batch: &BatchId<'_>,
) -> Result<bool, DbError> {
    let BatchId {
        replica,
        boot_id,
        sequence,
    } = batch;
    sqlx::query!(
        "INSERT INTO usage_reporters (replica, boot_id, sequence) VALUES ($1, $2, 0) \
         ON CONFLICT DO NOTHING",
        replica,
        boot_id,
    )
    .execute(&mut **transaction)
    .await?;
    let held = sqlx::query_scalar!(
        "SELECT sequence FROM usage_reporters WHERE replica = $1 AND boot_id = $2 FOR UPDATE",
        replica,
        boot_id,
    )
    .fetch_one(&mut **transaction)
    .await?;
    if *sequence <= held {
        return Ok(false);
    }
    sqlx::query!(
        "UPDATE usage_reporters SET sequence = $3, seen_at = now() \
          WHERE replica = $1 AND boot_id = $2",
        replica,
        boot_id,
        sequence,
    )
    .execute(&mut **transaction)
    .await?;
    Ok(true)
}

/// Cost: 0 for a refusal; else what the provider said; else tokens, reported or
/// estimated, by the model's prices; else unknown.
async fn insert(
    connection: &mut PgConnection,
    replica: &str,
    events: &serde_json::Value,
) -> Result<u64, DbError> {
    let done = sqlx::query!(
        "INSERT INTO usage_events (at, replica, principal_id, principal_name, key_id, model_id, \
                model, requested_model, endpoint, request_id, attempts, prompt_tokens, \
                completion_tokens, cached_tokens, reasoning_tokens, usage_reported, estimated, \
                refusal, duration_ms, ttft_ms, status, cost_micros) \
         SELECT e.at, $1, e.principal_id, p.name, e.key_id, m.id, e.model, e.requested_model, \
                e.endpoint, e.request_id, e.attempts, e.prompt_tokens, e.completion_tokens, \
                e.cached_tokens, e.reasoning_tokens, e.usage_reported, e.estimated, e.refusal, \
                e.duration_ms, e.ttft_ms, e.status, \
                CASE WHEN e.refusal IS NOT NULL THEN 0 \
                     WHEN e.cost_micros IS NOT NULL THEN e.cost_micros \
                     WHEN (e.usage_reported OR e.estimated) AND m.input_price IS NOT NULL \
                          AND m.output_price IS NOT NULL THEN \
                         least(round((e.prompt_tokens::numeric * m.input_price \
                                    + e.completion_tokens::numeric * m.output_price) / 1000000), \
                               9223372036854775807)::bigint \
                END \
           FROM jsonb_to_recordset($2) AS e (at timestamptz, principal_id bigint, key_id bigint, \
                    model text, requested_model text, endpoint text, request_id text, \
                    attempts bigint, prompt_tokens bigint, completion_tokens bigint, \
                    cached_tokens bigint, reasoning_tokens bigint, usage_reported boolean, \
                    estimated boolean, refusal text, duration_ms bigint, ttft_ms bigint, status integer, cost_micros bigint) \
           JOIN LATERAL (SELECT name FROM principals WHERE id = e.principal_id \
                         UNION ALL \
                         SELECT name FROM former_principals WHERE id = e.principal_id \
                         LIMIT 1) AS p ON true \
           JOIN LATERAL (SELECT id, input_price_per_mtok AS input_price, \
                                output_price_per_mtok AS output_price \
                           FROM models WHERE name = e.model \
                         UNION ALL \
                         (SELECT id, NULL, NULL FROM former_models WHERE name = e.model \
                           ORDER BY id DESC LIMIT 1) \
                         LIMIT 1) AS m ON true",
        replica,
        events,
    )
    .execute(connection)
    .await?;
    Ok(done.rows_affected())
}

/// Notes when keys were used, at most once a minute and key. Rows that somebody
/// else holds are skipped: it is only a hint.
async fn touch_keys(db: &Db, events: &serde_json::Value) -> Result<(), DbError> {
    sqlx::query!(
        "WITH seen AS (SELECT key_id, max(at) AS at \
                         FROM jsonb_to_recordset($1) AS e (key_id bigint, at timestamptz) \
                        WHERE key_id IS NOT NULL GROUP BY key_id), \
              held AS (SELECT k.id, s.at FROM api_keys AS k JOIN seen AS s ON s.key_id = k.id \
                        WHERE k.last_used_at IS NULL OR k.last_used_at < s.at - interval '1 minute' \
                        FOR UPDATE OF k SKIP LOCKED) \
         UPDATE api_keys AS k SET last_used_at = held.at FROM held WHERE k.id = held.id",
        events,
    )
    .execute(db.pool())
    .await?;
    Ok(())
}

/// A stored event.
pub(crate) struct UsageRow {
    pub(crate) id: i64,
    pub(crate) at: OffsetDateTime,
    pub(crate) replica: String,
    pub(crate) principal_id: i64,
    pub(crate) principal: String,
    pub(crate) key_id: Option<i64>,
    pub(crate) model: String,
    pub(crate) requested_model: Option<String>,
    pub(crate) endpoint: Option<String>,
    pub(crate) request_id: Option<String>,
    pub(crate) attempts: Option<i64>,
    pub(crate) prompt_tokens: i64,
    pub(crate) completion_tokens: i64,
    pub(crate) cached_tokens: Option<i64>,
    pub(crate) reasoning_tokens: Option<i64>,
    pub(crate) usage_reported: bool,
    pub(crate) estimated: bool,
    pub(crate) refusal: Option<String>,
    pub(crate) duration_ms: Option<i64>,
    pub(crate) ttft_ms: Option<i64>,
    pub(crate) status: Option<i32>,
    pub(crate) cost_micros: Option<i64>,
}

/// Newest first.
pub(crate) async fn list(
    connection: &mut PgConnection,
    principal_id: Option<i64>,
    model: Option<&str>,
    page: Page,
) -> Result<Vec<UsageRow>, DbError> {
    let rows = sqlx::query_as!(
        UsageRow,
        "SELECT id, at, replica, principal_id, principal_name AS principal, key_id, model, \
                requested_model, endpoint, request_id, attempts, prompt_tokens, \
                completion_tokens, cached_tokens, reasoning_tokens, usage_reported, estimated, \
                refusal, duration_ms, ttft_ms, status, cost_micros \
           FROM usage_events \
          WHERE ($1::bigint IS NULL OR id < $1) AND ($2::bigint IS NULL OR principal_id = $2) \
            AND ($3::text IS NULL OR model = $3) \
          ORDER BY id DESC LIMIT $4",
        page.after,
        principal_id,
        model,
        page.limit,
    )
    .fetch_all(connection)
    .await?;
    Ok(rows)
}

pub(crate) async fn prune_reporters(connection: &mut PgConnection) -> Result<u64, DbError> {
    let done = sqlx::query!(
        "DELETE FROM usage_reporters WHERE seen_at < now() - make_interval(days => $1)",
        REPORTERS_KEPT_DAYS,
    )
    .execute(connection)
    .await?;
    Ok(done.rows_affected())
}
