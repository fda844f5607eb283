//! Secrets in the errors of an upstream, which may repeat the credential that it
//! was sent.
//!
//! A secret is found as it is, with bytes encoded as in JSON (`\/`, `\u002f`, also
//! nested) or in a URL (`%2F`), and in the shortened forms of errors
//! (`sk-ab****wxyz`, `sk-ab...wxyz`, `****wxyz`).

use std::fmt;

use memchr::{memchr_iter, memchr3};

/// What replaces each byte of a secret.
const MASK: u8 = b'*';

/// The most backslashes before an encoded byte: three levels of nested JSON.
const MAX_BACKSLASHES: usize = 8;

/// The fewest bytes of a secret that a shortened form shows at either end.
const FEWEST_SHOWN: usize = 3;

/// The shortest gap of a shortened form, in bytes.
const SHORTEST_GAP: usize = 2;

/// The longest gap of a shortened form, in bytes.
const LONGEST_GAP: usize = 256;

/// The longest end of a secret that a shortened form shows, in bytes.
const LONGEST_TAIL: usize = 16;

/// Replaces secrets in a text that arrives in parts.
///
/// Each byte of an occurrence becomes an asterisk, so that the length of the text
/// is unchanged, and JSON stays valid. At most one incomplete occurrence is
/// buffered.
///
/// ```
/// let mut redactor = fastllm_wire::Redactor::new([b"sk-secret".as_slice()]).unwrap();
/// let mut out = Vec::new();
/// redactor.push(b"{\"error\":\"not a key: sk-se", &mut out);
/// redactor.push(b"cret\"}", &mut out);
/// redactor.finish(&mut out);
/// assert_eq!(out, b"{\"error\":\"not a key: *********\"}");
/// ```
pub struct Redactor {
    /// The longest first, since one may begin with another.
    secrets: Vec<Box<[u8]>>,
    /// The end of the text so far, where a secret may have begun.
    carried: Vec<u8>,
}

impl Redactor {
    /// `None` if there are no secrets. Empty ones are ignored.
    pub fn new<'s>(secrets: impl IntoIterator<Item = &'s [u8]>) -> Option<Self> {
        let given = secrets.into_iter().filter(|secret| !secret.is_empty());
        let mut secrets: Vec<Box<[u8]>> = given.map(Box::from).collect();
        secrets.sort_by_key(|secret| std::cmp::Reverse(secret.len()));
        (!secrets.is_empty()).then_some(Self {
            secrets,
            carried: Vec::new(),
        })
    }

    /// Adds the next part of the text to `out`, without a secret.
    pub fn push(&mut self, part: &[u8], out: &mut Vec<u8>) {
        self.carried.extend_from_slice(part);
        let mut done = 0;
        while let Some((first, _)) = self.carried.get(done..).and_then(<[u8]>::split_first) {
            let rest = self.carried.get(done..).unwrap_or_default();
            let secrets = self.secrets.iter();
            let mut found = secrets.map(|secret| occurrence(rest, secret, false));
            match found.find(|found| *found != Occurrence::None) {
                Some(Occurrence::Whole(len)) => {
                    mask(len, out);
                    done += len;
                }
                Some(Occurrence::Beginning(_)) => break,
                Some(Occurrence::None) | None => {
                    out.push(*first);
                    done += 1;
                }
            }
        }
        self.carried.drain(..done);
    }

    /// Adds the end of the text to `out`. What may be the beginning of a secret is
    /// replaced, too.
    pub fn finish(&mut self, out: &mut Vec<u8>) {
        let carried = std::mem::take(&mut self.carried);
        let mut rest = carried.as_slice();
        while let Some((first, after)) = rest.split_first() {
            let secrets = self.secrets.iter();
            let found = secrets.map(|secret| occurrence(rest, secret, true));
            let hidden = found.map(|found| match found {
                Occurrence::Whole(len) => len,
                Occurrence::Beginning(shown) if shown >= FEWEST_SHOWN => rest.len(),
                Occurrence::Beginning(_) | Occurrence::None => 0,
            });
            match hidden.max().unwrap_or(0) {
                0 => {
                    out.push(*first);
                    rest = after;
                }
                len => {
                    mask(len, out);
                    rest = rest.get(len..).unwrap_or_default();
                }
            }
        }
    }
}

impl fmt::Debug for Redactor {
    /// Prints neither the secrets nor the text.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Redactor").finish_non_exhaustive()
    }
}

/// Whether a text contains this secret. Empty ones are ignored.
pub fn contains_secret(text: &[u8], secret: &[u8]) -> bool {
    let Some(first) = secret.first() else {
        return false;
    };
    let is_whole = |at: usize| {
        let rest = text.get(at..).unwrap_or_default();
        matches!(occurrence(rest, secret, true), Occurrence::Whole(_))
    };
    if memchr3(b'%', b'\\', MASK, text).is_none() {
        return memchr_iter(*first, text).any(is_whole);
    }
    (0..text.len()).any(is_whole)
}

fn mask(len: usize, out: &mut Vec<u8>) {
    out.resize(out.len() + len, MASK);
}

/// What a text begins with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Occurrence {
    /// The secret, written in this many bytes.
    Whole(usize),
    /// At most the first bytes of the secret, this many: the text ends there.
    Beginning(usize),
    None,
}

/// `is_last`: nothing follows the text.
fn occurrence(text: &[u8], secret: &[u8], is_last: bool) -> Occurrence {
    if text.first() == Some(&MASK) {
        return shortened(text, secret, 0, is_last);
    }
    let mut rest = text;
    for (shown, byte) in secret.iter().enumerate() {
        match written(rest, *byte) {
            Written::In(len) => rest = rest.get(len..).unwrap_or_default(),
            Written::Incomplete => return Occurrence::Beginning(shown),
            Written::No if shown < FEWEST_SHOWN => return Occurrence::None,
            Written::No => {
                let before = text.len() - rest.len();
                return match shortened(rest, secret, shown, is_last) {
                    Occurrence::Whole(len) => Occurrence::Whole(before + len),
                    other => other,
                };
            }
        }
    }
    Occurrence::Whole(text.len() - rest.len())
}

/// The rest of a shortened form that has shown this many bytes: a gap, and
/// possibly the end of the secret.
fn shortened(text: &[u8], secret: &[u8], shown: usize, is_last: bool) -> Occurrence {
    let gap = gap(text);
    let rest = text.get(gap..).unwrap_or_default();
    let of_tail = |byte: &&u8| byte.is_ascii_alphanumeric() || b"-_".contains(byte);
    let tail = rest.iter().take(LONGEST_TAIL).take_while(of_tail).count();
    let is_open = match rest {
        [] => gap > 0 && gap < LONGEST_GAP,
        [0xe2] | [0xe2, 0x80] => gap < LONGEST_GAP,
        rest => gap >= SHORTEST_GAP && rest.len() == tail && tail < LONGEST_TAIL,
    };
    if is_open && !is_last {
        return Occurrence::Beginning(shown);
    }
    let is_end = secret.ends_with(rest.get(..tail).unwrap_or_default());
    if gap < SHORTEST_GAP || shown == 0 && (tail < FEWEST_SHOWN || !is_end) {
        return Occurrence::None;
    }
    Occurrence::Whole(gap + if is_end { tail } else { 0 })
}

/// The number of bytes of asterisks, periods, ellipses and bullets.
fn gap(text: &[u8]) -> usize {
    let mut gap = 0;
    while gap < LONGEST_GAP {
        gap += match text.get(gap..).unwrap_or_default() {
            [b'*' | b'.', ..] => 1,
            [0xe2, 0x80, 0xa6 | 0xa2, ..] => 3,
            _ => break,
        };
    }
    gap
}

/// How a text begins with a certain byte.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Written {
    /// Written in this many bytes.
    In(usize),
    /// The text ends before that is certain.
    Incomplete,
    No,
}

fn written(text: &[u8], byte: u8) -> Written {
    match text {
        [] => Written::Incomplete,
        [first, ..] if *first == byte => Written::In(1),
        [b'%', digits @ ..] => hexadecimal(digits, [byte >> 4, byte & 15], 1),
        [b'\\', ..] => {
            let slashes = text.iter().take(MAX_BACKSLASHES);
            let slashes = slashes.take_while(|byte| **byte == b'\\').count();
            match text.get(slashes..).unwrap_or_default() {
                [] => Written::Incomplete,
                [b'u', digits @ ..] => {
                    hexadecimal(digits, [0, 0, byte >> 4, byte & 15], slashes + 1)
                }
                [next, ..] if *next == byte => Written::In(slashes + 1),
                _ => Written::No,
            }
        }
        _ => Written::No,
    }
}

/// Whether a text begins with these hexadecimal digits, after `before` bytes.
fn hexadecimal<const N: usize>(text: &[u8], digits: [u8; N], before: usize) -> Written {
    let is =
        |(given, digit): (&u8, &u8)| char::from(*given).to_digit(16) == Some(u32::from(*digit));
    if !text.iter().zip(&digits).all(is) {
        return Written::No;
    }
    if text.len() < N {
        return Written::Incomplete;
    }
    Written::In(before + N)
}

#[cfg(test)]
mod tests;
