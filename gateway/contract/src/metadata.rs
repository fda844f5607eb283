use std::borrow::Cow;
use std::fmt::{self, Write};

use serde::de::{Error as _, MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Metadata of a request, given by the client for reports: members with values
/// of simple types, in the client's order.
///
/// Invariant: at most [`Metadata::MEMBERS`] members, no name twice, names of 1 to
/// [`Metadata::NAME`] bytes without control characters, texts of at most
/// [`Metadata::TEXT`] bytes, numbers that are finite.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Metadata {
    /// All members in one string, since it is built for every request and read
    /// by another thread: for each its kind, the length of its name, the name
    /// and the value. A length is a character of that number; a number ends
    /// with a space.
    packed: String,
}

/// A value, in the type that the client used.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
#[serde(untagged)]
pub enum MetadataValue<'a> {
    /// `true` or `false`.
    Flag(bool),
    /// A 64-bit integer.
    Integer(i64),
    /// Any other number.
    Float(f64),
    /// A text.
    Text(&'a str),
}

/// Why a member is rejected.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum InvalidMetadata {
    /// Too many members.
    Members,
    /// The name is invalid.
    Name,
    /// The name is a duplicate.
    Twice,
    /// The text is too long.
    Text,
    /// The number is not finite.
    Number,
}

const TRUE: char = 't';
const FALSE: char = 'f';
const INTEGER: char = 'i';
const FLOAT: char = 'd';
const TEXT: char = 's';
const END_OF_NUMBER: char = ' ';

impl Metadata {
    /// Maximum number of members.
    pub const MEMBERS: usize = 16;

    /// The longest name, in bytes.
    pub const NAME: usize = 64;

    /// The longest text, in bytes.
    pub const TEXT: usize = 512;

    /// Empty metadata, with capacity for members of this size as JSON, up to a
    /// usual size.
    #[must_use]
    pub fn with_capacity(bytes: usize) -> Self {
        /// JSON may contain any number of spaces.
        const USUAL: usize = 1 << 10;
        Self {
            packed: String::with_capacity(bytes.min(USUAL)),
        }
    }

    /// Adds a member.
    ///
    /// # Errors
    /// It has no place among the others; they stay as they are.
    pub fn push(&mut self, name: &str, value: MetadataValue<'_>) -> Result<(), InvalidMetadata> {
        let mut members = 0;
        for (other, _) in self.iter() {
            if other == name {
                return Err(InvalidMetadata::Twice);
            }
            members += 1;
        }
        if members == Self::MEMBERS {
            return Err(InvalidMetadata::Members);
        }
        if name.chars().any(char::is_control) {
            return Err(InvalidMetadata::Name);
        }
        let length = length(name, 1..=Self::NAME).ok_or(InvalidMetadata::Name)?;
        match value {
            MetadataValue::Flag(flag) => {
                self.begin(if flag { TRUE } else { FALSE }, length, name);
            }
            MetadataValue::Integer(number) => {
                self.begin(INTEGER, length, name);
                self.number(format_args!("{number}"));
            }
            MetadataValue::Float(number) if number.is_finite() => {
                self.begin(FLOAT, length, name);
                self.number(format_args!("{number:?}"));
            }
            MetadataValue::Float(_) => return Err(InvalidMetadata::Number),
            MetadataValue::Text(text) => {
                let long = self::length(text, 0..=Self::TEXT).ok_or(InvalidMetadata::Text)?;
                self.begin(TEXT, length, name);
                self.packed.push(long);
                self.packed.push_str(text);
            }
        }
        Ok(())
    }

    fn begin(&mut self, kind: char, length: char, name: &str) {
        self.packed.push(kind);
        self.packed.push(length);
        self.packed.push_str(name);
    }

    fn number(&mut self, number: fmt::Arguments<'_>) {
        let _infallible = self.packed.write_fmt(number);
        self.packed.push(END_OF_NUMBER);
    }

    /// The value of the member of this name.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<MetadataValue<'_>> {
        self.iter()
            .find_map(|(other, value)| (other == name).then_some(value))
    }

    /// All members, in the client's order.
    #[must_use]
    pub fn iter(&self) -> MetadataMembers<'_> {
        MetadataMembers { rest: &self.packed }
    }
}

/// A length as a character; `None` if out of bounds.
fn length(text: &str, bounds: std::ops::RangeInclusive<usize>) -> Option<char> {
    bounds
        .contains(&text.len())
        .then(|| u32::try_from(text.len()).ok().and_then(char::from_u32))
        .flatten()
}

/// The members of [`Metadata`].
#[derive(Debug, Clone)]
pub struct MetadataMembers<'a> {
    rest: &'a str,
}

impl<'a> MetadataMembers<'a> {
    fn character(&mut self) -> Option<char> {
        let mut characters = self.rest.chars();
        let first = characters.next();
        self.rest = characters.as_str();
        first
    }

    /// A text after its length.
    fn text(&mut self) -> Option<&'a str> {
        let length = self.character()? as usize;
        let (text, rest) = self.rest.split_at_checked(length)?;
        self.rest = rest;
        Some(text)
    }

    fn number(&mut self) -> Option<&'a str> {
        let (number, rest) = self.rest.split_once(END_OF_NUMBER)?;
        self.rest = rest;
        Some(number)
    }
}

impl<'a> Iterator for MetadataMembers<'a> {
    type Item = (&'a str, MetadataValue<'a>);

    fn next(&mut self) -> Option<Self::Item> {
        let kind = self.character()?;
        let name = self.text()?;
        let value = match kind {
            TRUE => MetadataValue::Flag(true),
            FALSE => MetadataValue::Flag(false),
            INTEGER => MetadataValue::Integer(self.number()?.parse().ok()?),
            FLOAT => MetadataValue::Float(self.number()?.parse().ok()?),
            _ => MetadataValue::Text(self.text()?),
        };
        Some((name, value))
    }
}

impl<'a> IntoIterator for &'a Metadata {
    type Item = (&'a str, MetadataValue<'a>);
    type IntoIter = MetadataMembers<'a>;

    fn into_iter(self) -> MetadataMembers<'a> {
        self.iter()
    }
}

impl fmt::Debug for Metadata {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self).finish()
    }
}

impl Serialize for Metadata {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self)
    }
}

impl<'de> Deserialize<'de> for Metadata {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(Reading)
    }
}

struct Reading;

/// A value as it is read.
#[derive(Deserialize)]
#[serde(untagged)]
enum Read {
    Flag(bool),
    Integer(i64),
    Float(f64),
    Text(String),
}

impl Read {
    fn value(&self) -> MetadataValue<'_> {
        match self {
            Self::Flag(flag) => MetadataValue::Flag(*flag),
            Self::Integer(number) => MetadataValue::Integer(*number),
            Self::Float(number) => MetadataValue::Float(*number),
            Self::Text(text) => MetadataValue::Text(text),
        }
    }
}

impl<'de> Visitor<'de> for Reading {
    type Value = Metadata;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object of texts, numbers and flags")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Metadata, A::Error> {
        let mut metadata = Metadata::default();
        while let Some((name, value)) = map.next_entry::<Cow<'de, str>, Read>()? {
            metadata
                .push(&name, value.value())
                .map_err(A::Error::custom)?;
        }
        Ok(metadata)
    }
}

impl InvalidMetadata {
    /// The error as a sentence.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Members => "`metadata` has more than 16 members",
            Self::Name => {
                "a name in `metadata` must have 1 to 64 bytes of UTF-8, without control characters"
            }
            Self::Twice => "`metadata` has a member twice",
            Self::Text => "a text in `metadata` has more than 512 bytes",
            Self::Number => "a number in `metadata` is not finite",
        }
    }
}

impl fmt::Display for InvalidMetadata {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl std::error::Error for InvalidMetadata {}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::{InvalidMetadata, Metadata, MetadataValue};

    fn texts() -> impl Strategy<Value = String> {
        prop_oneof![".{0,8}", "[a-z \u{0}\"\\\\]{0,8}", ".{125,130}"]
    }

    proptest! {
        /// What is added is read back, in memory and as JSON.
        #[test]
        fn members_come_out_as_they_went_in(
            names in prop::collection::hash_set("[a-zé -]{1,20}", 0..16),
            texts in prop::collection::vec(texts(), 16),
            integers in prop::collection::vec(any::<i64>(), 16),
            floats in prop::collection::vec(any::<i32>().prop_map(|part| f64::from(part) / 4.0), 16),
        ) {
            let members: Vec<_> = names.iter().enumerate().map(|(at, name)| {
                let value = match at % 4 {
                    0 => MetadataValue::Text(&texts[at]),
                    1 => MetadataValue::Integer(integers[at]),
                    2 => MetadataValue::Float(floats[at]),
                    _ => MetadataValue::Flag(at % 8 == 3),
                };
                (name.as_str(), value)
            }).collect();
            let mut metadata = Metadata::default();
            for (name, value) in &members {
                metadata.push(name, *value).unwrap();
            }
            prop_assert_eq!(metadata.iter().collect::<Vec<_>>(), members.clone());
            for (name, value) in members {
                prop_assert_eq!(metadata.get(name), Some(value));
            }
            let written = serde_json::to_string(&metadata).unwrap();
            prop_assert_eq!(serde_json::from_str::<Metadata>(&written).unwrap(), metadata);
        }
    }

    #[test]
    fn metadata_bounds_are_enforced() {
        let mut metadata = Metadata::default();
        let wrong = [
            ("", MetadataValue::Flag(true), InvalidMetadata::Name),
            ("a\n", MetadataValue::Flag(true), InvalidMetadata::Name),
            (
                &*"n".repeat(65),
                MetadataValue::Flag(true),
                InvalidMetadata::Name,
            ),
            (
                "a",
                MetadataValue::Text(&"t".repeat(513)),
                InvalidMetadata::Text,
            ),
            ("a", MetadataValue::Float(f64::NAN), InvalidMetadata::Number),
        ];
        for (name, value, why) in wrong {
            assert_eq!(metadata.push(name, value), Err(why));
        }
        assert_eq!(metadata, Metadata::default());
        for at in 0..16 {
            let name = format!("{at:0>64}");
            let text = "é".repeat(256);
            metadata.push(&name, MetadataValue::Text(&text)).unwrap();
            let again = metadata.push(&name, MetadataValue::Flag(true));
            assert_eq!(again, Err(InvalidMetadata::Twice));
        }
        let more = metadata.push("more", MetadataValue::Flag(true));
        assert_eq!(more, Err(InvalidMetadata::Members));
        assert_eq!(metadata.iter().count(), 16);
    }

    #[test]
    fn capacity_is_bounded_by_usual_sizes() {
        assert_eq!(Metadata::with_capacity(100).packed.capacity(), 100);
        assert!(Metadata::with_capacity(64 << 20).packed.capacity() <= 1 << 10);
    }

    #[test]
    fn metadata_outside_the_bounds_is_rejected() {
        for wrong in [
            "{\"a\":null}",
            "{\"a\":[]}",
            "[]",
            "{\"\":1}",
            "{\"a\":1,\"a\":2}",
        ] {
            assert!(serde_json::from_str::<Metadata>(wrong).is_err(), "{wrong}");
        }
        let numbers = "{\"whole\":-7,\"large\":9223372036854775808,\"part\":0.5}";
        let read: Metadata = serde_json::from_str(numbers).unwrap();
        let values: Vec<_> = read.iter().map(|(_, value)| value).collect();
        let large = MetadataValue::Float(9_223_372_036_854_775_808.0);
        assert_eq!(
            values,
            [MetadataValue::Integer(-7), large, MetadataValue::Float(0.5)]
        );
    }
}
