//! Reads the values of members as written in a JSON body.

use memchr::memchr;

use super::{MODEL, MODEL_LIMIT, MODEL_TOKEN_LIMIT};
use crate::error::ScanError;

/// Maximum number of choices that one request counts for: more than engines
/// return.
pub(super) const MAX_CHOICES: u32 = 1 << 14;

pub(super) fn model_name(value: &[u8]) -> Result<String, ScanError> {
    let member = MODEL;
    if value.first() != Some(&b'"') {
        return Err(ScanError::WrongType {
            member,
            expected: "a string",
        });
    }
    let too_long = ScanError::TooLong {
        member,
        limit: MODEL_LIMIT,
    };
    if value.len() > MODEL_TOKEN_LIMIT {
        return Err(too_long);
    }
    let name: String = serde_json::from_slice(value).map_err(|_| ScanError::WrongType {
        member,
        expected: "a valid UTF-8 string",
    })?;
    match name.len() {
        0 => Err(ScanError::Empty { member }),
        1..=MODEL_LIMIT => Ok(name),
        _ => Err(too_long),
    }
}

/// Number of characters in a string token: an escape is one, and so is a
/// surrogate pair.
pub(super) fn characters(token: &[u8]) -> Option<u64> {
    let mut rest = token.strip_prefix(b"\"")?.strip_suffix(b"\"")?;
    let mut count = 0_u64;
    while let Some(at) = memchr(b'\\', rest) {
        let (plain, escape) = rest.split_at(at);
        let (length, is_one) = match escape {
            [_, b'u', b'd' | b'D', b'c'..=b'f' | b'C'..=b'F', ..] => (6, false),
            [_, b'u', ..] => (6, true),
            _ => (2, true),
        };
        count += beginnings(plain) + u64::from(is_one);
        rest = escape.get(length..)?;
    }
    Some(count + beginnings(rest))
}

/// Number of characters that begin in a UTF-8 text.
fn beginnings(text: &[u8]) -> u64 {
    let is_first = |byte: &&u8| **byte & 0xC0 != 0x80;
    text.iter().filter(is_first).count() as u64
}

pub(super) fn flag(member: &'static str, value: &[u8]) -> Result<Option<bool>, ScanError> {
    match value {
        b"true" => Ok(Some(true)),
        b"false" => Ok(Some(false)),
        b"null" => Ok(None),
        _ => Err(ScanError::WrongType {
            member,
            expected: "true or false",
        }),
    }
}

pub(super) fn ceiling(member: &'static str, value: &[u8]) -> Result<Option<u64>, ScanError> {
    let wrong = ScanError::WrongType {
        member,
        expected: "a whole number",
    };
    let number: Option<serde_json::Number> = serde_json::from_slice(value).map_err(|_| wrong)?;
    match number {
        Some(number) if number.is_f64() => Err(wrong),
        Some(number) => Ok(number.as_u64()),
        None => Ok(None),
    }
}

/// Number of requested choices, at least one and at most [`MAX_CHOICES`]. Like
/// lenient engines it accepts a number in a string; rejecting invalid values is
/// left to them.
pub(super) fn choices(value: &[u8]) -> u64 {
    match value {
        [digit @ b'1'..=b'9'] => u64::from(digit - b'0'),
        [b'"', ..] => {
            let text: Option<String> = serde_json::from_slice(value).ok();
            text.map_or(1, |text| choices_in(text.as_bytes()))
        }
        _ => choices_in(value),
    }
}

/// The same for a number without quotes.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "what is converted lies between one and the most"
)]
pub(crate) fn choices_in(number: &[u8]) -> u64 {
    let number: f64 = serde_json::from_slice(number).unwrap_or(1.0);
    number.ceil().clamp(1.0, f64::from(MAX_CHOICES)) as u64
}
