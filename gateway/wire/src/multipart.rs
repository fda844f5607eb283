//! The model in a `multipart/form-data` body, and its position.
//!
//! The form is checked to its end, independent of read boundaries; only the
//! head of the current part is kept. Form parsers differ in what they tolerate,
//! so a body could name one model to the gateway and another to the engine.
//! Only forms that all parsers read alike are accepted: lines end with CRLF,
//! delimiters have nothing around them, names are plain, and `model` occurs
//! once.
//!
//! A caller that forwards the body while it is still being received pushes each
//! read before it forwards it, and aborts the upstream request if a read is
//! rejected: a form without its end is invalid.

mod content_type;
mod delimiter;
mod params;
mod part;

use std::ops::Range;

use crate::error::ScanError;
use crate::estimate::PromptSize;
use crate::scan::{MODEL, MODEL_LIMIT, Members, choices_in};

use content_type::ContentType;
use delimiter::{DelimiterScanner, LineBreak};
use part::{Content, FormField, Part};

/// Maximum size of the head of one part, in bytes.
pub const HEAD_LIMIT: usize = 4 << 10;

/// Maximum number of parts in a form.
pub const PART_LIMIT: usize = 128;

const CRLF: &[u8] = b"\r\n";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum FormState {
    /// At the beginning; this many bytes of the first delimiter were received.
    Opening(usize),
    /// After the boundary of a delimiter, with the byte that followed it.
    Delimited(Option<u8>),
    Head,
    Content,
    /// After the last delimiter.
    Closed,
    Refused(ScanError),
}

/// Reads a form incrementally.
///
/// ```
/// use fastllm_wire::{FormReader, Splice};
///
/// let body = b"--x\r\ncontent-disposition: form-data; name=\"model\"\r\n\r\npublic\r\n--x--\r\n";
/// let mut reader = FormReader::new(b"multipart/form-data; boundary=x").unwrap();
/// body.chunks(10).try_for_each(|read| reader.push(read)).unwrap();
/// let members = reader.finish().unwrap();
/// assert_eq!(members.model(), "public");
/// assert_eq!(&body[members.model_at()], b"public");
/// let out = Splice::new(&members).model("engine").to_vec(body);
/// assert!(out.ends_with(b"\r\n\r\nengine\r\n--x--\r\n"));
/// ```
#[derive(Debug, Clone)]
pub struct FormReader {
    content_type: String,
    delimiters: DelimiterScanner,
    state: FormState,
    /// Number of bytes received.
    pos: usize,
    parts: usize,
    /// The head of the current part, as received so far.
    head: Vec<u8>,
    /// The current part, if the gateway uses it.
    field: Option<FormField>,
    /// Its value, as received so far.
    value: Vec<u8>,
    /// Offset of the head or content of the current part.
    from: usize,
    stream: Option<bool>,
    choices: Option<u64>,
    /// The content of the current part.
    content: Content,
    /// The size of the complete parts that belong to a prompt.
    prompt: PromptSize,
    /// Total size of the complete `file` parts, in bytes.
    file_bytes: Option<u64>,
    members: Option<Members>,
}

impl FormReader {
    /// A form of this `content-type`.
    ///
    /// # Errors
    /// [`ScanError::NotAForm`].
    pub fn new(content_type: &[u8]) -> Result<Self, ScanError> {
        let parsed = ContentType::parse(content_type).ok_or(ScanError::NotAForm)?;
        Ok(Self {
            content_type: parsed.written(),
            delimiters: DelimiterScanner::new(parsed.boundary()),
            state: FormState::Opening(0),
            pos: 0,
            parts: 0,
            head: Vec::new(),
            field: None,
            value: Vec::new(),
            from: 0,
            stream: None,
            choices: None,
            content: Content::Text,
            prompt: PromptSize::default(),
            file_bytes: None,
            members: None,
        })
    }

    /// Processes one read of the body.
    ///
    /// # Errors
    /// [`ScanError`], always a response with status 400; later calls return the
    /// same error.
    pub fn push(&mut self, read: &[u8]) -> Result<(), ScanError> {
        let mut rest = read;
        while !rest.is_empty() {
            match self.advance(rest) {
                Ok(used) => {
                    self.pos += used;
                    rest = rest.get(used..).unwrap_or_default();
                }
                Err(error) => {
                    self.state = FormState::Refused(error);
                    return Err(error);
                }
            }
        }
        Ok(())
    }

    /// What is known so far: `None` before the part `model` is complete. Parts
    /// `stream` and `n` that are received later still count, and so do texts and
    /// images for the size of the prompt.
    pub fn members(&self) -> Option<&Members> {
        self.members.as_ref()
    }

    /// Processes the end of the body.
    ///
    /// # Errors
    /// [`ScanError`], also if the form is incomplete or has no model.
    pub fn finish(self) -> Result<Members, ScanError> {
        match self.state {
            FormState::Closed => {
                let mut members = self.members.ok_or(ScanError::Missing { member: MODEL })?;
                members.set_file_bytes(self.file_bytes);
                Ok(members)
            }
            FormState::Refused(error) => Err(error),
            _ => Err(malformed(self.pos, "the form is incomplete")),
        }
    }

    /// Processes the beginning of `rest`, which is not empty; returns the
    /// number of bytes consumed.
    fn advance(&mut self, rest: &[u8]) -> Result<usize, ScanError> {
        let first = rest.first().copied().unwrap_or_default();
        match self.state {
            FormState::Opening(matched) => self.open(matched, first).map(|()| 1),
            FormState::Delimited(before) => self.delimited(before, first).map(|()| 1),
            FormState::Head => self.head(first).map(|()| 1),
            FormState::Content => self.content(rest),
            FormState::Closed if CRLF.contains(&first) => Ok(1),
            FormState::Closed => Err(malformed(self.pos, "data after the last delimiter")),
            FormState::Refused(error) => Err(error),
        }
    }

    fn open(&mut self, matched: usize, byte: u8) -> Result<(), ScanError> {
        let needle = self.delimiters.needle();
        if needle.get(matched) != Some(&byte) {
            return Err(malformed(0, "the form must begin with its boundary"));
        }
        self.state = if matched + 1 == needle.len() {
            FormState::Delimited(None)
        } else {
            FormState::Opening(matched + 1)
        };
        Ok(())
    }

    fn delimited(&mut self, before: Option<u8>, byte: u8) -> Result<(), ScanError> {
        self.state = match (before, byte) {
            (None, b'\r' | b'-') => FormState::Delimited(Some(byte)),
            (Some(b'\r'), b'\n') => {
                self.parts += 1;
                self.from = self.pos + 1;
                self.head.clear();
                FormState::Head
            }
            (Some(b'-'), b'-') => FormState::Closed,
            _ => return Err(malformed(self.pos, "unexpected bytes after a boundary")),
        };
        if self.parts > PART_LIMIT {
            return Err(malformed(self.pos, "too many parts"));
        }
        Ok(())
    }

    fn head(&mut self, byte: u8) -> Result<(), ScanError> {
        if self.head.len() == HEAD_LIMIT {
            return Err(malformed(self.from, "the head of a part is too long"));
        }
        self.head.push(byte);
        if self.head.ends_with(b"\r\n\r\n") || self.head == CRLF {
            let part = part::part(&self.head).map_err(|fault| fault.at(self.from))?;
            let Part { field, content } = part;
            self.content = content;
            let known = match field {
                Some(FormField::Model) => self.members.is_some(),
                Some(FormField::Stream) => self.stream.is_some(),
                Some(FormField::N) => self.choices.is_some(),
                None => false,
            };
            if let (Some(field), true) = (field, known) {
                return Err(ScanError::Duplicate {
                    member: field.name(),
                });
            }
            self.field = field;
            self.value.clear();
            self.from = self.pos + 1;
            self.delimiters.restart();
            self.state = FormState::Content;
        }
        Ok(())
    }

    fn content(&mut self, rest: &[u8]) -> Result<usize, ScanError> {
        let found = self.delimiters.find(rest);
        let used = found.as_ref().map_or(rest.len(), |found| found.end);
        if let Some(field) = self.field {
            self.keep(field, rest.get(..used).unwrap_or_default())?;
        }
        let Some(found) = found else {
            return Ok(used);
        };
        let start = (self.pos + used).saturating_sub(self.delimiters.needle().len());
        if found.before != LineBreak::CrLf {
            return Err(malformed(start, "a boundary must follow a CRLF"));
        }
        let value = self.from..start.saturating_sub(CRLF.len());
        let bytes = value.len() as u64;
        match self.content {
            Content::Text => self.prompt.text_bytes = self.prompt.text_bytes.saturating_add(bytes),
            Content::Image => self.prompt.files = self.prompt.files.saturating_add(1),
            Content::Audio => {
                let before = self.file_bytes.unwrap_or(0);
                self.file_bytes = Some(before.saturating_add(bytes));
            }
        }
        if let Some(field) = self.field.take() {
            self.take(field, value)?;
        }
        if let Some(members) = &mut self.members {
            members.set_prompt_tokens(self.prompt.tokens());
        }
        self.state = FormState::Delimited(None);
        Ok(used)
    }

    /// Stores a part of a value; the last one includes the delimiter.
    fn keep(&mut self, field: FormField, part: &[u8]) -> Result<(), ScanError> {
        let limit = MODEL_LIMIT + CRLF.len() + self.delimiters.needle().len();
        if self.value.len() + part.len() > limit {
            return Err(too_long(field));
        }
        self.value.extend_from_slice(part);
        Ok(())
    }

    /// Processes a complete value.
    fn take(&mut self, field: FormField, at: Range<usize>) -> Result<(), ScanError> {
        self.value.truncate(at.len());
        if self.value.len() > MODEL_LIMIT {
            return Err(too_long(field));
        }
        match field {
            FormField::Model => {
                let model = part::model(&self.value)?.to_owned();
                let content_type = self.content_type.clone();
                self.members = Some(Members::from_form(model, at, content_type));
            }
            FormField::Stream => self.stream = Some(part::is_true(&self.value)),
            FormField::N => self.choices = Some(choices_in(&self.value)),
        }
        if let Some(members) = &mut self.members {
            members.set_stream(self.stream == Some(true));
            members.set_choices(self.choices.unwrap_or(1));
        }
        Ok(())
    }
}

fn malformed(at: usize, why: &'static str) -> ScanError {
    ScanError::MalformedForm { at, why }
}

fn too_long(field: FormField) -> ScanError {
    ScanError::TooLong {
        member: field.name(),
        limit: MODEL_LIMIT,
    }
}

#[cfg(test)]
mod tests;
