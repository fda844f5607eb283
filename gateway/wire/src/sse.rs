//! Finds the events of a `text/event-stream`, independent of read boundaries.
//!
//! Lines end with LF, CRLF or CR, and an event ends with a blank line. The
//! framer yields the raw bytes of each event with its terminator, so that they
//! can be forwarded unchanged; fields are parsed only on demand.

use std::borrow::Cow;

use memchr::{memchr, memchr2};

/// Maximum size of an event that is buffered, in bytes.
pub const EVENT_LIMIT: usize = 1 << 20;

/// Capacity that an idle carry buffer may keep, in bytes.
const CARRY_KEPT: usize = 16 << 10;

const BOM: &[u8] = "\u{FEFF}".as_bytes();

/// One event (or a comment, or a stray blank line), as received.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Event<'a> {
    raw: &'a [u8],
    text: &'a [u8],
}

impl<'a> Event<'a> {
    /// An event whose bytes are already complete, with or without terminator.
    pub fn new(raw: &'a [u8]) -> Self {
        Self { raw, text: raw }
    }

    /// The bytes as received, including the terminator.
    pub fn raw(&self) -> &'a [u8] {
        self.raw
    }

    /// Whether it has a `data` line; a comment or a blank line has none.
    pub fn has_data(&self) -> bool {
        self.values(b"data").next().is_some()
    }

    /// The `data` lines, joined by LF. Copies only if there are several.
    pub fn data(&self) -> Option<Cow<'a, [u8]>> {
        let mut values = self.values(b"data");
        let first = values.next()?;
        let Some(second) = values.next() else {
            return Some(Cow::Borrowed(first));
        };
        let mut joined = first.to_vec();
        for value in std::iter::once(second).chain(values) {
            joined.push(b'\n');
            joined.extend_from_slice(value);
        }
        Some(Cow::Owned(joined))
    }

    /// The value of the last `event` line.
    pub fn kind(&self) -> Option<&'a [u8]> {
        self.values(b"event").last()
    }

    /// Whether its data is the `[DONE]` that ends an OpenAI stream.
    pub fn is_done(&self) -> bool {
        // The marker is short, so a long event is not examined. Read boundaries
        // may separate its line end from it.
        self.raw.trim_ascii_end().len() <= 128
            && self
                .data()
                .is_some_and(|data| data.trim_ascii() == b"[DONE]")
    }

    /// The values of all lines with this field name, in order.
    fn values(&self, field: &'static [u8]) -> impl Iterator<Item = &'a [u8]> + use<'a> {
        let mut rest = self.text;
        std::iter::from_fn(move || {
            while !rest.is_empty() {
                let (line, after) = split_line(rest);
                rest = after;
                let Some(value) = line.strip_prefix(field) else {
                    continue;
                };
                match value {
                    [] => return Some(value),
                    [b':', b' ', value @ ..] | [b':', value @ ..] => return Some(value),
                    _ => {}
                }
            }
            None
        })
    }
}

/// The first line of `text` without its end (LF, CRLF or CR), and the rest.
fn split_line(text: &[u8]) -> (&[u8], &[u8]) {
    let Some(end) = memchr2(b'\n', b'\r', text) else {
        return (text, &[]);
    };
    let (line, rest) = text.split_at(end);
    let rest = rest
        .strip_prefix(b"\r\n")
        .or_else(|| rest.get(1..))
        .unwrap_or_default();
    (line, rest)
}

/// Length of the complete comment lines that `text` begins with; only LF and CRLF
/// complete them, since a CR may be the first half of a CRLF.
fn comments(text: &[u8]) -> usize {
    let mut len = 0;
    while let Some(rest @ [b':', ..]) = text.get(len..)
        && let Some(end) = memchr2(b'\n', b'\r', rest)
    {
        len += match rest.get(end..) {
            Some([b'\n', ..]) => end + 1,
            Some([b'\r', b'\n', ..]) => end + 2,
            _ => break,
        };
    }
    len
}

/// What a [`Frame`] is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FrameKind {
    /// A complete event, or the unterminated one at the end of the stream.
    Event,
    /// Complete comment lines before an event.
    Comment,
    /// The LF of a CRLF whose CR already ended the previous frame.
    LineEnd,
    /// A part of an event that is longer than the limit; `last` ends it. The
    /// last part is empty if the stream ended within such an event.
    Overlong {
        /// Whether the event ends here.
        last: bool,
    },
}

/// An output of the framer. The bytes of all frames, concatenated, are the
/// stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Frame<'a> {
    /// The kind of the frame.
    pub kind: FrameKind,
    /// Its bytes.
    pub bytes: &'a [u8],
    /// The range of the bytes in the pushed read; `None` if they were buffered
    /// from several reads.
    pub at: Option<usize>,
    opens_stream: bool,
}

impl<'a> Frame<'a> {
    /// The event, if the frame is one.
    pub fn event(&self) -> Option<Event<'a>> {
        let text = if self.opens_stream {
            self.bytes.strip_prefix(BOM).unwrap_or(self.bytes)
        } else {
            self.bytes
        };
        (self.kind == FrameKind::Event).then_some(Event {
            raw: self.bytes,
            text,
        })
    }
}

/// Finds the blank line, across reads.
#[derive(Debug, Clone)]
struct EventBoundary {
    /// The current line is empty so far.
    blank: bool,
    /// The last byte was a CR that ended a line: an LF now belongs to it.
    after_cr: bool,
}

impl EventBoundary {
    /// Index after the terminator of the event that `bytes` (not empty)
    /// continues.
    fn find(&mut self, bytes: &[u8]) -> Option<usize> {
        let mut from = 0;
        if std::mem::take(&mut self.after_cr) {
            from = usize::from(bytes.starts_with(b"\n"));
        }
        loop {
            let rest = bytes.get(from..)?;
            let Some(len) = memchr2(b'\n', b'\r', rest) else {
                self.blank = rest.is_empty();
                return None;
            };
            let ended = self.blank && len == 0;
            self.blank = true;
            from += len + 1;
            if rest.get(len) == Some(&b'\r') {
                match rest.get(len + 1) {
                    Some(b'\n') => from += 1,
                    Some(_) => {}
                    None => self.after_cr = true,
                }
            }
            if ended {
                return Some(from);
            }
        }
    }
}

/// Splits a stream into events. It keeps at most `limit` bytes of an incomplete
/// event; a longer one is yielded in parts as received. Comments before an event
/// are not part of it: they are yielded at once, since they show that the stream
/// is alive.
#[derive(Debug, Clone)]
pub struct Framer {
    limit: usize,
    boundary: EventBoundary,
    carry: Vec<u8>,
    /// Within an event that is longer than the limit.
    overlong: bool,
    /// No frame has been yielded yet.
    at_start: bool,
}

impl Default for Framer {
    fn default() -> Self {
        Self::new(EVENT_LIMIT)
    }
}

impl Framer {
    /// A framer that buffers events of up to `limit` bytes.
    pub fn new(limit: usize) -> Self {
        Self {
            limit,
            boundary: EventBoundary {
                blank: true,
                after_cr: false,
            },
            carry: Vec::new(),
            overlong: false,
            at_start: true,
        }
    }

    /// Number of buffered bytes of an incomplete event.
    pub fn carried(&self) -> usize {
        self.carry.len()
    }

    /// Processes one read. Every event that it completes is passed to `sink`
    /// before this returns.
    pub fn push(&mut self, input: &[u8], mut sink: impl FnMut(Frame<'_>)) {
        let mut at = 0;
        if self.boundary.after_cr && self.between() && input.starts_with(b"\n") {
            self.boundary.after_cr = false;
            self.give(
                FrameKind::LineEnd,
                input.get(..1).unwrap_or_default(),
                Some(0),
                &mut sink,
            );
            at = 1;
        }
        while let Some(rest) = input.get(at..)
            && !rest.is_empty()
        {
            if let Some(len) = self.boundary.find(rest) {
                self.complete(rest.get(..len).unwrap_or_default(), at, &mut sink);
                at += len;
            } else {
                self.keep(rest, at, &mut sink);
                return;
            }
        }
    }

    /// Processes the end of the stream: yields an event without a blank line.
    pub fn finish(&mut self, mut sink: impl FnMut(Frame<'_>)) {
        if std::mem::take(&mut self.overlong) {
            self.give(FrameKind::Overlong { last: true }, &[], None, &mut sink);
        }
        if !self.carry.is_empty() {
            self.give_carry(FrameKind::Event, &mut sink);
        }
        self.boundary = EventBoundary {
            blank: true,
            after_cr: false,
        };
    }

    /// Whether no byte of the next event was received.
    fn between(&self) -> bool {
        self.carry.is_empty() && !self.overlong
    }

    fn complete(&mut self, part: &[u8], at: usize, sink: &mut impl FnMut(Frame<'_>)) {
        let (part, at) = self.give_comments(part, at, sink);
        if self.overlong || self.carry.len() + part.len() > self.limit {
            self.release(sink);
            self.give(FrameKind::Overlong { last: true }, part, Some(at), sink);
            self.overlong = false;
        } else if self.carry.is_empty() {
            self.give(FrameKind::Event, part, Some(at), sink);
        } else {
            self.extend_carry(part, sink);
            self.give_carry(FrameKind::Event, sink);
        }
    }

    fn keep(&mut self, part: &[u8], at: usize, sink: &mut impl FnMut(Frame<'_>)) {
        let (part, at) = self.give_comments(part, at, sink);
        if self.overlong || self.carry.len() + part.len() > self.limit {
            self.release(sink);
            self.give(FrameKind::Overlong { last: false }, part, Some(at), sink);
            self.overlong = true;
        } else {
            self.extend_carry(part, sink);
        }
    }

    /// Yields the comments before an event that begins with `part`, and returns
    /// the rest with its position.
    fn give_comments<'p>(
        &mut self,
        part: &'p [u8],
        at: usize,
        sink: &mut impl FnMut(Frame<'_>),
    ) -> (&'p [u8], usize) {
        let len = if self.between() { comments(part) } else { 0 };
        let (comments, rest) = part.split_at(len);
        if len > 0 {
            self.give(FrameKind::Comment, comments, Some(at), sink);
        }
        (rest, at + len)
    }

    /// Buffers a part of an event, but not the comments before it.
    fn extend_carry(&mut self, part: &[u8], sink: &mut impl FnMut(Frame<'_>)) {
        self.carry.extend_from_slice(part);
        if self.carry.starts_with(b":") && memchr(b'\n', part).is_some() {
            let len = comments(&self.carry);
            if len > 0 {
                let rest = self.carry.split_off(len);
                self.give_carry(FrameKind::Comment, sink);
                self.carry.extend_from_slice(&rest);
            }
        }
    }

    /// Yields the buffered bytes of an event that became too long.
    fn release(&mut self, sink: &mut impl FnMut(Frame<'_>)) {
        if !self.carry.is_empty() {
            self.give_carry(FrameKind::Overlong { last: false }, sink);
        }
    }

    fn give_carry(&mut self, kind: FrameKind, sink: &mut impl FnMut(Frame<'_>)) {
        let mut carry = std::mem::take(&mut self.carry);
        self.give(kind, &carry, None, sink);
        if carry.capacity() <= CARRY_KEPT {
            carry.clear();
            self.carry = carry;
        }
    }

    fn give(
        &mut self,
        kind: FrameKind,
        bytes: &[u8],
        at: Option<usize>,
        sink: &mut impl FnMut(Frame<'_>),
    ) {
        let opens_stream = std::mem::take(&mut self.at_start);
        sink(Frame {
            kind,
            bytes,
            at,
            opens_stream,
        });
    }
}

#[cfg(test)]
mod tests;
