use fastllm_contract::{BudgetSettlement, UsageEvent};
use fastllm_engine::pricing::{Charge, charge};
use fastllm_process::error::Chain;
use serde::Serialize;
use serde_json::value::RawValue;
use sqlx::{Acquire, PgConnection, PgTransaction};
use time::OffsetDateTime;

use super::resolve::{ResolvedEvent, resolve};
use super::{rejected, spending};
use crate::accounting::{Event, RejectedEvent, UsedAmounts};
use crate::db::{Db, DbError, Failure};

/// Identifies a batch: the gateway, its start and a sequence number.
pub(crate) struct BatchId<'a> {
    pub(crate) replica: &'a str,
    pub(crate) boot_id: &'a str,
    pub(crate) sequence: i64,
}

/// A parsed batch.
pub(crate) struct Batch<'a> {
    pub(crate) id: BatchId<'a>,
    pub(crate) events: Vec<Event>,
    /// Events that could not be read.
    pub(crate) rejected: Vec<RejectedEvent>,
    /// What the gateway settled for all events; `None` if it does not report it.
    pub(crate) settled: Option<Vec<BudgetSettlement>>,
}

/// The outcome of storing a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum BatchOutcome {
    /// The batch was stored.
    Stored(Stored),
    /// The batch had been stored before.
    Duplicate,
}

/// Numbers of events of a batch. The remaining events have principals or models that
/// never existed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Stored {
    pub(crate) accepted: u64,
    /// Accepted events of unknown cost.
    pub(crate) unpriced: u64,
    /// Events that cannot be read or stored.
    pub(crate) rejected: u64,
}

/// Stores a batch exactly once, even if it is received repeatedly or concurrently:
/// events, spending and the gateway's last sequence number are one transaction.
///
/// Events of deleted principals or models are stored; events of principals or models
/// that never existed are dropped. An event that the database rejects is stored in
/// `rejected_usage`.
pub(crate) async fn store(db: &Db, batch: &Batch<'_>) -> Result<BatchOutcome, DbError> {
    match attempt(db, batch, InsertMode::Batch).await {
        Err(error) if error.is_about_values() => {
            tracing::warn!(%error, replica = batch.id.replica, "cannot store a batch as a whole; storing its events one by one");
            attempt(db, batch, InsertMode::OneByOne).await
        }
        outcome => outcome,
    }
}

#[derive(Clone, Copy)]
enum InsertMode {
    /// In one statement.
    Batch,
    /// One statement per row, each with a savepoint.
    OneByOne,
}

async fn attempt(db: &Db, batch: &Batch<'_>, mode: InsertMode) -> Result<BatchOutcome, DbError> {
    let mut transaction = db.begin().await?;
    if !record_sequence(&mut transaction, &batch.id).await? {
        return Ok(BatchOutcome::Duplicate);
    }
    let resolved = resolve(&mut transaction, &batch.events).await?;
    let rows: Vec<Row<'_>> = resolved
        .iter()
        .filter_map(|resolved| Some(Row::new(batch.events.get(resolved.index)?, resolved)))
        .collect();
    let replica = batch.id.replica;
    let (rows, rejected_now) = match mode {
        InsertMode::Batch => {
            insert(&mut transaction, replica, &rows).await?;
            (rows, Vec::new())
        }
        InsertMode::OneByOne => insert_one_by_one(&mut transaction, replica, rows).await?,
    };
    let rejected: Vec<&RejectedEvent> = batch.rejected.iter().chain(&rejected_now).collect();
    if !rejected.is_empty() {
        rejected::insert(&mut transaction, &batch.id, &rejected).await?;
    }
    // Last, because other batches of the same budgets wait from here on.
    let used: Vec<UsedAmounts> = rows.iter().filter_map(Row::used).collect();
    spending::add(&mut transaction, batch, &used).await?;
    transaction.commit().await?;
    // The batch is stored: later errors must not be reported to the gateway.
    if let Err(error) = touch_keys(db, &rows).await {
        tracing::debug!(error = %Chain(&error), "cannot update the time of last use of keys");
    }
    let unpriced = rows.iter().filter(|row| row.charged_micros.is_none());
    Ok(BatchOutcome::Stored(Stored {
        accepted: rows.len() as u64,
        unpriced: unpriced.count() as u64,
        rejected: rejected.len() as u64,
    }))
}

/// Records the sequence number and returns whether the batch is new. Locks the row
/// of the gateway until the transaction ends.
async fn record_sequence(
    transaction: &mut PgTransaction<'static>,
    batch: &BatchId<'_>,
) -> Result<bool, DbError> {
    let recorded = query_scalar!(
        "INSERT INTO usage_reporters AS r (replica, boot_id, sequence) VALUES ($1, $2, $3) \
         ON CONFLICT (replica, boot_id) DO UPDATE \
            SET sequence = excluded.sequence, seen_at = clock_timestamp() \
          WHERE r.sequence < excluded.sequence \
         RETURNING sequence",
        batch.replica,
        batch.boot_id,
        batch.sequence,
    )
    .fetch_optional(transaction)
    .await?;
    Ok(recorded.is_some())
}

/// A row of `usage_events` except the gateway's name. Most columns have the names of
/// the event's members; its `at` and `cost_micros` are not stored.
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
    fn new(event: &'a Event, resolved: &'a ResolvedEvent) -> Self {
        let Charge { cost, saved } = charge(&event.usage, Some(&resolved.prices));
        Self {
            usage: &event.usage,
            arrived_at: event.at,
            principal_name: &resolved.principal,
            team_id: resolved.team_id,
            model_id: resolved.model_id,
            charged_micros: cost.map(|cost| signed(cost.0)),
            saved_cost_micros: saved.map(|cost| signed(cost.0)),
            raw: &event.raw,
        }
    }

    fn key_id(&self) -> Option<i64> {
        self.usage.key_id.map(|id| signed(id.0))
    }

    /// The amounts to add to budgets; `None` for a rejected request.
    fn used(&self) -> Option<UsedAmounts> {
        let tokens = self
            .usage
            .prompt_tokens
            .0
            .saturating_add(self.usage.completion_tokens.0);
        self.usage.refusal.is_none().then(|| UsedAmounts {
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
    let events = serde_json::to_value(rows).map_err(|source| Failure::Serialize {
        what: "usage events",
        source,
    })?;
    query!(
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

/// Inserts rows one by one. Returns the stored rows and the rejected events.
async fn insert_one_by_one<'a>(
    transaction: &mut PgTransaction<'static>,
    replica: &str,
    rows: Vec<Row<'a>>,
) -> Result<(Vec<Row<'a>>, Vec<RejectedEvent>), DbError> {
    let mut stored = Vec::with_capacity(rows.len());
    let mut rejected_now = Vec::new();
    for row in rows {
        let mut savepoint = transaction.begin().await?;
        match insert(&mut savepoint, replica, std::slice::from_ref(&row)).await {
            Ok(()) => {
                savepoint.commit().await?;
                stored.push(row);
            }
            Err(error) if error.is_about_values() => {
                savepoint.rollback().await?;
                rejected_now.push(RejectedEvent::new(error.to_string(), row.raw.get()));
            }
            Err(error) => return Err(error),
        }
    }
    Ok((stored, rejected_now))
}

/// Updates the time of last use of keys, at most once a minute per key. Skips locked
/// rows, because the time may be imprecise.
async fn touch_keys(db: &Db, rows: &[Row<'_>]) -> Result<(), DbError> {
    let used = rows
        .iter()
        .filter_map(|row| Some((row.key_id()?, row.arrived_at)));
    let (keys, times): (Vec<i64>, Vec<OffsetDateTime>) = used.unzip();
    if keys.is_empty() {
        return Ok(());
    }
    let mut transaction = db.begin().await?;
    query!(
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
    .execute(&mut transaction)
    .await?;
    transaction.commit().await?;
    Ok(())
}
