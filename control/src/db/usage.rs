//! Storage, pricing and reports of usage events.

mod rejected;
mod report;
mod resolve;
mod spending;
mod store;

use sqlx::PgConnection;
use time::OffsetDateTime;

use super::{DbError, Page};

pub(crate) use rejected::prune as prune_rejected;
pub(crate) use report::{Grouping, UsageTotal, totals};
pub(crate) use store::{Batch, BatchId, BatchOutcome, Stored, store};

/// How long the last batch number of a gateway's start is remembered. A batch
/// repeated later than that would be stored again.
const REPORTERS_KEPT_DAYS: i32 = 7;

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
    pub(crate) cache_write_tokens: Option<i64>,
    pub(crate) audio_prompt_tokens: Option<i64>,
    pub(crate) audio_completion_tokens: Option<i64>,
    pub(crate) images: Option<i64>,
    pub(crate) input_characters: Option<i64>,
    pub(crate) audio_ms: Option<i64>,
    pub(crate) audio_bytes: Option<i64>,
    pub(crate) usage_reported: bool,
    pub(crate) estimated: bool,
    pub(crate) cached: bool,
    pub(crate) refusal: Option<String>,
    pub(crate) duration_ms: Option<i64>,
    pub(crate) ttft_ms: Option<i64>,
    pub(crate) status: Option<i32>,
    pub(crate) cost_micros: Option<i64>,
    pub(crate) saved_cost_micros: Option<i64>,
    pub(crate) team_id: Option<i64>,
    pub(crate) metadata: Option<serde_json::Value>,
}

/// Which events a list shows.
#[derive(Debug, Default)]
pub(crate) struct UsageFilter {
    pub(crate) principal_id: Option<i64>,
    pub(crate) key_id: Option<i64>,
    pub(crate) model: Option<String>,
    /// Only where the metadata has all of these.
    pub(crate) metadata: Option<serde_json::Value>,
}

/// Newest first.
pub(crate) async fn list(
    connection: &mut PgConnection,
    filter: &UsageFilter,
    page: Page,
) -> Result<Vec<UsageRow>, DbError> {
    let UsageFilter {
        principal_id,
        key_id,
        model,
        metadata,
    } = filter;
    let rows = query_as!(
        UsageRow,
        "SELECT id, at, replica, principal_id, principal_name AS principal, key_id, model, \
                requested_model, endpoint, request_id, attempts, prompt_tokens, \
                completion_tokens, cached_tokens, reasoning_tokens, cache_write_tokens, \
                audio_prompt_tokens, audio_completion_tokens, images, input_characters, \
                audio_ms, audio_bytes, usage_reported, estimated, cached, refusal, duration_ms, \
                ttft_ms, status, cost_micros, saved_cost_micros, team_id, metadata \
           FROM usage_events \
          WHERE ($1::bigint IS NULL OR id < $1) AND ($2::bigint IS NULL OR principal_id = $2) \
            AND ($3::text IS NULL OR model = $3) AND ($4::bigint IS NULL OR key_id = $4) \
            AND ($5::jsonb IS NULL OR metadata @> $5) \
          ORDER BY id DESC LIMIT $6",
        page.after,
        *principal_id,
        model.as_deref(),
        *key_id,
        metadata.as_ref(),
        page.limit,
    )
    .fetch_all(connection)
    .await?;
    Ok(rows)
}

pub(crate) async fn prune_reporters(connection: &mut PgConnection) -> Result<u64, DbError> {
    let done = query!(
        "DELETE FROM usage_reporters WHERE seen_at < now() - make_interval(days => $1)",
        REPORTERS_KEPT_DAYS,
    )
    .execute(connection)
    .await?;
    Ok(done.rows_affected())
}
