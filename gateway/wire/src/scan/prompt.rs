//! Measures the prompt of a request while its body is scanned.
//!
//! Everything in the body counts as text, as it is written: an escape is longer
//! than what it stands for, and engines render other members than the messages
//! into the prompt. Only two things are no text: the numbers of a token list,
//! which are tokens, and a file at a place where the API has one. Places are
//! identified by nesting, and a file by its whole string, so that no text
//! passes for a file.

use std::ops::Range;

use super::RequestSchema;
use super::files::{FileString, base64, data_url};
use crate::estimate::PromptSize;
use crate::json::{is_scalar, nested_end, skip_space, value_end};
use crate::quotes::string_end;

/// Maximum length of a token in a list, in bytes.
const MAX_TOKEN: usize = 8;

/// Maximum depth of a place with a name.
const MAX_DEPTH: usize = 6;

/// A nested value, identified by the path to it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum Place {
    /// An array of messages, or of documents with the form of messages.
    Messages,
    /// The array `input`: messages, parts, texts or tokens.
    Inputs,
    /// The array `prompt`: texts or tokens.
    Prompts,
    /// A list of tokens in one of the two.
    Tokens,
    /// The array `image`.
    Images,
    Message,
    /// An element of `input`.
    Input,
    /// The content of a message, or the output of a tool.
    Parts,
    /// An element of it.
    Part,
    /// An `image_url`, `audio_url` or `video_url`.
    Link,
    /// An `input_audio`.
    Audio,
    /// A `file`.
    File,
    /// Any other.
    #[default]
    Other,
}

impl Place {
    /// The place of a value of the outermost object.
    fn of_member(name: &[u8], first: u8, fields: RequestSchema) -> Self {
        match (name, first) {
            (b"messages", b'[') => Self::Messages,
            (b"input", b'[') => Self::Inputs,
            (b"prompt", b'[') => Self::Prompts,
            (b"image", b'[') if fields == RequestSchema::Media => Self::Images,
            _ if fields == RequestSchema::ModelOnly => match (PairSide::of(name), first) {
                (Some(_), b'[') => Self::Messages,
                (Some(_), b'{') => Self::Message,
                _ => Self::Other,
            },
            _ => Self::Other,
        }
    }

    /// The place of a nested value in this one: a member of this name, or an
    /// element.
    fn child(self, name: Option<&[u8]>, bracket: u8) -> Self {
        match (self, name, bracket) {
            (Self::Messages, None, b'{') => Self::Message,
            (Self::Inputs, None, b'{') => Self::Input,
            (Self::Inputs | Self::Prompts, None, b'[') => Self::Tokens,
            (Self::Message | Self::Input, Some(b"content"), b'[')
            | (Self::Input, Some(b"output"), b'[') => Self::Parts,
            (Self::Parts, None, b'{') | (Self::Input, Some(b"output"), b'{') => Self::Part,
            (Self::Input | Self::Part, Some(name), b'{') => match name {
                b"image_url" | b"audio_url" | b"video_url" => Self::Link,
                b"input_audio" => Self::Audio,
                b"file" => Self::File,
                _ => Self::Other,
            },
            _ => Self::Other,
        }
    }

    /// Whether numbers in it are tokens.
    fn has_tokens(self) -> bool {
        matches!(self, Self::Inputs | Self::Prompts | Self::Tokens)
    }
}

/// The sides of the pairs that a reranker or a scorer compares.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum PairSide {
    /// It is compared with each element of the other side, if it is one.
    Query,
    Documents,
}

impl PairSide {
    fn of(name: &[u8]) -> Option<Self> {
        match name {
            b"query" | b"queries" | b"text_1" | b"data_1" => Some(Self::Query),
            b"documents" | b"items" | b"text_2" | b"data_2" => Some(Self::Documents),
            _ => None,
        }
    }
}

/// Collects the size of the prompt of one body.
#[derive(Debug, Default)]
pub(super) struct PromptMeter {
    /// Bytes of the body that are no text.
    excluded: usize,
    tokens: u64,
    files: u64,
    /// Elements of the array `prompt` of a completion.
    prompts: u64,
    /// Length of the largest single query, in bytes.
    query: usize,
    /// Number of elements that it is compared with.
    documents: u64,
}

impl PromptMeter {
    /// Index after the value, at `from`, of a member of the outermost object.
    pub(super) fn value_end(
        &mut self,
        fields: RequestSchema,
        name: &[u8],
        text: &[u8],
        from: usize,
    ) -> Option<usize> {
        let first = *text.get(from)?;
        let place = Place::of_member(name, first, fields);
        let (end, elements) = if place != Place::Other {
            Walk::new(self, place, text, from).run()?
        } else if name == b"image" && first == b'"' && fields == RequestSchema::Media {
            let FileString { end, data } = data_url(text, from + 1)?;
            self.excluded += data;
            self.files += 1;
            (end + 1, 1)
        } else {
            (value_end(text, from)?, 1)
        };
        match fields {
            RequestSchema::Completion if name == b"prompt" => self.prompts = elements,
            RequestSchema::ModelOnly => self.count_pairs(name, end - from, elements),
            _ => {}
        }
        Some(end)
    }

    fn count_pairs(&mut self, name: &[u8], bytes: usize, elements: u64) {
        match PairSide::of(name) {
            Some(PairSide::Query) if elements <= 1 => self.query = self.query.max(bytes),
            Some(PairSide::Documents) => self.documents = self.documents.max(elements),
            _ => {}
        }
    }

    /// Number of texts and token lists in the `prompt` of a completion, at least
    /// one.
    pub(super) fn prompts(&self) -> u64 {
        self.prompts.max(1)
    }

    /// The size of the prompt of a body of this length.
    pub(super) fn size(&self, body: usize) -> PromptSize {
        let text = body.saturating_sub(self.excluded) as u64;
        PromptSize {
            text_bytes: text.saturating_add(self.repetitions()),
            tokens: self.tokens,
            files: self.files,
        }
    }

    /// Bytes that are part of the prompt again for each further document.
    fn repetitions(&self) -> u64 {
        let further = self.documents.saturating_sub(1);
        further.saturating_mul(self.query as u64)
    }
}

/// Scans one nested value.
struct Walk<'m, 'a> {
    meter: &'m mut PromptMeter,
    text: &'a [u8],
    pos: usize,
    /// The places of the open brackets.
    open: [Place; MAX_DEPTH],
    depth: usize,
    /// The place of the innermost bracket.
    place: Place,
    /// The last string, with its quotes.
    last: Range<usize>,
    /// Number of elements before the first number: of the outermost array, or of
    /// the arrays in an outermost object.
    elements: u64,
    /// Their depth.
    element_depth: usize,
    has_numbers: bool,
}

impl<'m, 'a> Walk<'m, 'a> {
    /// Starts at the opening bracket at `from`.
    fn new(meter: &'m mut PromptMeter, place: Place, text: &'a [u8], from: usize) -> Self {
        let mut open = [Place::Other; MAX_DEPTH];
        let [outermost, ..] = &mut open;
        *outermost = place;
        Self {
            meter,
            text,
            pos: from + 1,
            open,
            depth: 1,
            place,
            last: from..from,
            elements: 0,
            element_depth: if place == Place::Message { 2 } else { 1 },
            has_numbers: false,
        }
    }

    /// The index after the value, and its number of elements.
    fn run(mut self) -> Option<(usize, u64)> {
        loop {
            match *self.text.get(self.pos)? {
                b'"' => self.string()?,
                bracket @ (b'{' | b'[') => self.nested(bracket)?,
                b'}' | b']' => {
                    self.depth -= 1;
                    if self.depth == 0 {
                        return Some((self.pos + 1, self.elements));
                    }
                    self.place = self.open.get(self.depth - 1).copied().unwrap_or_default();
                }
                byte if self.place.has_tokens() && is_scalar(byte) => self.numbers(),
                _ => {}
            }
            self.pos += 1;
        }
    }

    /// Scans a string to its closing quote.
    fn string(&mut self) -> Option<()> {
        self.count_element();
        let start = self.pos + 1;
        let end = match self.place {
            Place::Input | Place::Part | Place::Link | Place::Audio | Place::File => {
                self.member_string(start)?
            }
            Place::Images => self.file(data_url(self.text, start)?),
            _ => string_end(self.text, start)?,
        };
        self.last = self.pos..end + 1;
        self.pos = end;
        Some(())
    }

    /// The closing quote of a string that may be a file.
    fn member_string(&mut self, start: usize) -> Option<usize> {
        match (self.place, self.name()) {
            (
                Place::Input | Place::Part,
                Some(b"image_url" | b"audio_url" | b"video_url" | b"file_data"),
            ) => Some(self.file(data_url(self.text, start)?)),
            (Place::Input | Place::Part, Some(b"file_url" | b"file_id")) => {
                self.meter.files += 1;
                string_end(self.text, start)
            }
            // The nested value has been counted.
            (Place::Link, Some(b"url")) | (Place::File, Some(b"file_data")) => {
                let FileString { end, data } = data_url(self.text, start)?;
                self.meter.excluded += data;
                Some(end)
            }
            (Place::Audio, Some(b"data")) => {
                let FileString { end, data } = base64(self.text, start)?;
                self.meter.excluded += data;
                Some(end)
            }
            _ => string_end(self.text, start),
        }
    }

    /// Counts a file; returns the index of its closing quote.
    fn file(&mut self, FileString { end, data }: FileString) -> usize {
        self.meter.files += 1;
        self.meter.excluded += data;
        end
    }

    /// Enters a nested value, or skips it if it has no place of interest.
    fn nested(&mut self, bracket: u8) -> Option<()> {
        self.count_element();
        let place = self.place.child(self.name(), bracket);
        match self.open.get_mut(self.depth) {
            Some(slot) if place != Place::Other => {
                *slot = place;
                self.depth += 1;
                self.place = place;
                if matches!(place, Place::Link | Place::Audio | Place::File) {
                    self.meter.files += 1;
                }
            }
            _ => self.pos = nested_end(self.text, self.pos + 1)?.checked_sub(1)?,
        }
        Some(())
    }

    /// The name of the member whose value begins here, as written.
    fn name(&self) -> Option<&'a [u8]> {
        let end = self.last.end;
        let is_value = match self.text.get(end)? {
            b':' if end + 1 == self.pos => true,
            b':' | b' ' | b'\t' | b'\n' | b'\r' => self.is_after_colon(),
            _ => false,
        };
        if !is_value {
            return None;
        }
        self.text.get(self.last.start + 1..end.checked_sub(1)?)
    }

    /// Whether only a colon separates this value from the last string.
    fn is_after_colon(&self) -> bool {
        let colon = skip_space(self.text, self.last.end);
        self.text.get(colon) == Some(&b':') && skip_space(self.text, colon + 1) == self.pos
    }

    fn count_element(&mut self) {
        if self.depth == self.element_depth && !self.has_numbers {
            self.elements += 1;
        }
    }

    /// Scans numbers, or another value without quotes, to their last byte. The
    /// comma after a token is part of it.
    fn numbers(&mut self) {
        self.has_numbers |= self.depth == self.element_depth;
        let rest = self.text.get(self.pos..).unwrap_or_default();
        let mut tokens = 0;
        let mut end = 0;
        loop {
            let digits = rest.get(end..).unwrap_or_default();
            let digits = digits.iter().take(MAX_TOKEN + 1);
            let length = digits.take_while(|byte| byte.is_ascii_digit()).count();
            let after = rest.get(end + length).copied().unwrap_or_default();
            if length == 0 || length > MAX_TOKEN || is_scalar(after) {
                break;
            }
            tokens += 1;
            end += length;
            if after != b',' {
                break;
            }
            end += 1;
        }
        self.meter.tokens += tokens;
        self.meter.excluded += end;
        if tokens == 0 {
            let other = rest.iter().take_while(|byte| is_scalar(**byte));
            end = other.count();
        }
        self.pos += end.saturating_sub(1);
    }
}

#[cfg(test)]
mod tests;
