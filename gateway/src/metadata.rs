//! What a client says that its request is for: the member `metadata` of a JSON
//! body.

use fastllm_contract::{Metadata, MetadataValue};
use fastllm_engine::Refusal;
use fastllm_wire::Members;
use fastllm_wire::json::{Member, Object};
use fastllm_wire::scan::METADATA;

/// The most members that it may have.
const MEMBERS: usize = 16;

/// The longest name of a member, in bytes.
pub(crate) const NAME: usize = 64;

/// The longest text, in bytes.
const TEXT: usize = 512;

/// Reads it in the types that the client gave; nothing where it is absent. A
/// client that says it wrongly is told so, rather than billed without it.
pub(crate) fn read(members: &Members, body: &[u8]) -> Result<Option<Box<Metadata>>, Refusal> {
    let Some(at) = members.metadata_at() else {
        return Ok(None);
    };
    parse(body.get(at).unwrap_or_default()).map(|metadata| Some(Box::new(metadata)))
}

fn parse(value: &[u8]) -> Result<Metadata, Refusal> {
    let object = Object::open(value).map_err(|_| wrong_type("`metadata` must be an object"))?;
    let mut metadata = Metadata::new();
    for member in object {
        let member = member.map_err(|_| invalid("`metadata` is not valid JSON"))?;
        if metadata.len() == MEMBERS {
            return Err(invalid("`metadata` has more than 16 members"));
        }
        let (name, value) = (name(&member)?, self::value(member.value)?);
        if metadata.insert(name, value).is_some() {
            return Err(invalid("`metadata` has a member twice"));
        }
    }
    Ok(metadata)
}

fn name(member: &Member<'_>) -> Result<String, Refusal> {
    let name = std::str::from_utf8(&member.name).ok();
    name.filter(|name| (1..=NAME).contains(&name.len()))
        .filter(|name| !name.chars().any(char::is_control))
        .map(str::to_owned)
        .ok_or_else(|| {
            invalid(
                "a name in `metadata` must have 1 to 64 bytes of UTF-8, without control characters",
            )
        })
}

fn value(value: &[u8]) -> Result<MetadataValue, Refusal> {
    match value.first() {
        Some(b'"') => text(value),
        Some(b't' | b'f') => match value {
            b"true" => Ok(MetadataValue::Flag(true)),
            b"false" => Ok(MetadataValue::Flag(false)),
            _ => Err(neither()),
        },
        _ => number(value),
    }
}

fn text(token: &[u8]) -> Result<MetadataValue, Refusal> {
    let too_long = || invalid("a text in `metadata` has more than 512 bytes");
    // Each byte may be written as `\u00XX`.
    if token.len() > TEXT * 6 + 2 {
        return Err(too_long());
    }
    let text: String = serde_json::from_slice(token)
        .map_err(|_| invalid("a text in `metadata` is not valid JSON"))?;
    if text.len() > TEXT {
        return Err(too_long());
    }
    Ok(MetadataValue::Text(text))
}

/// Whole numbers stay whole as far as 64 bits reach.
fn number(token: &[u8]) -> Result<MetadataValue, Refusal> {
    let number: serde_json::Number = serde_json::from_slice(token).map_err(|_| neither())?;
    if let Some(whole) = number.as_i64() {
        return Ok(MetadataValue::Integer(whole));
    }
    let float = number.as_f64().filter(|float| float.is_finite());
    float.map(MetadataValue::Float).ok_or_else(neither)
}

fn neither() -> Refusal {
    wrong_type("values in `metadata` must be texts, finite numbers, true or false")
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
    use fastllm_contract::MetadataValue::{Flag, Float, Integer, Text};
    use fastllm_contract::{Metadata, MetadataValue};
    use fastllm_engine::Refusal;
    use fastllm_wire::{Fields, scan};

    use super::read;

    fn of(metadata: &str) -> Result<Option<Box<Metadata>>, Refusal> {
        let body = format!("{{\"metadata\": {metadata} ,\"model\":\"m\"}}");
        let members = scan(body.as_bytes(), Fields::Completion).unwrap();
        read(&members, body.as_bytes())
    }

    fn one(value: &str) -> Option<MetadataValue> {
        let metadata = of(&format!("{{\"a\":{value}}}")).ok()??;
        metadata.get("a").cloned()
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
            ("\"42\"", Text("42".to_owned())),
            ("\"\\u00e9\\n\"", Text("é\n".to_owned())),
        ] {
            assert_eq!(one(written), Some(value), "{written}");
        }
        let written = serde_json::to_string(&of("{\"b\":1,\"a\":true,\"c\":\"x\"}").unwrap());
        assert_eq!(written.unwrap(), "{\"a\":true,\"b\":1,\"c\":\"x\"}");
    }

    #[test]
    fn null_is_absent_and_an_empty_object_is_not() {
        assert_eq!(of("null"), Ok(None));
        assert_eq!(of("{}"), Ok(Some(Box::default())));
    }

    #[test]
    fn bounds_are_those_that_are_stated() {
        let members = |count: usize| {
            let members: Vec<_> = (0..count).map(|at| format!("\"a{at}\":{at}")).collect();
            of(&format!("{{{}}}", members.join(",")))
        };
        assert_eq!(members(16).unwrap().unwrap().len(), 16);
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
    fn what_is_wrong_is_refused_and_names_the_member() {
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
