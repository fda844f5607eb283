use fastllm_contract::{KeyId, Micros, PrincipalId, Timestamp, Tokens, UsageEvent};
use serde::Deserialize;
use serde_json::Value;
use serde_json::value::RawValue;
use time::{Duration, OffsetDateTime};

use super::{RejectedEvent, moment, timestamp};
use crate::objects::Objects;

/// The maximum time by which a gateway's clock may be ahead. Later times are
/// replaced by the time of receipt.
const CLOCK_SKEW: Duration = Duration::minutes(5);

/// A usage event whose values can all be stored in the database.
#[derive(Debug)]
pub(crate) struct Event {
    /// As stored: numbers fit into 63 bits, texts are printable ASCII, metadata
    /// is within its bounds.
    pub(crate) usage: UsageEvent,
    /// The time of the request's arrival, equal to `usage.at`.
    pub(crate) at: OffsetDateTime,
    /// Metadata outside its bounds was removed.
    pub(crate) metadata_dropped: bool,
    /// As received.
    pub(crate) raw: Box<RawValue>,
}

/// Parses one event of a batch. An impossible time is replaced by `now`.
pub(crate) fn read(raw: Box<RawValue>, now: OffsetDateTime) -> Result<Event, RejectedEvent> {
    let (usage, metadata_dropped) = match parse(raw.get()) {
        Ok(usage) => (usage, false),
        Err(reason) => match without_metadata(raw.get()) {
            Some(usage) => (usage, true),
            None => return Err(RejectedEvent::new(reason, raw.get())),
        },
    };
    let arrival = moment(usage.at)
        .filter(|at| *at <= now + CLOCK_SKEW && at.year() >= 2000)
        .unwrap_or(now);
    // Whole microseconds, so that the row and the budget it applies to are in the
    // same window.
    let at = timestamp(arrival);
    Ok(Event {
        at: moment(at).unwrap_or(arrival),
        usage: storable(usage, at),
        metadata_dropped,
        raw,
    })
}

/// The error names the member, never its value.
fn parse(text: &str) -> Result<UsageEvent, String> {
    let mut reader = serde_json::Deserializer::from_str(text);
    serde_path_to_error::deserialize(Objects(&mut reader)).map_err(|error| {
        let path = error.path().to_string();
        let missing = error.inner().to_string();
        match missing.strip_prefix("missing field `") {
            None if path == "." => "the event is not an object".to_owned(),
            Some(rest) => {
                let name = rest.split('`').next().unwrap_or_default();
                format!("{name} is missing")
            }
            None => format!("{path} cannot be read"),
        }
    })
}

fn without_metadata(text: &str) -> Option<UsageEvent> {
    let mut members: serde_json::Map<String, Value> = serde_json::from_str(text).ok()?;
    members.remove("metadata")?;
    UsageEvent::deserialize(Value::Object(members)).ok()
}

fn storable(event: UsageEvent, at: Timestamp) -> UsageEvent {
    const MAX: u64 = i64::MAX.unsigned_abs();
    let tokens = |tokens: Tokens| Tokens(tokens.0.min(MAX));
    let count = |count: u64| count.min(MAX);
    UsageEvent {
        principal_id: PrincipalId(count(event.principal_id.0)),
        key_id: event.key_id.map(|id| KeyId(count(id.0))),
        endpoint: event
            .endpoint
            .and_then(|endpoint| text(endpoint.into_owned()))
            .map(Into::into),
        request_id: event.request_id.and_then(text),
        prompt_tokens: tokens(event.prompt_tokens),
        completion_tokens: tokens(event.completion_tokens),
        cached_tokens: event.cached_tokens.map(tokens),
        reasoning_tokens: event.reasoning_tokens.map(tokens),
        cache_write_tokens: event.cache_write_tokens.map(tokens),
        audio_prompt_tokens: event.audio_prompt_tokens.map(tokens),
        audio_completion_tokens: event.audio_completion_tokens.map(tokens),
        input_characters: event.input_characters.map(count),
        audio_ms: event.audio_ms.map(count),
        audio_bytes: event.audio_bytes.map(count),
        cost_micros: event.cost_micros.map(|cost| Micros(count(cost.0))),
        at,
        ..event
    }
}

/// A text in the form that gateways send; `None` for any other.
fn text(text: String) -> Option<String> {
    /// The maximum length of a text of an event, in bytes.
    const MAX_LENGTH: usize = 128;
    let fits = (1..=MAX_LENGTH).contains(&text.len());
    (fits && text.bytes().all(|byte| byte.is_ascii_graphic())).then_some(text)
}

#[cfg(test)]
mod tests;
