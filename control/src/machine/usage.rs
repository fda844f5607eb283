use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use fastllm_contract::{RefusalKind, UsageBatch, UsageEvent, UsageReply};
use time::{Duration, OffsetDateTime};

use super::{AppState, check_name};
use crate::api::{ApiError, Body};
use crate::clock;
use crate::db::usage::{BatchId, BatchOutcome, UsageRecord, store};
use crate::metrics::BatchLabel;

/// How far a gateway's clock may be ahead before its times are not believed.
const CLOCK_SKEW: Duration = Duration::minutes(5);

/// Stores a batch of usage events once.
pub(super) async fn post(
    State(app): AppState,
    body: Result<Body<UsageBatch>, ApiError>,
) -> Result<Json<UsageReply>, ApiError> {
    let checked = body.and_then(|Body(batch)| check(batch));
    let batch = checked.inspect_err(|_| app.metrics.usage_batch(BatchLabel::Refused))?;
    let UsageBatch {
        replica,
        boot_id,
        sequence,
        events,
    } = batch;
    let count = events.len() as u64;
    let now = clock::now();
    let records: Vec<UsageRecord> = events.into_iter().map(|event| record(event, now)).collect();
    let id = BatchId {
        replica: &replica,
        boot_id: &boot_id,
        sequence: i64::try_from(sequence).unwrap_or(i64::MAX),
    };
    let outcome = store(&app.db, &id, &records)
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
        BatchOutcome::Stored(accepted) => {
            let dropped = count.saturating_sub(accepted);
            app.metrics.usage_batch(BatchLabel::Stored);
            app.metrics.usage_events(accepted, dropped);
            if dropped > 0 {
                tracing::warn!(replica, dropped, "usage of unknown principals or models");
            }
            UsageReply {
                accepted,
                dropped,
                duplicate: false,
            }
        }
    }))
}

fn check(batch: UsageBatch) -> Result<UsageBatch, ApiError> {
    check_name("replica", &batch.replica)?;
    check_name("boot_id", &batch.boot_id)?;
    if batch.sequence == 0 {
        return Err(ApiError::invalid("sequence", "sequence begins at 1"));
    }
    if batch.events.len() > UsageBatch::MAX_EVENTS {
        return Err(ApiError::new(
            StatusCode::PAYLOAD_TOO_LARGE,
            "batch_too_large",
            format!("a batch may have at most {} events", UsageBatch::MAX_EVENTS),
        )
        .field("events"));
    }
    Ok(batch)
}

/// A row that the database accepts whatever the gateway wrote: one event must
/// not spoil its batch.
fn record(event: UsageEvent, now: OffsetDateTime) -> UsageRecord {
    let UsageEvent {
        principal_id,
        key_id,
        model,
        requested_model,
        endpoint,
        request_id,
        attempts,
        prompt_tokens,
        completion_tokens,
        cached_tokens,
        reasoning_tokens,
        cache_write_tokens: _,
        audio_prompt_tokens: _,
        audio_completion_tokens: _,
        images: _,
        input_characters: _,
        audio_ms: _,
        audio_bytes: _,
        usage_reported,
        estimated,
        cached: _,
        metadata: _,
        refusal,
        at,
        duration_ms,
        ttft_ms,
        status,
        cost_micros,
    } = event;
    let number = |value: u64| i64::try_from(value).unwrap_or(i64::MAX);
    let at = OffsetDateTime::from_unix_timestamp_nanos(i128::from(at.0) * 1000)
        .ok()
        .filter(|at| *at <= now + CLOCK_SKEW && at.year() >= 2000);
    UsageRecord {
        at: at.unwrap_or(now),
        principal_id: number(principal_id.0),
        key_id: key_id.map(|id| number(id.0)),
        model: model.to_string(),
        requested_model: requested_model.map(|model| model.to_string()),
        endpoint: endpoint.and_then(|endpoint| storable(endpoint.into_owned())),
        request_id: request_id.and_then(storable),
        attempts: attempts.map(i64::from),
        prompt_tokens: number(prompt_tokens.0),
        completion_tokens: number(completion_tokens.0),
        cached_tokens: cached_tokens.map(|tokens| number(tokens.0)),
        reasoning_tokens: reasoning_tokens.map(|tokens| number(tokens.0)),
        usage_reported,
        estimated,
        refusal: refusal.map(|kind| refusal_name(kind).to_owned()),
        duration_ms: duration_ms.map(i64::from),
        ttft_ms: ttft_ms.map(i64::from),
        status: status.map(i32::from),
        cost_micros: cost_micros.map(|cost| number(cost.0)),
    }
}

/// A text as a gateway writes it; anything else is left out.
fn storable(text: String) -> Option<String> {
    /// Longest text of an event, in bytes.
    const LONGEST: usize = 128;
    let fits = (1..=LONGEST).contains(&text.len());
    (fits && text.bytes().all(|byte| byte.is_ascii_graphic())).then_some(text)
}

fn refusal_name(kind: RefusalKind) -> &'static str {
    match kind {
        RefusalKind::Authorisation => "authorisation",
        RefusalKind::RateLimit => "rate_limit",
        RefusalKind::Budget => "budget",
        RefusalKind::NoBackend => "no_backend",
        RefusalKind::Overload => "overload",
        RefusalKind::Unknown => "unknown",
    }
}

#[cfg(test)]
mod tests {
    use fastllm_contract::{ModelName, PrincipalId, Timestamp, Tokens};

    use super::*;

    #[test]
    fn absurd_values_become_storable_ones() {
        let now = clock::now();
        let event = |at: i64| UsageEvent {
            cache_write_tokens: None,
            audio_prompt_tokens: None,
            audio_completion_tokens: None,
            images: None,
            input_characters: None,
            audio_ms: None,
            audio_bytes: None,
            cached: false,
            metadata: None,
            principal_id: PrincipalId(u64::MAX),
            key_id: None,
            model: ModelName::new("m").unwrap(),
            requested_model: None,
            endpoint: Some("/chat\0".into()),
            request_id: Some("a".repeat(129)),
            attempts: Some(u32::MAX),
            prompt_tokens: Tokens(u64::MAX),
            completion_tokens: Tokens(1),
            cached_tokens: Some(Tokens(u64::MAX)),
            reasoning_tokens: None,
            usage_reported: true,
            estimated: false,
            refusal: None,
            at: Timestamp(at),
            duration_ms: None,
            ttft_ms: None,
            status: None,
            cost_micros: None,
        };
        for at in [i64::MIN, i64::MAX, 0] {
            assert_eq!(record(event(at), now).at, now, "{at}");
        }
        let an_hour_ago = now - Duration::hours(1);
        let micros = i64::try_from(an_hour_ago.unix_timestamp_nanos() / 1000).unwrap();
        let stored = record(event(micros), now);
        assert!((stored.at - an_hour_ago).abs() < Duration::milliseconds(1));
        assert_eq!(stored.prompt_tokens, i64::MAX);
        assert_eq!(stored.principal_id, i64::MAX);
        assert_eq!(stored.cached_tokens, Some(i64::MAX));
        assert_eq!((stored.endpoint, stored.request_id), (None, None));
    }
}
