//! The head of one part, and the values that the gateway uses.

use memchr::memmem;

use super::params::{self, AmbiguousParam, Param, is_token};
use super::{CRLF, malformed};
use crate::error::ScanError;
use crate::scan::{MODEL, N, STREAM, folds_to};

/// A part that the gateway uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum FormField {
    Model,
    Stream,
    N,
}

impl FormField {
    const ALL: [Self; 3] = [Self::Model, Self::Stream, Self::N];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Model => MODEL,
            Self::Stream => STREAM,
            Self::N => N,
        }
    }
}

/// Why a part is rejected.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PartError {
    Grammar(&'static str),
    Member(ScanError),
}

impl PartError {
    /// The error for a part whose head begins at this offset.
    pub(super) fn at(self, at: usize) -> ScanError {
        match self {
            Self::Grammar(why) => malformed(at, why),
            Self::Member(error) => error,
        }
    }
}

impl From<AmbiguousParam> for PartError {
    fn from(AmbiguousParam: AmbiguousParam) -> Self {
        Self::Grammar("the parameters of a part's content-disposition are unclear")
    }
}

/// The header fields of a part.
#[derive(Debug, Default)]
struct PartHead<'a> {
    name: Option<&'a [u8]>,
    is_file: bool,
    /// A type or coding with which a parser could read a different text.
    is_coded: bool,
}

/// The result of parsing the head of a part.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Part {
    /// The part, if the gateway uses it.
    pub(super) field: Option<FormField>,
    pub(super) content: Content,
}

/// What a part contains, by its name: a text may have a file name, too.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Content {
    /// The audio to transcribe.
    Audio,
    /// An image to edit, or its mask.
    Image,
    /// Anything else may be part of the prompt.
    Text,
}

impl Content {
    fn of(name: &[u8]) -> Self {
        match name {
            b"file" => Self::Audio,
            b"image" | b"mask" => Self::Image,
            _ if name.starts_with(b"image[") => Self::Image,
            _ => Self::Text,
        }
    }
}

/// Identifies the part from its head, including the blank line that ends it.
pub(super) fn part(head: &[u8]) -> Result<Part, PartError> {
    let head = PartHead::read(head)?;
    let name = head
        .name
        .ok_or(PartError::Grammar("a part has no content-disposition"))?;
    if name.is_empty() || !name.iter().copied().all(is_plain) {
        return Err(PartError::Grammar(
            "the name of a part may have only letters, digits and `_-.[]`",
        ));
    }
    // In RFC 7578 it sets the default character set of all other parts.
    if name.eq_ignore_ascii_case(b"_charset_") {
        return Err(PartError::Grammar("a form must not set its character set"));
    }
    let field = named(name)?;
    if let Some(field) = field
        && (head.is_file || head.is_coded)
    {
        return Err(not_a_text(field));
    }
    Ok(Part {
        field,
        content: Content::of(name),
    })
}

/// The part with this name. A name that some parsers treat as equal is
/// rejected: a different case, or brackets, which denote a list.
fn named(name: &[u8]) -> Result<Option<FormField>, PartError> {
    for field in FormField::ALL {
        let member = field.name();
        if name == member.as_bytes() {
            return Ok(Some(field));
        }
        if folds_to(name, member) {
            return Err(PartError::Member(ScanError::CaseVariant { member }));
        }
        let stem = name.split(|byte| *byte == b'[').next().unwrap_or_default();
        if folds_to(stem, member) {
            return Err(not_a_text(field));
        }
    }
    Ok(None)
}

fn not_a_text(field: FormField) -> PartError {
    PartError::Member(ScanError::WrongType {
        member: field.name(),
        expected: "one plain text field",
    })
}

impl<'a> PartHead<'a> {
    fn read(head: &'a [u8]) -> Result<Self, PartError> {
        let mut read = Self::default();
        let mut rest = head;
        while let Some(end) = memmem::find(rest, CRLF) {
            let (line, after) = rest.split_at(end);
            rest = after.get(CRLF.len()..).unwrap_or_default();
            if line.is_empty() {
                break;
            }
            let (name, value) = header(line)?;
            read.take(name, value)?;
        }
        Ok(read)
    }

    fn take(&mut self, name: &[u8], value: &'a [u8]) -> Result<(), PartError> {
        if name.eq_ignore_ascii_case(b"content-disposition") {
            self.disposition(value)?;
        } else if name.eq_ignore_ascii_case(b"content-transfer-encoding") {
            let identity: [&[u8]; 3] = [b"7bit", b"8bit", b"binary"];
            self.is_coded |= !identity
                .iter()
                .any(|coding| value.eq_ignore_ascii_case(coding));
        } else if name.eq_ignore_ascii_case(b"content-type") {
            self.is_coded |= !is_plain_text(value);
        }
        Ok(())
    }

    fn disposition(&mut self, value: &'a [u8]) -> Result<(), PartError> {
        let (kind, params) = params::split(value);
        if !kind.eq_ignore_ascii_case(b"form-data") {
            return Err(PartError::Grammar("a part is no form-data"));
        }
        let mut given = None;
        for param in params {
            let Param { name, value } = param?;
            if name == b"name" {
                if given.replace(value).is_some() {
                    return Err(PartError::Grammar("a part has two names"));
                }
            } else if name.eq_ignore_ascii_case(b"filename")
                || name.eq_ignore_ascii_case(b"filename*")
            {
                self.is_file = true;
            } else {
                // RFC 7578 defines no others, and some parsers treat `Name`,
                // `name*` or `names` as a name, or as none.
                return Err(PartError::Grammar(
                    "a part has parameters other than `name` and `filename`",
                ));
            }
        }
        let given = given.ok_or(PartError::Grammar("a part has no name"))?;
        if self.name.replace(given).is_some() {
            return Err(PartError::Grammar("a part has two content-dispositions"));
        }
        Ok(())
    }
}

/// The name and the value of one header field.
fn header(line: &[u8]) -> Result<(&[u8], &[u8]), PartError> {
    let wrong = PartError::Grammar("a header of a part is not valid");
    let name = line.iter().take_while(|byte| is_token(**byte)).count();
    let (name, rest) = line.split_at(name);
    let value = rest.strip_prefix(b":").ok_or(wrong)?;
    let is_text = |byte: &u8| !byte.is_ascii_control() || *byte == b'\t';
    // A line that begins with dashes may be a delimiter to some parsers.
    let is_name = name.first().is_some_and(u8::is_ascii_alphanumeric);
    if !is_name || !value.iter().all(is_text) {
        return Err(wrong);
    }
    Ok((name, value.trim_ascii()))
}

/// Whether a `content-type` declares only that a value is text.
fn is_plain_text(value: &[u8]) -> bool {
    let (kind, mut params) = params::split(value);
    let is_utf8 = |value: &[u8]| {
        value.eq_ignore_ascii_case(b"utf-8") || value.eq_ignore_ascii_case(b"us-ascii")
    };
    kind.eq_ignore_ascii_case(b"text/plain")
        && params
            .all(|param| param.is_ok_and(|param| param.is_named("charset") && is_utf8(param.value)))
}

/// Bytes that no parser decodes in a name.
fn is_plain(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"_-.[]".contains(&byte)
}

/// The value of `model`.
pub(super) fn model(value: &[u8]) -> Result<&str, ScanError> {
    if value.is_empty() {
        return Err(ScanError::Empty { member: MODEL });
    }
    std::str::from_utf8(value).map_err(|_| ScanError::WrongType {
        member: MODEL,
        expected: "valid UTF-8",
    })
}

/// Whether engines treat the value of a flag as true. Other values are left to
/// them.
pub(super) fn is_true(value: &[u8]) -> bool {
    ["true", "1", "on", "yes", "y", "t"]
        .iter()
        .any(|word| value.eq_ignore_ascii_case(word.as_bytes()))
}
