//! The member `metadata` of a JSON body, with which a client labels its usage.

use std::borrow::Cow;
use std::fmt;

use fastllm_contract::{InvalidMetadata, Metadata, MetadataValue};
use fastllm_engine::Refusal;
use fastllm_wire::Members;
use fastllm_wire::json::{Member, Object};
use fastllm_wire::scan::METADATA;
use serde::de::{SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::error::Category;

/// Reads the metadata with the client's types; nothing if it is absent. Invalid
/// metadata is rejected, so that no request is billed without it.
pub(crate) fn read(members: &Members, body: &[u8]) -> Result<Option<Metadata>, Refusal> {
    let Some(at) = members.metadata_at() else {
        return Ok(None);
    };
    parse(body.get(at).unwrap_or_default()).map(Some)
}

fn parse(value: &[u8]) -> Result<Metadata, Refusal> {
    let mut metadata = Metadata::with_capacity(value.len());
    for member in members_of(value, || wrong_type("`metadata` must be an object"))? {
        let member = member.map_err(|_| malformed())?;
        let name = name(&member)?;
        if member.value.first() == Some(&b'{') {
            add_nested(&mut metadata, name, member.value)?;
        } else {
            add(&mut metadata, name, member.value)?;
        }
    }
    Ok(metadata)
}

/// Adds the members of an object under `name.member`, so that reports and labels
/// can name each of them.
fn add_nested(metadata: &mut Metadata, name: &str, value: &[u8]) -> Result<(), Refusal> {
    for member in members_of(value, malformed)? {
        let member = member.map_err(|_| malformed())?;
        let inner = self::name(&member)?;
        // Each is bounded, so that no long name is copied.
        if !Metadata::is_name(name) || !Metadata::is_name(inner) {
            return Err(invalid(InvalidMetadata::Name.as_str()));
        }
        add(metadata, &format!("{name}.{inner}"), member.value)?;
    }
    Ok(())
}

/// Adds one member; none for `null`, with which clients leave optional members out.
fn add(metadata: &mut Metadata, name: &str, value: &[u8]) -> Result<(), Refusal> {
    let added = match value {
        b"null" => Ok(()),
        b"true" => metadata.push(name, MetadataValue::Flag(true)),
        b"false" => metadata.push(name, MetadataValue::Flag(false)),
        [b'"', ..] => metadata.push(name, MetadataValue::Text(&text(value)?)),
        [b'[', ..] => metadata.push_list(name, &list(value)?),
        number => metadata.push(name, self::number(number)?),
    };
    added.map_err(|why| invalid(why.as_str()))
}

fn members_of(value: &[u8], error: fn() -> Refusal) -> Result<Object<'_>, Refusal> {
    Object::open(value).map_err(|_| error())
}

fn name<'a>(member: &'a Member<'_>) -> Result<&'a str, Refusal> {
    std::str::from_utf8(&member.name).map_err(|_| invalid(InvalidMetadata::Name.as_str()))
}

/// A text, borrowed if it contains no escapes.
#[derive(Deserialize)]
struct Text<'a>(#[serde(borrow)] Cow<'a, str>);

impl AsRef<str> for Text<'_> {
    fn as_ref(&self) -> &str {
        &self.0
    }
}

/// The texts of a list, with at most one more than metadata accepts.
struct Texts<'a>(Vec<Text<'a>>);

impl<'de: 'a, 'a> Deserialize<'de> for Texts<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct TextsVisitor;

        impl<'de> Visitor<'de> for TextsVisitor {
            type Value = Texts<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a list of strings")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Texts<'de>, A::Error> {
                let mut texts = Vec::new();
                while let Some(text) = seq.next_element()? {
                    if texts.len() <= Metadata::MAX_LIST_ITEMS {
                        texts.push(text);
                    }
                }
                Ok(Texts(texts))
            }
        }

        deserializer.deserialize_seq(TextsVisitor)
    }
}

fn list(token: &[u8]) -> Result<Vec<Text<'_>>, Refusal> {
    serde_json::from_slice(token)
        .map(|Texts(texts)| texts)
        .map_err(|error| match error.classify() {
            Category::Data => other_type(),
            _ => malformed(),
        })
}

fn text(token: &[u8]) -> Result<Cow<'_, str>, Refusal> {
    // A character takes at most twelve bytes (a surrogate pair): a longer text
    // exceeds the limit.
    if token.len() > Metadata::MAX_TEXT_CHARS * 12 + 2 {
        return Err(invalid(InvalidMetadata::Text.as_str()));
    }
    serde_json::from_slice(token)
        .map(|Text(text)| text)
        .map_err(|_| invalid("a string in `metadata` is not valid JSON"))
}

/// Integers of up to 64 bits stay integers.
fn number(token: &[u8]) -> Result<MetadataValue<'static>, Refusal> {
    let number: serde_json::Number = serde_json::from_slice(token).map_err(|_| other_type())?;
    if let Some(whole) = number.as_i64() {
        return Ok(MetadataValue::Integer(whole));
    }
    let float = number.as_f64().filter(|float| float.is_finite());
    float.map(MetadataValue::Float).ok_or_else(other_type)
}

fn other_type() -> Refusal {
    wrong_type(
        "values in `metadata` must be strings, finite numbers, booleans, lists of strings or \
         objects of these",
    )
}

fn malformed() -> Refusal {
    invalid("`metadata` is not valid JSON")
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
