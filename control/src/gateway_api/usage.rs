use axum::extract::State;
use fastllm_contract::{BudgetSettlement, UsageBatch, UsageReply};
use serde::Deserialize;
use serde_json::value::RawValue;

use super::check_name;
use crate::accounting;
use crate::api::{ApiError, ErrorCode, Json};
use crate::app::AppState;
use crate::clock;
use crate::db::usage::{Batch, BatchId, BatchOutcome, Stored, store};
use crate::metrics::{BatchLabel, EventCounts};

/// The maximum size of a batch, in bytes: the maximum number of events with the
/// maximum of metadata, all of its characters escaped.
pub(super) const MAX_BODY: usize = 32 * 1024 * 1024;

/// A [`UsageBatch`] whose events are not parsed yet.
#[derive(Deserialize)]
pub(super) struct UnreadBatch {
    replica: String,
    boot_id: String,
    sequence: u64,
    events: Vec<Box<RawValue>>,
    #[serde(default)]
    settled: Option<Vec<BudgetSettlement>>,
}

/// Stores a batch of usage events exactly once.
pub(super) async fn post(
    State(app): State<AppState>,
    body: Result<Json<UnreadBatch>, ApiError>,
) -> Result<Json<UsageReply>, ApiError> {
    let checked = body.and_then(|Json(batch)| check(batch));
    let UnreadBatch {
        replica,
        boot_id,
        sequence,
        events,
        settled,
    } = checked.inspect_err(|_| app.metrics.usage_batch(BatchLabel::Refused))?;
    let count = events.len() as u64;
    let mut batch = Batch {
        id: BatchId {
            replica: &replica,
            boot_id: &boot_id,
            sequence: i64::try_from(sequence).unwrap_or(i64::MAX),
        },
        events: Vec::with_capacity(events.len()),
        rejected: Vec::new(),
        settled,
    };
    let now = clock::now();
    for raw in events {
        match accounting::read(raw, now) {
            Ok(event) => batch.events.push(event),
            Err(rejected) => batch.rejected.push(rejected),
        }
    }
    let outcome = store(&app.db.gateways, &batch)
        .await
        .inspect_err(|_| app.metrics.usage_batch(BatchLabel::Failed))?;
    Ok(Json(match outcome {
        BatchOutcome::Duplicate => {
            app.metrics.usage_batch(BatchLabel::Duplicate);
            UsageReply {
                accepted: 0,
                dropped: 0,
                duplicate: true,
            }
        }
        BatchOutcome::Stored(stored) => {
            app.metrics.usage_batch(BatchLabel::Stored);
            let counts = counts(&batch, count, stored);
            app.metrics.usage_events(counts);
            log_losses(&replica, &counts);
            UsageReply {
                accepted: counts.accepted,
                dropped: counts.dropped + counts.rejected,
                duplicate: false,
            }
        }
    }))
}

fn counts(batch: &Batch<'_>, count: u64, stored: Stored) -> EventCounts {
    let Stored {
        accepted,
        unpriced,
        rejected,
    } = stored;
    let without_metadata = batch.events.iter().filter(|event| event.metadata_dropped);
    EventCounts {
        accepted,
        unpriced,
        dropped: count.saturating_sub(accepted + rejected),
        rejected,
        metadata_dropped: without_metadata.count() as u64,
    }
}

fn log_losses(replica: &str, counts: &EventCounts) {
    let EventCounts {
        dropped, rejected, ..
    } = *counts;
    if dropped > 0 {
        tracing::warn!(
            replica,
            dropped,
            "dropped usage events of unknown principals or models"
        );
    }
    if rejected > 0 {
        tracing::warn!(
            replica,
            rejected,
            "rejected usage events that cannot be read or stored"
        );
    }
}

fn check(batch: UnreadBatch) -> Result<UnreadBatch, ApiError> {
    check_name("replica", &batch.replica)?;
    check_name("boot_id", &batch.boot_id)?;
    if batch.sequence == 0 {
        return Err(ApiError::invalid("sequence", "sequence starts at 1"));
    }
    if batch.events.len() > UsageBatch::MAX_EVENTS {
        return Err(ApiError::new(
            ErrorCode::BatchTooLarge,
            format!("a batch may have at most {} events", UsageBatch::MAX_EVENTS),
        )
        .with_field("events"));
    }
    if batch.settled.as_ref().map_or(0, Vec::len) > UsageBatch::MAX_SETTLED {
        let most = UsageBatch::MAX_SETTLED;
        return Err(ApiError::new(
            ErrorCode::BatchTooLarge,
            format!("a batch may have at most {most} settled amounts"),
        )
        .with_field("settled"));
    }
    Ok(batch)
}
