use std::borrow::Cow;
use std::fmt::{self, Write};

use serde::de::{Error as _, MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Metadata of a request, given by the client for reports: members with values
/// of simple types or lists of strings, in the client's order.
///
/// Invariant: at most [`Metadata::MAX_MEMBERS`] members, no name twice, names of
/// 1 to [`Metadata::MAX_NAME_CHARS`] characters without control characters, texts
/// of at most [`Metadata::MAX_TEXT_CHARS`] characters without U+0000, which
/// PostgreSQL cannot store, lists of at most [`Metadata::MAX_LIST_ITEMS`] texts with
/// that many characters altogether, numbers that are finite. So the members take at most [`Metadata::MAX_BYTES`].
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Metadata {
    /// All members in one string, since it is built for every request and read
    /// by another thread: for each its kind, the length of its name, the name
    /// and the value. A length in bytes is a character of that number; a number
    /// ends with a space. A list is texts, each after its kind and its length,
    /// and an end.
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
    /// A list of texts, such as the tags of LiteLLM's clients.
    List(TextList<'a>),
}

/// A list of texts within [`Metadata`].
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct TextList<'a> {
    /// Texts as in [`Metadata`], without the end of the list.
    packed: &'a str,
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
    /// The list has too many texts or characters.
    List,
    /// A text contains U+0000.
    NullCharacter,
    /// The number is not finite.
    Number,
}

const TRUE: char = 't';
const FALSE: char = 'f';
const INTEGER: char = 'i';
const FLOAT: char = 'd';
const TEXT: char = 's';
const LIST: char = 'l';
const END_OF_LIST: char = 'e';
const END_OF_NUMBER: char = ' ';

impl Metadata {
    /// Maximum number of members.
    pub const MAX_MEMBERS: usize = 16;

    /// The longest name, in Unicode characters.
    pub const MAX_NAME_CHARS: usize = 64;

    /// The longest text, in Unicode characters; also of all texts of a list.
    pub const MAX_TEXT_CHARS: usize = 512;

    /// Maximum number of texts in a list.
    pub const MAX_LIST_ITEMS: usize = 64;

    /// The most that all names and texts take in UTF-8, in bytes.
    pub const MAX_BYTES: usize =
        Self::MAX_MEMBERS * (Self::MAX_NAME_CHARS + Self::MAX_TEXT_CHARS) * char::MAX_LEN_UTF8;

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
        self.check_name(name)?;
        match value {
            MetadataValue::Flag(flag) => self.begin(if flag { TRUE } else { FALSE }, name),
            MetadataValue::Integer(number) => {
                self.begin(INTEGER, name);
                self.number(format_args!("{number}"));
            }
            MetadataValue::Float(number) if number.is_finite() => {
                self.begin(FLOAT, name);
                self.number(format_args!("{number:?}"));
            }
            MetadataValue::Float(_) => return Err(InvalidMetadata::Number),
            MetadataValue::Text(text) => {
                if !fits(text, Self::MAX_TEXT_CHARS) {
                    return Err(InvalidMetadata::Text);
                }
                check_characters(text)?;
                self.begin(TEXT, name);
                self.sized(text);
            }
            MetadataValue::List(list) => {
                self.begin(LIST, name);
                self.packed.push_str(list.packed);
                self.packed.push(END_OF_LIST);
            }
        }
        Ok(())
    }

    /// Adds a member whose value is a list of texts.
    ///
    /// # Errors
    /// It has no place among the others; they stay as they are.
    pub fn push_list(
        &mut self,
        name: &str,
        texts: &[impl AsRef<str>],
    ) -> Result<(), InvalidMetadata> {
        self.check_name(name)?;
        let mut room = Self::MAX_TEXT_CHARS;
        for text in texts {
            let length = text.as_ref().chars().take(room + 1).count();
            room = room.checked_sub(length).ok_or(InvalidMetadata::List)?;
            check_characters(text.as_ref())?;
        }
        if texts.len() > Self::MAX_LIST_ITEMS {
            return Err(InvalidMetadata::List);
        }
        self.begin(LIST, name);
        for text in texts {
            self.packed.push(TEXT);
            self.sized(text.as_ref());
        }
        self.packed.push(END_OF_LIST);
        Ok(())
    }

    /// Whether a member of this name may be added.
    fn check_name(&self, name: &str) -> Result<(), InvalidMetadata> {
        let mut members = 0;
        for (other, _) in self {
            if other == name {
                return Err(InvalidMetadata::Twice);
            }
            members += 1;
        }
        if members == Self::MAX_MEMBERS {
            return Err(InvalidMetadata::Members);
        }
        if Self::is_name(name) {
            Ok(())
        } else {
            Err(InvalidMetadata::Name)
        }
    }

    /// Whether a member may have this name.
    #[must_use]
    pub fn is_name(name: &str) -> bool {
        !name.is_empty() && fits(name, Self::MAX_NAME_CHARS) && !name.chars().any(char::is_control)
    }

    fn begin(&mut self, kind: char, name: &str) {
        self.packed.push(kind);
        self.sized(name);
    }

    /// Writes a text after its length. The length of a text within the bounds is
    /// far below the surrogates, which are no characters.
    fn sized(&mut self, text: &str) {
        let length = u32::try_from(text.len()).ok().and_then(char::from_u32);
        self.packed.push(length.unwrap_or_default());
        self.packed.push_str(text);
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

/// Rejects a text that PostgreSQL cannot store.
fn check_characters(text: &str) -> Result<(), InvalidMetadata> {
    if text.contains('\0') {
        return Err(InvalidMetadata::NullCharacter);
    }
    Ok(())
}

/// Whether a text has at most `max` characters.
fn fits(text: &str, max: usize) -> bool {
    text.len() <= max || text.chars().nth(max).is_none()
}

impl<'a> TextList<'a> {
    /// The texts, in the client's order.
    pub fn iter(&self) -> impl Iterator<Item = &'a str> + use<'a> {
        let mut members = MetadataMembers { rest: self.packed };
        std::iter::from_fn(move || {
            members.character()?;
            members.text()
        })
    }
}

impl fmt::Debug for TextList<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}

impl Serialize for TextList<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.iter())
    }
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

    /// A list up to its end.
    fn list(&mut self) -> Option<TextList<'a>> {
        let list = self.rest;
        while self.character()? != END_OF_LIST {
            self.text()?;
        }
        let packed = list.len() - self.rest.len() - END_OF_LIST.len_utf8();
        Some(TextList {
            packed: list.get(..packed)?,
        })
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
            LIST => MetadataValue::List(self.list()?),
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
    List(Vec<String>),
}

impl Read {
    fn add_to(&self, metadata: &mut Metadata, name: &str) -> Result<(), InvalidMetadata> {
        let value = match self {
            Self::Flag(flag) => MetadataValue::Flag(*flag),
            Self::Integer(number) => MetadataValue::Integer(*number),
            Self::Float(number) => MetadataValue::Float(*number),
            Self::Text(text) => MetadataValue::Text(text),
            Self::List(texts) => return metadata.push_list(name, texts),
        };
        metadata.push(name, value)
    }
}

impl<'de> Visitor<'de> for Reading {
    type Value = Metadata;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object of texts, numbers, flags and lists of texts")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Metadata, A::Error> {
        let mut metadata = Metadata::default();
        while let Some((name, value)) = map.next_entry::<Cow<'de, str>, Read>()? {
            value
                .add_to(&mut metadata, &name)
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
                "a name in `metadata` must have 1 to 64 characters, without control characters"
            }
            Self::Twice => "`metadata` has a member twice",
            Self::Text => "a text in `metadata` has more than 512 characters",
            Self::List => "a list in `metadata` has more than 64 texts or 512 characters",
            Self::NullCharacter => "a text in `metadata` contains the character U+0000",
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
mod tests;
