//! The beginning and the end of an answer that is forwarded without being kept.

use memchr::memrchr;

use super::Usage;
use super::quantities::{duration_ms, response_ms};
use crate::json::{Object, backslashes};

/// How much of the beginning is kept, in bytes: some engines write `usage`
/// first.
const HEAD: usize = 1 << 10;

/// How much of the end is kept, in bytes.
const TAIL: usize = 8 << 10;

/// So many bytes of nothing but base64 are a file's and no text, which has
/// spaces, quotes or escapes.
const FILE: usize = 256;

/// The deepest that usage is looked for: in an object that an event wraps.
const REACH: usize = 2;

/// The first 1 KiB and the last 8 KiB of a body. Allocates nothing before the
/// first byte, and 9 KiB at most.
#[derive(Debug, Clone, Default)]
pub struct PrefixInspector {
    /// The head, then the tail; once that is full, the tail is a ring.
    kept: Vec<u8>,
    /// Where in the tail the next byte goes once it is full.
    next: usize,
    total: u64,
}

impl PrefixInspector {
    /// Empty, without an allocation.
    pub fn new() -> Self {
        Self::default()
    }

    /// How many bytes were pushed.
    pub fn total(&self) -> u64 {
        self.total
    }

    /// How many bytes of the body may be text: all of them, but where what was
    /// kept borders on a file in base64, which lies between, only what was kept.
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

    /// Takes the next bytes of the body.
    pub fn push(&mut self, bytes: &[u8]) {
        self.total = self.total.saturating_add(bytes.len() as u64);
        let room = (HEAD + TAIL).saturating_sub(self.kept.len());
        let (fits, rest) = bytes.split_at(room.min(bytes.len()));
        self.kept.extend_from_slice(fits);
        // What does not fit the ring would be overwritten at once.
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
    /// it lies in the part that was not kept.
    pub fn usage(&mut self) -> Option<Usage> {
        if self.is_whole() {
            return Usage::from_response(&self.kept);
        }
        let last = last_member(self.tail(), b"usage", 1).and_then(Usage::from_object);
        last.or_else(|| head_usage(self.head()))
            .or_else(|| last_member(self.tail(), b"meta", 1).and_then(Usage::from_meta))
    }

    /// How long the sound was that a complete JSON body speaks of, in
    /// milliseconds: what its `usage` bills, or else its `duration`. `None` if
    /// that lies in the part that was not kept.
    pub fn audio_ms(&mut self) -> Option<u64> {
        if self.is_whole() {
            return response_ms(&self.kept);
        }
        let billed = last_member(self.tail(), b"usage", 1).and_then(duration_ms);
        billed.or_else(|| response_ms(self.head()))
    }

    /// The usage of an event whose data did not fit: that of the event itself
    /// or of the object that it wraps.
    pub(crate) fn event_usage(&mut self) -> Option<Usage> {
        last_member(self.tail(), b"usage", REACH).and_then(Usage::from_object)
    }

    /// The first bytes of the body, 1 KiB at most.
    pub(crate) fn head(&self) -> &[u8] {
        self.kept.get(..HEAD).unwrap_or(&self.kept)
    }

    fn is_whole(&self) -> bool {
        self.total <= (HEAD + TAIL) as u64
    }

    /// The end of the body, in order.
    fn tail(&mut self) -> &[u8] {
        if self.is_whole() {
            return &self.kept;
        }
        let ring = self.kept.get_mut(HEAD..).unwrap_or_default();
        ring.rotate_left(self.next);
        self.next = 0;
        ring
    }
}

/// Whether these bytes begin as a file in base64 may.
fn is_file<'a>(bytes: impl Iterator<Item = &'a u8>) -> bool {
    let is_base64 = |byte: &&u8| byte.is_ascii_alphanumeric() || b"+/=-_".contains(byte);
    bytes.take(FILE).take_while(is_base64).count() == FILE
}

/// The usage among the members that lie in the head entirely.
fn head_usage(head: &[u8]) -> Option<Usage> {
    let mut members = Object::open(head).ok()?.map_while(Result::ok);
    Usage::from_object(members.find(|member| *member.name == *b"usage")?.value)
}

/// The value of the last member `name`, an object, that is nested at most
/// `reach` (1 or [`REACH`]) deep, the outermost object's members being at 1.
///
/// Walks backwards from the closing brace: outside a string every quote closes
/// one, and the quote that opened it is the next one before it with an even
/// number of backslashes in front. So the text of an answer cannot pose as its
/// usage, even though the walk does not know how the body began.
fn last_member<'a>(tail: &'a [u8], name: &[u8], reach: usize) -> Option<&'a [u8]> {
    let end = tail.trim_ascii_end();
    let mut pos = end.len().checked_sub(1)?;
    if end.get(pos) != Some(&b'}') {
        return None;
    }
    let mut depth = 1_usize;
    // Where the value that is being walked ends, by depth.
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

/// Index of the quote that opens the string that `close` closes; `None` if
/// that cannot be told from what was kept.
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
            let mut ends = PrefixInspector::new();
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
