//! The beginning and the end of a response that is forwarded without being
//! kept.

use memchr::memrchr;

use super::quantities::{duration_ms, response_ms};
use super::{Usage, UsageReport};
use crate::json::{Object, backslashes};

/// Size of the kept beginning, in bytes: some engines write `usage` first.
const HEAD: usize = 1 << 10;

/// Size of the kept end, in bytes.
const TAIL: usize = 8 << 10;

/// A sequence of this many base64 bytes is a file, not text, which has spaces,
/// quotes or escapes.
const FILE: usize = 256;

/// Maximum depth at which usage is searched for: in an object that an event
/// wraps.
const REACH: usize = 2;

/// The first 1 KiB and the last 8 KiB of a body. Allocates nothing before the
/// first byte, and at most 9 KiB.
#[derive(Debug, Clone, Default)]
pub struct BodyExcerpt {
    /// The head, then the tail; once that is full, the tail is a ring.
    kept: Vec<u8>,
    /// Offset of the next byte in the tail once it is full.
    next: usize,
    total: u64,
}

impl BodyExcerpt {
    /// Empty, without an allocation.
    pub fn new() -> Self {
        Self::default()
    }

    /// Number of bytes pushed.
    pub fn total(&self) -> u64 {
        self.total
    }

    /// Number of bytes of the body that may be text: all of them, or only the
    /// kept ones if these border on a base64 file between them.
    pub(crate) fn text_bytes(&self) -> u64 {
        let (head, ring) = self.kept.split_at(self.kept.len().min(HEAD));
        let (newer, oldest) = ring.split_at(self.next.min(ring.len()));
        let before = head.iter().rev();
        let behind = oldest.iter().chain(newer);
        if !self.is_whole() && (is_file(before) || is_file(behind)) {
            return self.kept.len() as u64;
        }
        self.total
    }

    /// Processes the next bytes of the body.
    pub fn push(&mut self, bytes: &[u8]) {
        self.total = self.total.saturating_add(bytes.len() as u64);
        let room = (HEAD + TAIL).saturating_sub(self.kept.len());
        let (fits, rest) = bytes.split_at(room.min(bytes.len()));
        self.kept.extend_from_slice(fits);
        // Bytes that do not fit the ring would be overwritten at once.
        let (_, rest) = rest.split_at(rest.len().saturating_sub(TAIL));
        let Some(ring) = self.kept.get_mut(HEAD..) else {
            return;
        };
        let (straight, wrapped) = rest.split_at(rest.len().min(TAIL - self.next));
        for (at, part) in [(self.next, straight), (0, wrapped)] {
            if let Some(place) = ring.get_mut(at..at + part.len()) {
                place.copy_from_slice(part);
            }
        }
        self.next = (self.next + rest.len()) % TAIL;
    }

    /// The usage that a complete JSON body reports at its top level; `None` if
    /// it lies in the part that was not kept, or is implausible.
    pub fn usage(&mut self) -> Option<Usage> {
        self.report().counts()
    }

    /// The same, with the reason for its absence.
    pub(crate) fn report(&mut self) -> UsageReport {
        if self.is_whole() {
            return UsageReport::of_response(&self.kept);
        }
        let last = last_member(self.tail(), b"usage", 1).map(UsageReport::of_object);
        last.unwrap_or_default()
            .or_else(|| head_usage(self.head()))
            .or_else(|| {
                let meta = last_member(self.tail(), b"meta", 1);
                meta.map(UsageReport::of_meta).unwrap_or_default()
            })
    }

    /// The duration of the audio of a complete JSON body, in milliseconds: the
    /// billed duration in its `usage`, or else its `duration`. `None` if that
    /// lies in the part that was not kept.
    pub fn audio_ms(&mut self) -> Option<u64> {
        if self.is_whole() {
            return response_ms(&self.kept);
        }
        let billed = last_member(self.tail(), b"usage", 1).and_then(duration_ms);
        billed.or_else(|| response_ms(self.head()))
    }

    /// The usage of an event that was too long to be buffered: that of the
    /// event itself or of the object that it wraps.
    pub(crate) fn event_report(&mut self) -> UsageReport {
        last_member(self.tail(), b"usage", REACH)
            .map(UsageReport::of_object)
            .unwrap_or_default()
    }

    /// The first bytes of the body, at most 1 KiB.
    pub(crate) fn head(&self) -> &[u8] {
        self.kept.get(..HEAD).unwrap_or(&self.kept)
    }

    /// The last byte of the body that is not whitespace.
    pub(crate) fn last_byte(&self) -> Option<u8> {
        let (head, ring) = self.kept.split_at(self.kept.len().min(HEAD));
        let (newer, oldest) = ring.split_at(self.next.min(ring.len()));
        let mut back = newer.iter().rev();
        let mut rest = oldest.iter().rev().chain(head.iter().rev());
        let visible = |byte: &&u8| !byte.is_ascii_whitespace();
        back.find(visible).or_else(|| rest.find(visible)).copied()
    }

    fn is_whole(&self) -> bool {
        self.total <= (HEAD + TAIL) as u64
    }

    /// The end of the body, in order.
    pub(crate) fn tail(&mut self) -> &[u8] {
        if self.is_whole() {
            return &self.kept;
        }
        let ring = self.kept.get_mut(HEAD..).unwrap_or_default();
        ring.rotate_left(self.next);
        self.next = 0;
        ring
    }
}

/// Whether these bytes may be the beginning of a base64 file.
fn is_file<'a>(bytes: impl Iterator<Item = &'a u8>) -> bool {
    let is_base64 = |byte: &&u8| byte.is_ascii_alphanumeric() || b"+/=-_".contains(byte);
    bytes.take(FILE).take_while(is_base64).count() == FILE
}

/// The usage among the members that lie entirely in the head.
fn head_usage(head: &[u8]) -> UsageReport {
    let members = Object::open(head).into_iter().flatten();
    members
        .map_while(Result::ok)
        .find(|member| *member.name == *b"usage")
        .map_or(UsageReport::Absent, |member| {
            UsageReport::of_object(member.value)
        })
}

/// The value of the last member `name`, an object, that is nested at most
/// `reach` (1 or [`REACH`]) deep; the members of the outermost object are at
/// depth 1.
///
/// Scans backwards from the closing brace: outside a string every quote closes
/// one, and its opening quote is the next one before it with an even number of
/// backslashes in front. So text in a response cannot be mistaken for its
/// usage, even though the beginning of the body is not available.
fn last_member<'a>(tail: &'a [u8], name: &[u8], reach: usize) -> Option<&'a [u8]> {
    let end = tail.trim_ascii_end();
    let mut pos = end.len().checked_sub(1)?;
    if end.get(pos) != Some(&b'}') {
        return None;
    }
    let mut depth = 1_usize;
    // The end of the value that is being scanned, by depth.
    let mut value_end = [pos; REACH + 1];
    let mut colon = None;
    loop {
        pos = pos.checked_sub(1)?;
        match end.get(pos)? {
            b'}' | b']' => {
                depth += 1;
                if let Some(end) = value_end.get_mut(depth) {
                    *end = pos;
                }
                colon = None;
            }
            b'{' | b'[' => {
                depth = depth.checked_sub(1).filter(|depth| *depth > 0)?;
                colon = None;
            }
            b',' => {
                if let Some(end) = value_end.get_mut(depth) {
                    *end = pos;
                }
            }
            b':' if depth <= reach => colon = Some(pos),
            b'"' => {
                let open = string_start(end, pos)?;
                let named = end.get(open + 1..pos)?;
                if let Some(colon) = colon.take()
                    && named == name
                {
                    let value = end.get(colon + 1..*value_end.get(depth)?)?.trim_ascii();
                    if value.starts_with(b"{") {
                        return Some(value);
                    }
                }
                pos = open;
            }
            _ => {}
        }
    }
}

/// Index of the quote that opens the string that `close` closes; `None` if that
/// cannot be determined from the kept bytes.
fn string_start(text: &[u8], close: usize) -> Option<usize> {
    let mut until = close;
    if !backslashes(text.get(..close)?).is_multiple_of(2) {
        return None;
    }
    loop {
        let before = text.get(..until)?;
        let quote = memrchr(b'"', before)?;
        let run = backslashes(before.get(..quote)?);
        if run == quote {
            return None;
        }
        if run.is_multiple_of(2) {
            return Some(quote);
        }
        until = quote;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn keeps_exactly_the_ends(len in 0_usize..40_000, read in 1_usize..20_000) {
            let body: Vec<u8> = (0..len).map(|at| u8::try_from(at % 251).unwrap()).collect();
            let mut ends = BodyExcerpt::new();
            body.chunks(read).for_each(|part| ends.push(part));
            prop_assert_eq!(&ends.kept[..len.min(1024)], &body[..len.min(1024)]);
            if len > 9216 {
                prop_assert_eq!(ends.tail(), &body[len - 8192..]);
            } else {
                prop_assert_eq!(ends.tail(), &body[..]);
            }
            prop_assert!(ends.kept.len() <= 9216);
        }
    }
}
