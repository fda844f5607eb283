//! Helpers shared by the tests of several modules.

use proptest::prelude::*;
use serde_json::Value;

/// JSON values with many constructs that can confuse a scanner.
pub(crate) fn value() -> impl Strategy<Value = Value> {
    let text = prop_oneof![
        any::<String>(),
        "[\\\\\"{}\\[\\]:, a]{0,12}",
        Just("\"usage\":{\"prompt_tokens\":1}".to_owned()),
    ];
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        text.clone().prop_map(Value::from),
    ];
    leaf.prop_recursive(4, 24, 5, move |inner| {
        prop_oneof![
            proptest::collection::vec(inner.clone(), 0..5).prop_map(Value::from),
            proptest::collection::btree_map(text.clone(), inner, 0..5)
                .prop_map(|members| Value::Object(members.into_iter().collect())),
        ]
    })
}

/// The value as text, with or without white space between tokens.
pub(crate) fn written(value: &Value, pretty: bool) -> String {
    if pretty {
        serde_json::to_string_pretty(value).unwrap()
    } else {
        value.to_string()
    }
}

/// Splits `bytes` at these positions (modulo its length).
pub(crate) fn cut(bytes: &[u8], positions: &[usize]) -> Vec<Vec<u8>> {
    let mut positions: Vec<usize> = positions.iter().map(|at| at % (bytes.len() + 1)).collect();
    positions.sort_unstable();
    let mut parts = Vec::new();
    let mut from = 0;
    for at in positions.into_iter().chain([bytes.len()]) {
        parts.push(bytes[from..at].to_vec());
        from = at;
    }
    parts
}
