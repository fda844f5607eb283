//! The framing of a message body and the persistence of the connection: RFC
//! 9112, sections 6.3 and 9.3, without the repairs that it allows a recipient.

use super::fields::tokens;
use super::{Http1Error, Version, target};

/// How the end of a body is determined.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Framing {
    /// There is no body.
    None,
    /// This many bytes, possibly zero.
    Length(u64),
    /// The chunked transfer coding.
    Chunked,
    /// Until the connection ends; responses only.
    UntilClose,
}

/// Whether a connection is kept after a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Persistence {
    /// It is kept, the default of HTTP/1.1.
    Keep,
    /// It is kept, with an explicit `connection: keep-alive` for an HTTP/1.0
    /// peer.
    KeepSaid,
    /// It is closed.
    Close,
}

/// The header fields that control framing and persistence.
#[expect(clippy::struct_excessive_bools, reason = "the flags are independent")]
#[derive(Debug, Default)]
pub(super) struct FramingFields {
    pub(super) length: Option<u64>,
    chunked: bool,
    host: bool,
    close: bool,
    keep_alive: bool,
    pub(super) names_more: bool,
    expect: Option<bool>,
}

impl FramingFields {
    /// Processes one field; most are distinguished by the length of the name.
    #[inline]
    pub(super) fn note(&mut self, name: &[u8], value: &[u8]) -> Result<(), Http1Error> {
        match name.len() {
            4 if name.eq_ignore_ascii_case(b"host") => self.note_host(value),
            6 if name.eq_ignore_ascii_case(b"expect") => {
                let met = value.eq_ignore_ascii_case(b"100-continue");
                self.expect = Some(met && self.expect != Some(false));
                Ok(())
            }
            10 if name.eq_ignore_ascii_case(b"connection") => {
                self.note_connection(value);
                Ok(())
            }
            14 if name.eq_ignore_ascii_case(b"content-length") => self.note_length(value),
            17 if name.eq_ignore_ascii_case(b"transfer-encoding") => self.note_coding(value),
            _ => Ok(()),
        }
    }

    fn note_host(&mut self, value: &[u8]) -> Result<(), Http1Error> {
        if std::mem::replace(&mut self.host, true) {
            return Err(Http1Error::HostRepeated);
        }
        if value.is_empty() || target::is_authority(value) {
            Ok(())
        } else {
            Err(Http1Error::HostInvalid)
        }
    }

    fn note_connection(&mut self, value: &[u8]) {
        for token in tokens(value) {
            if token.eq_ignore_ascii_case(b"close") {
                self.close = true;
            } else if token.eq_ignore_ascii_case(b"keep-alive") {
                self.keep_alive = true;
            } else {
                self.names_more = true;
            }
        }
    }

    fn note_length(&mut self, value: &[u8]) -> Result<(), Http1Error> {
        if self.length.is_some() {
            return Err(Http1Error::LengthRepeated);
        }
        if self.chunked {
            return Err(Http1Error::LengthAndCoding);
        }
        self.length = Some(decimal(value).ok_or(Http1Error::LengthInvalid)?);
        Ok(())
    }

    fn note_coding(&mut self, value: &[u8]) -> Result<(), Http1Error> {
        if self.length.is_some() {
            return Err(Http1Error::LengthAndCoding);
        }
        for coding in tokens(value) {
            if coding.is_empty() {
                return Err(Http1Error::CodingInvalid);
            }
            if !coding.eq_ignore_ascii_case(b"chunked") {
                return Err(Http1Error::CodingUnsupported);
            }
            if std::mem::replace(&mut self.chunked, true) {
                return Err(Http1Error::CodingInvalid);
            }
        }
        Ok(())
    }

    /// The body framing, unless something else determines it.
    pub(super) fn framing(&self, version: Version) -> Result<Option<Framing>, Http1Error> {
        match (self.chunked, self.length, version) {
            (true, _, Version::Http10) => Err(Http1Error::CodingVersion),
            (true, _, Version::Http11) => Ok(Some(Framing::Chunked)),
            (false, Some(length), _) => Ok(Some(Framing::Length(length))),
            (false, None, _) => Ok(None),
        }
    }

    /// Whether the sender keeps the connection. `close` takes precedence.
    pub(super) fn keeps_alive(&self, version: Version) -> bool {
        !self.close && (version == Version::Http11 || self.keep_alive)
    }

    pub(super) fn check_host(&self, version: Version) -> Result<(), Http1Error> {
        if self.host || version == Version::Http10 {
            Ok(())
        } else {
            Err(Http1Error::HostMissing)
        }
    }

    /// Whether the sender waits for `100 Continue`. HTTP/1.0 has no
    /// expectations.
    pub(super) fn expects_continue(&self, version: Version) -> Result<bool, Http1Error> {
        match (self.expect, version) {
            (None, _) | (_, Version::Http10) => Ok(false),
            (Some(true), Version::Http11) => Ok(true),
            (Some(false), Version::Http11) => Err(Http1Error::Expectation),
        }
    }
}

/// Digits only, of a length that every peer can parse: `str::parse` would
/// accept a sign.
fn decimal(text: &[u8]) -> Option<u64> {
    if text.is_empty() {
        return None;
    }
    text.iter().try_fold(0_u64, |sum, byte| {
        let digit = byte.checked_sub(b'0').filter(|digit| *digit <= 9)?;
        let sum = sum.checked_mul(10)?.checked_add(u64::from(digit))?;
        (sum <= i64::MAX.unsigned_abs()).then_some(sum)
    })
}

#[cfg(test)]
mod tests {
    use super::decimal;

    #[test]
    fn a_length_is_only_digits() {
        assert_eq!(decimal(b"0"), Some(0));
        let most = i64::MAX.unsigned_abs();
        assert_eq!(decimal(most.to_string().as_bytes()), Some(most));
        for text in [
            "",
            "+1",
            "-1",
            " 1",
            "1 ",
            "0x1",
            "1,1",
            "1_0",
            "9223372036854775808",
            "18446744073709551614",
            "99999999999999999999999999",
            "\u{0663}",
        ] {
            assert_eq!(decimal(text.as_bytes()), None, "{text}");
        }
    }
}
