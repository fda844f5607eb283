use fastllm_contract::UsageEvent;
use fastllm_engine::pricing::{Charge, charge};
use serde::Serialize;
use serde_json::value::RawValue;
use sqlx::{Acquire, PgConnection, PgTransaction};
use time::OffsetDateTime;

use super::resolve::{Known, resolve};
use super::{rejected, spending};
use crate::accounting::{Event, RejectedEvent, Used};
use crate::db::{Db, DbError};

/// Which batch of which start of which gateway.
pub(crate) struct BatchId<'a> {
    pub(crate) replica: &'a str,
    pub(crate) boot_id: &'a str,
    pub(crate) sequence: i64,
}

/// A batch that is read.
pub(crate) struct Batch<'a> {
    pub(crate) id: BatchId<'a>,
    pub(crate) events: Vec<Event>,
    /// What could not be read.
    pub(crate) rejected: Vec<RejectedEvent>,
}

/// What became of a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum BatchOutcome {
    /// It is stored now.
    Stored(Stored),
    /// It was stored before.
    Duplicate,
}

/// How many events of a batch went where; the others are of principals or models
/// that never existed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Stored {
    pub(crate) accepted: u64,
    /// Of those that are accepted, the ones whose cost nobody knows.
    pub(crate) unpriced: u64,
    /// Neither readable nor storable, and set aside.
    pub(crate) rejected: u64,
}

/// Stores a batch once, however often and from however many connections it
/// comes: its events, what they add to budgets and the gateway's high-water mark
/// are one transaction.
///
/// An event whose principal or model never existed is left out; one whose
/// principal or model was deleted since is history and kept. An event that the
/// database refuses is set aside, and the others are stored.
pub(crate) async fn store(db: &Db, batch: &Batch<'_>) -> Result<BatchOutcome, DbError> {
    match attempt(db, batch, Insert::Together).await {
        Err(error) if error.is_about_values() => {
            tracing::warn!(%error, replica = batch.id.replica, "a batch is stored one by one");
            attempt(db, batch, Insert::Apart).await
        }
        outcome => outcome,
    }
}

#[derive(Clone, Copy)]
enum Insert {
    /// In one statement.
    Together,
    /// One by one, each under a savepoint.
    Apart,
}

async fn attempt(db: &Db, batch: &Batch<'_>, how: Insert) -> Result<BatchOutcome, DbError> {
    let mut transaction = db.pool().begin().await?;
    if !claim(&mut transaction, &batch.id).await? {
        return Ok(BatchOutcome::Duplicate);
    }
    let known = resolve(&mut transaction, &batch.events).await?;
    let rows: Vec<Row<'_>> = known
        .iter()
        .filter_map(|known| Some(Row::of(batch.events.get(known.index)?, known)))
        .collect();
    let replica = batch.id.replica;
    let (rows, refused) = match how {
        Insert::Together => {
            insert(&mut transaction, replica, &rows).await?;
            (rows, Vec::new())
        }
        Insert::Apart => apart(&mut transaction, replica, rows).await?,
    };
    let rejected: Vec<&RejectedEvent> = batch.rejected.iter().chain(&refused).collect();
    if !rejected.is_empty() {
        rejected::insert(&mut transaction, &batch.id, &rejected).await?;
    }
    // Last, since other batches of the same budgets wait from here on.
    let used: Vec<Used> = rows.iter().filter_map(Row::used).collect();
    spending::raise(&mut transaction, &batch.id, &used).await?;
    transaction.commit().await?;
    // The batch is stored: what fails from here on must not make it look lost.
    if let Err(error) = touch_keys(db, &rows).await {
        tracing::debug!(%error, "the keys' last use is not noted");
    }
    let unpriced = rows.iter().filter(|row| row.charged_micros.is_none());
    Ok(BatchOutcome::Stored(Stored {
        accepted: rows.len() as u64,
        unpriced: unpriced.count() as u64,
        rejected: rejected.len() as u64,
    }))
}

/// Whether the batch is new; holds the gateway's row until the end.
async fn claim(
    transaction: &mut PgTransaction<'static>,
    batch: &BatchId<'_>,
) -> Result<bool, DbError> {
    let claimed = sqlx::query_scalar!(
        "INSERT INTO usage_reporters AS r (replica, boot_id, sequence) VALUES ($1, $2, $3) \
         ON CONFLICT (replica, boot_id) DO UPDATE \
            SET sequence = excluded.sequence, seen_at = now() \
          WHERE r.sequence < excluded.sequence \
         RETURNING sequence",
        batch.replica,
        batch.boot_id,
        batch.sequence,
    )
    .fetch_optional(&mut **transaction)
    .await?;
    Ok(claimed.is_some())
}

/// A row of `usage_events`, but for the gateway's name. Most columns are called
/// as the event's own members; its `at` and `cost_micros` are not columns.
#[derive(Serialize)]
struct Row<'a> {
    #[serde(flatten)]
    usage: &'a UsageEvent,
    #[serde(with = "time::serde::rfc3339")]
    arrived_at: OffsetDateTime,
    principal_name: &'a str,
    team_id: Option<i64>,
    model_id: i64,
    charged_micros: Option<i64>,
    saved_cost_micros: Option<i64>,
    #[serde(skip)]
    raw: &'a RawValue,
}

impl<'a> Row<'a> {
    fn of(event: &'a Event, known: &'a Known) -> Self {
        let Charge { cost, saved } = charge(&event.usage, Some(&known.prices));
        Self {
            usage: &event.usage,
            arrived_at: event.at,
            principal_name: &known.principal,
            team_id: known.team_id,
            model_id: known.model_id,
            charged_micros: cost.map(|cost| signed(cost.0)),
            saved_cost_micros: saved.map(|cost| signed(cost.0)),
            raw: &event.raw,
        }
    }

    fn key_id(&self) -> Option<i64> {
        self.usage.key_id.map(|id| signed(id.0))
    }

    /// What it adds to budgets; nothing for a refusal.
    fn used(&self) -> Option<Used> {
        let tokens = self
            .usage
            .prompt_tokens
            .0
            .saturating_add(self.usage.completion_tokens.0);
        self.usage.refusal.is_none().then(|| Used {
            at: self.usage.at,
            principal_id: signed(self.usage.principal_id.0),
            model_id: self.model_id,
            key_id: self.key_id(),
            team_id: self.team_id,
            tokens: signed(tokens),
            cost_micros: self.charged_micros.unwrap_or(0),
        })
    }
}

fn signed(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

async fn insert(
    connection: &mut PgConnection,
    replica: &str,
    rows: &[Row<'_>],
) -> Result<(), DbError> {
    let events = serde_json::to_value(rows)
        .map_err(|_| DbError::Failed("usage events cannot be written".to_owned()))?;
    sqlx::query!(
        "INSERT INTO usage_events (at, replica, principal_id, principal_name, key_id, team_id, \
                model_id, model, requested_model, endpoint, request_id, attempts, prompt_tokens, \
                completion_tokens, cached_tokens, reasoning_tokens, cache_write_tokens, \
                audio_prompt_tokens, audio_completion_tokens, images, input_characters, audio_ms, \
                audio_bytes, usage_reported, estimated, cached, refusal, duration_ms, ttft_ms, \
                status, cost_micros, saved_cost_micros, metadata) \
         SELECT e.arrived_at, $1, e.principal_id, e.principal_name, e.key_id, e.team_id, e.model_id, \
                e.model, e.requested_model, e.endpoint, e.request_id, e.attempts, \
                e.prompt_tokens, e.completion_tokens, e.cached_tokens, e.reasoning_tokens, \
                e.cache_write_tokens, e.audio_prompt_tokens, e.audio_completion_tokens, \
                e.images, e.input_characters, e.audio_ms, e.audio_bytes, e.usage_reported, \
                coalesce(e.estimated, false), coalesce(e.cached, false), e.refusal, \
                e.duration_ms, e.ttft_ms, e.status, e.charged_micros, e.saved_cost_micros, \
                e.metadata \
           FROM jsonb_to_recordset($2) AS e (arrived_at timestamptz, principal_id bigint, \
                    principal_name text, key_id bigint, team_id bigint, model_id bigint, \
                    model text, requested_model text, endpoint text, request_id text, \
                    attempts bigint, prompt_tokens bigint, completion_tokens bigint, \
                    cached_tokens bigint, reasoning_tokens bigint, cache_write_tokens bigint, \
                    audio_prompt_tokens bigint, audio_completion_tokens bigint, images bigint, \
                    input_characters bigint, audio_ms bigint, audio_bytes bigint, \
                    usage_reported boolean, estimated boolean, cached boolean, refusal text, \
                    duration_ms bigint, ttft_ms bigint, status integer, charged_micros bigint, \
                    saved_cost_micros bigint, metadata jsonb)",
        replica,
        events,
    )
    .execute(connection)
    .await?;
    Ok(())
}

/// Stores rows one by one: those that the database took, and the others.
async fn apart<'a>(
    transaction: &mut PgTransaction<'static>,
    replica: &str,
    rows: Vec<Row<'a>>,
) -> Result<(Vec<Row<'a>>, Vec<RejectedEvent>), DbError> {
    let mut stored = Vec::with_capacity(rows.len());
    let mut refused = Vec::new();
    for row in rows {
        let mut savepoint = transaction.begin().await?;
        match insert(&mut savepoint, replica, std::slice::from_ref(&row)).await {
            Ok(()) => {
                savepoint.commit().await?;
                stored.push(row);
            }
            Err(error) if error.is_about_values() => {
                savepoint.rollback().await?;
                refused.push(RejectedEvent::new(error.to_string(), row.raw.get()));
            }
            Err(error) => return Err(error),
        }
    }
    Ok((stored, refused))
}

/// Notes when keys were used, at most once a minute and key. Rows that somebody
/// else holds are skipped: it is only a hint.
async fn touch_keys(db: &Db, rows: &[Row<'_>]) -> Result<(), DbError> {
    let used = rows
        .iter()
        .filter_map(|row| Some((row.key_id()?, row.arrived_at)));
    let (keys, times): (Vec<i64>, Vec<OffsetDateTime>) = used.unzip();
    if keys.is_empty() {
        return Ok(());
    }
    sqlx::query!(
        "WITH seen AS (SELECT key_id, max(at) AS at \
                         FROM unnest($1::bigint[], $2::timestamptz[]) AS e (key_id, at) \
                        GROUP BY key_id), \
              held AS (SELECT k.id, s.at FROM api_keys AS k JOIN seen AS s ON s.key_id = k.id \
                        WHERE k.last_used_at IS NULL OR k.last_used_at < s.at - interval '1 minute' \
                        FOR UPDATE OF k SKIP LOCKED) \
         UPDATE api_keys AS k SET last_used_at = held.at FROM held WHERE k.id = held.id",
        &keys,
        &times,
    )
    .execute(db.pool())
    .await?;
    Ok(())
}
