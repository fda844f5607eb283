use serde_json::json;

use super::*;
use crate::clock;

fn raw(value: &Value) -> Box<RawValue> {
    RawValue::from_string(value.to_string()).unwrap()
}

fn event() -> Value {
    json!({ "principal_id": 1, "model": "m", "prompt_tokens": 2, "completion_tokens": 3, "at": 0 })
}

fn with(name: &str, value: Value) -> Value {
    let mut event = event();
    event[name] = value;
    event
}

fn good(value: &Value) -> Event {
    read(raw(value), clock::now()).unwrap()
}

#[test]
fn impossible_values_are_replaced_by_storable_ones() {
    let now = clock::now();
    let most = json!(u64::MAX);
    let mut absurd = json!({
        "principal_id": most, "model": "m", "endpoint": "/chat\u{0}",
        "request_id": "a".repeat(129), "prompt_tokens": most, "completion_tokens": 1,
        "cached_tokens": most, "audio_ms": most, "cost_micros": most, "attempts": u32::MAX,
    });
    for at in [i64::MIN, i64::MAX, 0] {
        absurd["at"] = json!(at);
        let event = read(raw(&absurd), now).unwrap();
        assert_eq!(event.usage.at, timestamp(now), "{at}");
        assert_eq!(timestamp(event.at), event.usage.at);
    }
    let an_hour_ago = timestamp(now - Duration::hours(1));
    absurd["at"] = json!(an_hour_ago);
    let Event { usage, at, .. } = read(raw(&absurd), now).unwrap();
    assert_eq!((timestamp(at), usage.at), (an_hour_ago, an_hour_ago));
    let most = i64::MAX.unsigned_abs();
    assert_eq!(usage.prompt_tokens, Tokens(most));
    assert_eq!(usage.cached_tokens, Some(Tokens(most)));
    assert_eq!(usage.audio_ms, Some(most));
    assert_eq!(usage.cost_micros, Some(Micros(most)));
    assert_eq!((usage.endpoint, usage.request_id), (None, None));
}

#[test]
fn metadata_within_its_bounds_keeps_its_types() {
    let metadata = json!({
        "a": 42, "b": 4.5, "c": true, "d": "", "e": "漢".repeat(512), "f": ["team:search", "x"],
        ("漢".repeat(64)): [],
    });
    let event = good(&with("metadata", metadata.clone()));
    assert!(!event.metadata_dropped);
    assert_eq!(
        serde_json::to_value(event.usage.metadata).unwrap(),
        metadata
    );
}

#[test]
fn metadata_beyond_its_bounds_is_dropped_and_the_event_kept() {
    let many: serde_json::Map<String, Value> = (0..17).map(|n| (n.to_string(), json!(n))).collect();
    for metadata in [
        Value::Object(many),
        json!({ ("n".repeat(65)): 1 }),
        json!({ "n": "x".repeat(513) }),
        json!({ "n": "漢".repeat(513) }),
        json!({ "n": "\u{0}" }),
        json!({ "n": ["a", "\u{0}"] }),
        json!({ "n": ["a", 1] }),
        json!({ "n": vec!["a"; 65] }),
        json!({ "\u{0}": 1 }),
        json!({ "": 1 }),
        json!({ "n": { "nested": 1 } }),
        json!({ "n": null }),
        json!("text"),
    ] {
        let event = good(&with("metadata", metadata.clone()));
        assert!(event.metadata_dropped, "{metadata}");
        assert_eq!(event.usage.metadata, None);
        assert_eq!(event.usage.prompt_tokens, Tokens(2));
    }
    assert!(!good(&with("metadata", Value::Null)).metadata_dropped);
}

#[test]
fn a_rejection_reason_does_not_contain_values() {
    let reason = |value: &Value| read(raw(value), clock::now()).unwrap_err().reason;
    assert_eq!(
        reason(&with("prompt_tokens", json!("canary"))),
        "prompt_tokens cannot be read"
    );
    assert_eq!(reason(&with("model", json!(""))), "model cannot be read");
    let mut incomplete = event();
    incomplete.as_object_mut().unwrap().remove("principal_id");
    assert_eq!(reason(&incomplete), "principal_id is missing");
    assert_eq!(reason(&json!(["canary"])), "the event is not an object");
    let rejected = read(
        RawValue::from_string(r#"{"model": "\ud800"}"#.to_owned()).unwrap(),
        clock::now(),
    );
    assert_eq!(rejected.unwrap_err().reason, "model cannot be read");
}
