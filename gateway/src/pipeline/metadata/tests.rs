use fastllm_contract::Metadata;
use fastllm_contract::MetadataValue::{Flag, Float, Integer, Text};
use fastllm_engine::Refusal;
use fastllm_wire::{RequestSchema, scan};

use super::read;

fn of(metadata: &str) -> Result<Option<Metadata>, Refusal> {
    let body = format!("{{\"metadata\": {metadata} ,\"model\":\"m\"}}");
    let members = scan(body.as_bytes(), RequestSchema::Completion).unwrap();
    read(&members, body.as_bytes())
}

fn one(value: &str) -> Option<Metadata> {
    of(&format!("{{\"a\":{value}}}")).ok()?
}

#[test]
fn values_keep_their_types() {
    for (written, value) in [
        ("true", Flag(true)),
        ("false", Flag(false)),
        ("42", Integer(42)),
        ("-9223372036854775808", Integer(i64::MIN)),
        ("9223372036854775808", Float(9_223_372_036_854_775_808.0)),
        ("1e3", Float(1000.0)),
        ("0.5", Float(0.5)),
        ("\"42\"", Text("42")),
        ("\"\\u00e9\\n\"", Text("é\n")),
    ] {
        assert_eq!(one(written).unwrap().get("a"), Some(value), "{written}");
    }
    let written = serde_json::to_string(&of("{\"b\":1,\"a\":true,\"c\":\"x\"}").unwrap());
    assert_eq!(written.unwrap(), "{\"b\":1,\"a\":true,\"c\":\"x\"}");
}

/// Metadata as recorded, for what clients of LiteLLM and Anthropic send.
#[test]
fn lists_and_nested_objects_are_recorded_and_null_members_are_absent() {
    for (sent, recorded) in [
        (
            "{\"tags\":[\"team:search\"]}",
            "{\"tags\":[\"team:search\"]}",
        ),
        (
            "{\"tags\":[ \"a\" , \"\\u00e9\\ud83d\\ude00\" ]}",
            "{\"tags\":[\"a\",\"é😀\"]}",
        ),
        ("{\"tags\":[]}", "{\"tags\":[]}"),
        (
            "{\"user_id\":null,\"a\":1,\"user_id\":\"x\"}",
            "{\"a\":1,\"user_id\":\"x\"}",
        ),
        (
            "{\"spend_logs_metadata\":{\"job\":\"x\",\"n\":7,\"none\":null,\"of\":[\"y\"]},\"t\":true}",
            "{\"spend_logs_metadata.job\":\"x\",\"spend_logs_metadata.n\":7,\
             \"spend_logs_metadata.of\":[\"y\"],\"t\":true}",
        ),
        ("{\"a\":{}}", "{}"),
    ] {
        let read = of(sent).unwrap().unwrap();
        assert_eq!(serde_json::to_string(&read).unwrap(), recorded, "{sent}");
    }
}

#[test]
fn lists_are_bounded() {
    let list = |text: &str, count: usize| {
        let list: Vec<_> = std::iter::repeat_n(format!("\"{text}\""), count).collect();
        of(&format!("{{\"tags\":[{}]}}", list.join(",")))
    };
    assert!(list("漢字漢字漢字漢字", 64).is_ok());
    for (text, count) in [("", 65), ("a", 100_000), ("漢字漢字漢字漢字漢", 64)] {
        let refusal = list(text, count).unwrap_err();
        let Refusal::InvalidRequest { message, .. } = refusal else {
            panic!("{refusal:?}");
        };
        assert!(message.contains("more than 64 texts or 512 characters"));
    }
}

#[test]
fn null_is_absent_and_an_empty_object_is_not() {
    assert_eq!(of("null"), Ok(None));
    assert_eq!(of("{}"), Ok(Some(Metadata::default())));
}

#[test]
fn the_documented_bounds_apply() {
    let members = |count: usize| {
        let members: Vec<_> = (0..count).map(|at| format!("\"a{at}\":{at}")).collect();
        of(&format!("{{{}}}", members.join(",")))
    };
    assert_eq!(members(16).unwrap().unwrap().iter().count(), 16);
    assert!(members(17).is_err());
    let named = |name: &str| of(&format!("{{\"{name}\":1}}"));
    assert!(named(&"n".repeat(64)).is_ok());
    assert!(named(&"n".repeat(65)).is_err());
    assert!(named(&"漢".repeat(64)).is_ok());
    assert!(named(&"漢".repeat(65)).is_err());
    assert!(named(&"\\ud83d\\ude00".repeat(64)).is_ok());
    let nested = |length: usize| of(&format!("{{\"a\":{{\"{}\":1}}}}", "n".repeat(length)));
    assert!(nested(62).is_ok());
    assert!(nested(63).is_err());
    for text in ["t", "\\u0074", "é", "漢", "😀", "\\ud83d\\ude00"] {
        let of = |count: usize| one(&format!("\"{}\"", text.repeat(count)));
        assert!(of(512).is_some(), "{text}");
        assert_eq!(of(513), None, "{text}");
    }
    for long in ["\\u0074".repeat(5000), "é".repeat(5000)] {
        assert_eq!(one(&format!("\"{long}\"")), None);
    }
}

#[test]
fn invalid_metadata_is_rejected_with_the_member() {
    for wrong in [
        "[]",
        "\"a\"",
        "1",
        "{\"a\":nul}",
        "{\"a\":{\"b\":{}}}",
        "{\"a\":{\"\":1}}",
        "{\"a\":{\"b\":1},\"a.b\":2}",
        "{\"a\":{1}}",
        "{\"a\":[1]}",
        "{\"a\":[null]}",
        "{\"a\":[[\"b\"]]}",
        "{\"a\":[\"b\" \"c\"]}",
        "{\"a\":[\"b\",]}",
        "{\"a\":1e999}",
        "{\"a\":NaN}",
        "{\"a\":tru}",
        "{\"a\":01}",
        "{\"a\":\"\\ud800\"}",
        "{\"a\":\"b\\u0000\"}",
        "{\"a\":[\"\\u0000\"]}",
        "{\"\":1}",
        "{\"a\\n\":1}",
        "{\"a\\u007f\":1}",
        "{\"a\":1,\"\\u0061\":2}",
        "{\"a\":1 \"b\":2}",
    ] {
        let refusal = of(wrong).unwrap_err();
        let Refusal::InvalidRequest { message, param, .. } = &refusal else {
            panic!("{wrong}: {refusal:?}");
        };
        assert_eq!(
            (refusal.status(), *param),
            (400, Some("metadata")),
            "{wrong}"
        );
        assert!(message.contains("`metadata`"), "{message}");
    }
}
