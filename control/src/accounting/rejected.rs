use serde_json::Value;

/// An event that cannot be read or stored, and an excerpt that contains no secrets.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct RejectedEvent {
    /// The reason; contains no value of the event.
    pub(crate) reason: String,
    /// The members that cannot contain a secret; `null` if the event is not an
    /// object. Bounded, and without characters that the database cannot store.
    pub(crate) excerpt: Value,
}

impl RejectedEvent {
    pub(crate) fn new(reason: impl Into<String>, event: &str) -> Self {
        Self {
            reason: reason.into(),
            excerpt: serde_json::from_str(event).map(excerpt).unwrap_or_default(),
        }
    }
}

/// Members that are texts.
const TEXTS: [&str; 5] = [
    "model",
    "requested_model",
    "endpoint",
    "request_id",
    "refusal",
];

/// Members that are numbers or flags. Metadata is in neither list, because clients
/// set it.
const NUMBERS: [&str; 22] = [
    "principal_id",
    "key_id",
    "attempts",
    "prompt_tokens",
    "completion_tokens",
    "cached_tokens",
    "reasoning_tokens",
    "cache_write_tokens",
    "audio_prompt_tokens",
    "audio_completion_tokens",
    "images",
    "input_characters",
    "audio_ms",
    "audio_bytes",
    "usage_reported",
    "estimated",
    "cached",
    "at",
    "duration_ms",
    "ttft_ms",
    "status",
    "cost_micros",
];

fn excerpt(event: Value) -> Value {
    let Value::Object(members) = event else {
        return Value::Null;
    };
    let excerpt = members.into_iter().filter_map(|(name, value)| {
        let is_text = TEXTS.contains(&name.as_str());
        let known = is_text || NUMBERS.contains(&name.as_str());
        known.then(|| (name, safe_value(value, is_text)))
    });
    Value::Object(excerpt.collect())
}

/// The value, or the name of its type if the value may contain a secret.
fn safe_value(value: Value, is_text: bool) -> Value {
    const MAX_LENGTH: usize = 256;
    let kind = match &value {
        Value::Null | Value::Bool(_) | Value::Number(_) => return value,
        Value::String(text) => {
            if is_text && text.len() <= MAX_LENGTH && !text.chars().any(char::is_control) {
                return value;
            }
            "a text"
        }
        Value::Array(_) => "an array",
        Value::Object(_) => "an object",
    };
    Value::String(format!("({kind})"))
}

#[cfg(test)]
mod tests {
    use fastllm_contract::{Metadata, UsageEvent};
    use serde_json::json;

    use super::*;

    #[test]
    fn the_excerpt_contains_every_member_except_metadata() {
        let mut full = json!({ "usage_reported": true, "estimated": true, "cached": true });
        for name in NUMBERS {
            if full.get(name).is_none() {
                full[name] = json!(7);
            }
        }
        for name in TEXTS {
            full[name] = json!("budget");
        }
        let event: UsageEvent = serde_json::from_value(full.clone()).unwrap();
        let mut written = serde_json::to_value(UsageEvent {
            metadata: Some(Metadata::default()),
            ..event
        })
        .unwrap();
        assert!(
            written
                .as_object_mut()
                .unwrap()
                .remove("metadata")
                .is_some()
        );
        assert_eq!(written, full);
        assert_eq!(excerpt(written), full);
    }

    #[test]
    fn the_excerpt_contains_no_possible_secret() {
        let event = json!({
            "principal_id": "sk-canary-1",
            "model": { "canary-2": "canary-3" },
            "prompt_tokens": ["canary-4"],
            "metadata": { "canary-5": "canary-6" },
            "of_a_later_release": "canary-7",
            "endpoint": "canary-8".repeat(100),
            "request_id": "canary-9\u{0}",
            "status": 200,
        });
        let rejected = RejectedEvent::new("x", &event.to_string());
        assert_eq!(
            rejected.excerpt,
            json!({
                "principal_id": "(a text)",
                "model": "(an object)",
                "prompt_tokens": "(an array)",
                "endpoint": "(a text)",
                "request_id": "(a text)",
                "status": 200,
            })
        );
        for text in ["\"sk-canary\"", "[1]", "{\"model\": \"\\ud800\"}", "1e999"] {
            assert_eq!(RejectedEvent::new("x", text).excerpt, Value::Null, "{text}");
        }
    }
}
