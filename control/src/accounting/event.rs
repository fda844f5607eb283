use fastllm_contract::{
    KeyId, Metadata, MetadataValue, Micros, PrincipalId, Timestamp, Tokens, UsageEvent,
};
use serde::Deserialize;
use serde_json::Value;
use serde_json::value::RawValue;
use time::{Duration, OffsetDateTime};

use super::{RejectedEvent, moment, timestamp};

/// How far a gateway's clock may be ahead before its times are not believed.
const CLOCK_SKEW: Duration = Duration::minutes(5);

/// A usage event whose every value the database takes.
#[derive(Debug)]
pub(crate) struct Event {
    /// As it is stored: numbers fit into 63 bits, texts have no surprises,
    /// metadata keeps to its bounds.
    pub(crate) usage: UsageEvent,
    /// When the request arrived; `usage.at` is the same.
    pub(crate) at: OffsetDateTime,
    /// It came with metadata beyond its bounds, which is left out.
    pub(crate) metadata_dropped: bool,
    /// As it came.
    pub(crate) raw: Box<RawValue>,
}

/// Reads one event of a batch: what is wrong with one is nothing to the others.
/// A time that cannot be is taken for `now`.
pub(crate) fn read(raw: Box<RawValue>, now: OffsetDateTime) -> Result<Event, RejectedEvent> {
    let (mut usage, mut metadata_dropped) = match parse(raw.get()) {
        Ok(usage) => (usage, false),
        Err(reason) => match without_metadata(raw.get()) {
            Some(usage) => (usage, true),
            None => return Err(RejectedEvent::new(reason, raw.get())),
        },
    };
    if usage.metadata.as_ref().is_some_and(|all| !is_storable(all)) {
        usage.metadata = None;
        metadata_dropped = true;
    }
    let believed = moment(usage.at)
        .filter(|at| *at <= now + CLOCK_SKEW && at.year() >= 2000)
        .unwrap_or(now);
    // Whole microseconds, so that a row lies in the window that it raises.
    let at = timestamp(believed);
    Ok(Event {
        at: moment(at).unwrap_or(believed),
        usage: storable(usage, at),
        metadata_dropped,
        raw,
    })
}

/// The reason for a refusal names the member, never its value.
fn parse(text: &str) -> Result<UsageEvent, String> {
    let mut reader = serde_json::Deserializer::from_str(text);
    serde_path_to_error::deserialize(&mut reader).map_err(|error| {
        let path = error.path().to_string();
        let missing = error.inner().to_string();
        match missing.strip_prefix("missing field `") {
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

/// Whether the database takes its texts.
fn is_storable(metadata: &Metadata) -> bool {
    metadata
        .iter()
        .all(|(_, value)| !matches!(value, MetadataValue::Text(text) if text.contains('\0')))
}

fn storable(event: UsageEvent, at: Timestamp) -> UsageEvent {
    const MOST: u64 = i64::MAX.unsigned_abs();
    let tokens = |tokens: Tokens| Tokens(tokens.0.min(MOST));
    let count = |count: u64| count.min(MOST);
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

/// A text as a gateway writes it; anything else is left out.
fn text(text: String) -> Option<String> {
    /// Longest text of an event, in bytes.
    const LONGEST: usize = 128;
    let fits = (1..=LONGEST).contains(&text.len());
    (fits && text.bytes().all(|byte| byte.is_ascii_graphic())).then_some(text)
}

#[cfg(test)]
mod tests;
