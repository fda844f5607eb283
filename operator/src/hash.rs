//! Hashes of manifests, by which a changed field is detected.

use ring::digest::{Context, SHA256};
use serde::Serialize;
use serde_json::Value;

/// Number of bytes of the digest that are kept.
const LENGTH: usize = 8;

/// Converts a typed object to JSON. Kubernetes types always serialize.
pub(crate) fn to_json<T: Serialize>(object: &T) -> Value {
    serde_json::to_value(object).unwrap_or_default()
}

/// First 16 hexadecimal digits of the SHA-256 of a value, independent of the
/// order of object members. The hash is not keyed, so it must not cover Secret values.
#[must_use]
pub(crate) fn json_hash(value: &Value) -> String {
    let mut context = Context::new(&SHA256);
    update(&mut context, value);
    hex::encode(&context.finish().as_ref()[..LENGTH])
}

fn update(context: &mut Context, value: &Value) {
    match value {
        Value::Object(members) => {
            let mut sorted: Vec<_> = members.iter().collect();
            sorted.sort_unstable_by_key(|(name, _)| name.as_str());
            context.update(b"{");
            for (name, member) in sorted {
                context.update(Value::from(name.as_str()).to_string().as_bytes());
                context.update(b":");
                update(context, member);
                context.update(b",");
            }
            context.update(b"}");
        }
        Value::Array(items) => {
            context.update(b"[");
            for item in items {
                update(context, item);
                context.update(b",");
            }
            context.update(b"]");
        }
        scalar => context.update(scalar.to_string().as_bytes()),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::json_hash;

    #[test]
    fn member_order_does_not_change_the_hash() {
        let one = json!({"a": [1, {"x": 2, "y": 3}], "b": null});
        let other: Value =
            serde_json::from_str(r#"{"b": null, "a": [1, {"y": 3, "x": 2}]}"#).unwrap();
        assert_eq!(json_hash(&one), json_hash(&other));
        assert_ne!(
            json_hash(&one),
            json_hash(&json!({"a": [1, {"x": 2, "y": 4}], "b": null}))
        );
    }
}
