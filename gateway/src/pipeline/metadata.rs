//! The member `metadata` of a JSON body, with which a client labels its usage.

use std::borrow::Cow;

use fastllm_contract::{InvalidMetadata, Metadata, MetadataValue};
use fastllm_engine::Refusal;
use fastllm_wire::Members;
use fastllm_wire::json::Object;
use fastllm_wire::scan::METADATA;
use serde::Deserialize;

/// Reads the metadata with the client's types; nothing if it is absent. Invalid
/// metadata is rejected, so that no request is billed without it.
pub(crate) fn read(members: &Members, body: &[u8]) -> Result<Option<Metadata>, Refusal> {
    let Some(at) = members.metadata_at() else {
        return Ok(None);
    };
    parse(body.get(at).unwrap_or_default()).map(Some)
}

fn parse(value: &[u8]) -> Result<Metadata, Refusal> {
    let object = Object::open(value).map_err(|_| wrong_type("`metadata` must be an object"))?;
    let mut metadata = Metadata::with_capacity(value.len());
    for member in object {
        let member = member.map_err(|_| invalid("`metadata` is not valid JSON"))?;
        let name = std::str::from_utf8(&member.name)
            .map_err(|_| invalid(InvalidMetadata::Name.as_str()))?;
        let mut add = |value| {
            let added = metadata.push(name, value);
            added.map_err(|why| invalid(why.as_str()))
        };
        match member.value {
            b"true" => add(MetadataValue::Flag(true))?,
            b"false" => add(MetadataValue::Flag(false))?,
            [b'"', ..] => add(MetadataValue::Text(&text(member.value)?))?,
            number => add(self::number(number)?)?,
        }
    }
    Ok(metadata)
}

/// A text, borrowed if it contains no escapes.
#[derive(Deserialize)]
struct Text<'a>(#[serde(borrow)] Cow<'a, str>);

fn text(token: &[u8]) -> Result<Cow<'_, str>, Refusal> {
    // Each byte takes at most six (`\u00XX`): a longer text exceeds the limit.
    if token.len() > Metadata::TEXT * 6 + 2 {
        return Err(invalid(InvalidMetadata::Text.as_str()));
    }
    serde_json::from_slice(token)
        .map(|Text(text)| text)
        .map_err(|_| invalid("a string in `metadata` is not valid JSON"))
}

/// Integers of up to 64 bits stay integers.
fn number(token: &[u8]) -> Result<MetadataValue<'static>, Refusal> {
    let number: serde_json::Number = serde_json::from_slice(token).map_err(|_| neither())?;
    if let Some(whole) = number.as_i64() {
        return Ok(MetadataValue::Integer(whole));
    }
    let float = number.as_f64().filter(|float| float.is_finite());
    float.map(MetadataValue::Float).ok_or_else(neither)
}

fn neither() -> Refusal {
    wrong_type("values in `metadata` must be strings, finite numbers or booleans")
}

fn wrong_type(message: &'static str) -> Refusal {
    refusal(message, "invalid_type")
}

fn invalid(message: &'static str) -> Refusal {
    refusal(message, "invalid_value")
}

fn refusal(message: &'static str, code: &'static str) -> Refusal {
    Refusal::InvalidRequest {
        message: message.into(),
        code,
        param: Some(METADATA),
    }
}

#[cfg(test)]
mod tests {
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
        assert!(one(&format!("\"{}\"", "\\u0074".repeat(512))).is_some());
        for long in ["t".repeat(513), "\\u0074".repeat(513), "é".repeat(257)] {
            assert_eq!(one(&format!("\"{long}\"")), None);
        }
    }

    #[test]
    fn invalid_metadata_is_rejected_with_the_member() {
        for wrong in [
            "[]",
            "\"a\"",
            "1",
            "{\"a\":null}",
            "{\"a\":{}}",
            "{\"a\":[1]}",
            "{\"a\":1e999}",
            "{\"a\":NaN}",
            "{\"a\":tru}",
            "{\"a\":01}",
            "{\"a\":\"\\ud800\"}",
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
}
