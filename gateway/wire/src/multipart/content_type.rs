//! The `content-type` of a form.

use super::params::{self, is_token};

/// Maximum length of a boundary (RFC 2046), in characters.
const BOUNDARY_LIMIT: usize = 70;

/// A `content-type` with its boundary. Other parameters are dropped: a
/// `charset` could make some parsers read different names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ContentType<'a> {
    boundary: &'a str,
}

impl<'a> ContentType<'a> {
    pub(super) fn parse(value: &'a [u8]) -> Option<Self> {
        let (kind, params) = params::split(value);
        if !kind.eq_ignore_ascii_case(b"multipart/form-data") {
            return None;
        }
        let mut boundary = None;
        for param in params {
            let param = param.ok()?;
            if param.is_named("boundary") {
                if boundary.replace(param.value).is_some() {
                    return None;
                }
            } else if param.name.to_ascii_lowercase().starts_with(b"boundary") {
                // `boundary*` and `boundary*0` are alternative spellings.
                return None;
            }
        }
        let boundary = boundary.filter(|boundary| {
            (1..=BOUNDARY_LIMIT).contains(&boundary.len())
                && boundary.iter().copied().all(is_boundary)
        })?;
        std::str::from_utf8(boundary)
            .ok()
            .map(|boundary| Self { boundary })
    }

    pub(super) fn boundary(self) -> &'a str {
        self.boundary
    }

    /// The `content-type` with the boundary as its only parameter.
    pub(super) fn written(self) -> String {
        let Self { boundary } = self;
        if boundary.bytes().all(is_token) {
            format!("multipart/form-data; boundary={boundary}")
        } else {
            format!("multipart/form-data; boundary=\"{boundary}\"")
        }
    }
}

/// The characters of a boundary in RFC 2046, except the space.
fn is_boundary(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"'()+_,-./:=?".contains(&byte)
}
