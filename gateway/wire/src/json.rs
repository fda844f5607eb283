//! Iterates over the outermost object of a JSON text without parsing nested
//! values.
//!
//! Strings are skipped by searching for quotes and counting the backslashes
//! before them, nested values by counting brackets outside strings. On valid
//! JSON the result is exact; nested values are not validated.

use std::borrow::Cow;
use std::ops::Range;

use memchr::memchr;
use memchr::memmem::Finder;

use crate::error::ScanError;
use crate::quotes::string_end;

/// One member of the outermost object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Member<'a> {
    /// The decoded name. It is not validated as UTF-8.
    pub name: Cow<'a, [u8]>,
    /// The range of its value in the text, without surrounding white space.
    pub at: Range<usize>,
    /// The value as written.
    pub value: &'a [u8],
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ObjectState {
    First,
    Next,
    Over,
}

/// An iterator over the members of the outermost object. It ends after the
/// first error; an object that is followed by anything but white space yields
/// [`ScanError::Trailing`] as its last item.
#[derive(Debug, Clone)]
pub struct Object<'a> {
    text: &'a [u8],
    pos: usize,
    inside: usize,
    state: ObjectState,
}

impl<'a> Object<'a> {
    /// Starts at the beginning of `text`.
    ///
    /// # Errors
    /// [`ScanError::NotAnObject`] if the first byte after white space is not
    /// `{`.
    pub fn open(text: &'a [u8]) -> Result<Self, ScanError> {
        let start = skip_space(text, 0);
        if text.get(start) != Some(&b'{') {
            return Err(ScanError::NotAnObject);
        }
        let inside = start + 1;
        Ok(Self {
            text,
            pos: inside,
            inside,
            state: ObjectState::First,
        })
    }

    /// Offset of the byte after the opening brace.
    pub fn inside(&self) -> usize {
        self.inside
    }

    fn close(&mut self) -> Option<Result<Member<'a>, ScanError>> {
        self.state = ObjectState::Over;
        let end = skip_space(self.text, self.pos);
        (end != self.text.len()).then_some(Err(ScanError::Trailing { at: end }))
    }

    /// The next member, with `end` to find the index after its value: given the
    /// decoded name, the text and the index of the value's first byte.
    pub(crate) fn advance(
        &mut self,
        end: impl FnOnce(&[u8], &'a [u8], usize) -> Option<usize>,
    ) -> Option<Result<Member<'a>, ScanError>> {
        match self.state {
            ObjectState::Over => return None,
            ObjectState::First => self.pos = skip_space(self.text, self.pos),
            ObjectState::Next => {}
        }
        if self.text.get(self.pos) == Some(&b'}') {
            self.pos += 1;
            return self.close();
        }
        let found = self
            .member(end)
            .and_then(|member| self.separator().map(|()| member));
        Some(found.map_err(|at| {
            self.state = ObjectState::Over;
            ScanError::Malformed { at }
        }))
    }

    fn member(
        &mut self,
        value_end: impl FnOnce(&[u8], &'a [u8], usize) -> Option<usize>,
    ) -> Result<Member<'a>, usize> {
        let open = self.pos;
        if self.text.get(open) != Some(&b'"') {
            return Err(open);
        }
        let end = string_end(self.text, open + 1).ok_or(open)?;
        let name = name(self.text.get(open..=end).unwrap_or_default()).ok_or(open)?;
        let colon = skip_space(self.text, end + 1);
        if self.text.get(colon) != Some(&b':') {
            return Err(colon);
        }
        let from = skip_space(self.text, colon + 1);
        let to = value_end(&name, self.text, from).ok_or(from)?;
        let value = self.text.get(from..to).ok_or(from)?;
        self.pos = skip_space(self.text, to);
        Ok(Member {
            name,
            at: from..to,
            value,
        })
    }

    /// Advances past the comma or brace after a member.
    fn separator(&mut self) -> Result<(), usize> {
        match self.text.get(self.pos) {
            Some(b',') => {
                self.pos = skip_space(self.text, self.pos + 1);
                self.state = ObjectState::Next;
                // A comma requires another member: `{"a":1,}` is not JSON.
                if self.text.get(self.pos) == Some(&b'"') {
                    Ok(())
                } else {
                    Err(self.pos)
                }
            }
            Some(b'}') => Ok(()),
            _ => Err(self.pos),
        }
    }
}

impl<'a> Iterator for Object<'a> {
    type Item = Result<Member<'a>, ScanError>;

    fn next(&mut self) -> Option<Self::Item> {
        self.advance(|_, text, from| value_end(text, from))
    }
}

/// An iterator over the elements of an array, as written. It ends where the
/// text stops being an array; validation is left to the parser.
#[derive(Debug, Clone)]
pub struct Array<'a> {
    text: &'a [u8],
    pos: usize,
}

impl<'a> Array<'a> {
    /// Starts at the beginning of `text`; yields nothing if that is not an
    /// array.
    pub fn open(text: &'a [u8]) -> Option<Self> {
        let start = skip_space(text, 0);
        (text.get(start) == Some(&b'[')).then_some(Self {
            text,
            pos: start + 1,
        })
    }
}

impl<'a> Iterator for Array<'a> {
    type Item = &'a [u8];

    fn next(&mut self) -> Option<&'a [u8]> {
        let from = skip_space(self.text, self.pos);
        let to = value_end(self.text, from)?;
        let element = self.text.get(from..to)?;
        let after = skip_space(self.text, to);
        self.pos = match self.text.get(after) {
            Some(b',') => after + 1,
            // Nothing follows the last element.
            _ => self.text.len(),
        };
        Some(element)
    }
}

/// The text between the quotes of a string token, with escapes decoded. `None`
/// if an escape is invalid.
fn name(token: &[u8]) -> Option<Cow<'_, [u8]>> {
    let [b'"', inner @ .., b'"'] = token else {
        return None;
    };
    if memchr(b'\\', inner).is_none() {
        return Some(Cow::Borrowed(inner));
    }
    let name: String = serde_json::from_slice(token).ok()?;
    Some(Cow::Owned(name.into_bytes()))
}

/// Index of the first byte at or after `from` that is not white space.
pub(crate) fn skip_space(text: &[u8], from: usize) -> usize {
    let rest = text.get(from..).unwrap_or_default();
    from + rest.iter().take_while(|byte| is_space(**byte)).count()
}

/// Whether `text` may contain `key` (with its quotes) and a value that begins
/// with this prefix. Quotes within a string are escaped, so string content
/// cannot match.
pub(crate) fn mentions(text: &[u8], key: &Finder<'_>, opening: u8) -> bool {
    key.find_iter(text).any(|at| {
        let colon = skip_space(text, at + key.needle().len());
        let value = skip_space(text, colon + 1);
        text.get(colon) == Some(&b':') && text.get(value) == Some(&opening)
    })
}

/// The four white space characters of JSON.
pub(crate) fn is_space(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t' | b'\n' | b'\r')
}

/// Number of backslashes at the end of `text`.
pub(crate) fn backslashes(text: &[u8]) -> usize {
    text.iter().rev().take_while(|byte| **byte == b'\\').count()
}

/// Index after the value that begins at `from`.
pub(crate) fn value_end(text: &[u8], from: usize) -> Option<usize> {
    match text.get(from)? {
        b'"' => string_end(text, from + 1).map(|quote| quote + 1),
        b'{' | b'[' => nested_end(text, from + 1),
        _ => {
            let rest = text.get(from..)?;
            let len = rest.iter().take_while(|byte| is_scalar(**byte)).count();
            (len > 0).then_some(from + len)
        }
    }
}

/// Bytes of numbers, `true`, `false` and `null` (and of the `NaN` and
/// `Infinity` that some engines accept).
pub(crate) fn is_scalar(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'+' | b'.')
}

/// Index after the bracket that closes the one before `start`.
pub(crate) fn nested_end(text: &[u8], start: usize) -> Option<usize> {
    let mut depth = 1_usize;
    let mut pos = start;
    loop {
        match text.get(pos)? {
            b'"' => pos = string_end(text, pos + 1)?,
            b'{' | b'[' => depth += 1,
            b'}' | b']' => {
                depth -= 1;
                if depth == 0 {
                    return Some(pos + 1);
                }
            }
            _ => {}
        }
        pos += 1;
    }
}

/// Whether `value` is an empty array or object.
pub(crate) fn is_empty(value: &[u8]) -> bool {
    match value {
        [b'[', inner @ .., b']'] | [b'{', inner @ .., b'}'] => inner.iter().copied().all(is_space),
        _ => false,
    }
}

#[cfg(test)]
mod tests;
