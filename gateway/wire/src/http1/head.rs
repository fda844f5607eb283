//! Code shared by the heads of requests and responses.

use std::mem::MaybeUninit;

use memchr::{memchr, memchr_iter};

use super::fields::{FieldSpan, Span};
use super::framing::FramingFields;
use super::{Http1Error, Limits, MAX_FIELDS, Version};

/// Storage for the fields of any head, on the stack and uninitialized.
pub(super) type HeaderSlots<'b> = [MaybeUninit<httparse::Header<'b>>; MAX_FIELDS];

pub(super) const SLOTS: HeaderSlots<'static> = [const { MaybeUninit::uninit() }; MAX_FIELDS];

/// As many of the slots as the limits allow.
pub(super) fn allowed<'s, 'b>(
    slots: &'s mut HeaderSlots<'b>,
    limits: Limits,
) -> &'s mut [MaybeUninit<httparse::Header<'b>>] {
    slots
        .get_mut(..limits.fields.min(MAX_FIELDS))
        .unwrap_or_default()
}

/// The state of a head that was incomplete at the last parse. Parsing it again
/// at every read would be expensive for a peer that sends single bytes.
#[derive(Debug, Clone, Default)]
pub(super) struct ParseProgress {
    pub(super) parsed: usize,
    seen: usize,
}

impl ParseProgress {
    /// Whether another parse of `buf` can succeed: it has a blank line now, is
    /// twice as long as at the last parse, or has reached the limit.
    pub(super) fn is_due(&mut self, buf: &[u8], limit: usize) -> bool {
        let from = self.seen.saturating_sub(2);
        self.seen = buf.len();
        let due = buf.len() / 2 >= self.parsed || buf.len() >= limit || {
            let fresh = buf.get(from..).unwrap_or_default();
            memchr_iter(b'\n', fresh).any(|at| {
                let rest = fresh.get(at + 1..).unwrap_or_default();
                rest.starts_with(b"\r\n") || rest.starts_with(b"\n")
            })
        };
        if due {
            self.parsed = buf.len();
        }
        due
    }
}

/// The part of `buf` that may be parsed, and the error if no head ends in it.
pub(super) fn window(buf: &[u8], limits: Limits) -> (&[u8], Option<Http1Error>) {
    if let Some(line) = buf.get(..limits.line)
        && memchr(b'\n', line).is_none()
    {
        return (line, Some(Http1Error::LineTooLong));
    }
    match buf.get(..limits.head) {
        Some(head) => (head, Some(Http1Error::HeadTooLong)),
        None => (buf, None),
    }
}

/// Takes the fields of a parsed head of `len` bytes. Line ends without a CR,
/// which httparse accepts, are rejected here: a CRLF precedes each name, and
/// two end the head.
pub(super) fn take_fields(
    buf: &[u8],
    len: usize,
    parsed: &[httparse::Header<'_>],
    fields: &mut Vec<FieldSpan>,
    facts: &mut FramingFields,
) -> Result<(), Http1Error> {
    fields.clear();
    for field in parsed {
        let name = Span::of(buf, field.name.as_bytes());
        if !name.before(buf).ends_with(b"\r\n") {
            return Err(Http1Error::LineEnd);
        }
        facts.note(field.name.as_bytes(), field.value)?;
        fields.push(FieldSpan {
            name,
            value: Span::of(buf, field.value),
        });
    }
    if buf
        .get(..len)
        .is_some_and(|head| head.ends_with(b"\r\n\r\n"))
    {
        Ok(())
    } else {
        Err(Http1Error::LineEnd)
    }
}

pub(super) fn version(minor: Option<u8>) -> Version {
    if minor == Some(0) {
        Version::Http10
    } else {
        Version::Http11
    }
}
