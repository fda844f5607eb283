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
mod tests;
