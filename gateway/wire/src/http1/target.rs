//! The target of a request: a path, or an absolute URI as sent to proxies.

use memchr::memchr;

use super::Http1Error;
use super::fields::Span;

/// The ranges of the parts of a target.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Target {
    /// The authority of an absolute URI.
    pub(super) authority: Option<Span>,
    /// The path; empty if an absolute URI has none.
    pub(super) path: Span,
    /// The query, without the question mark.
    pub(super) query: Option<Span>,
}

impl Target {
    /// Splits a target. `*` and `host:port` are rejected, because the gateway
    /// serves neither.
    pub(super) fn parse(target: &[u8]) -> Result<Self, Http1Error> {
        if !target.iter().all(|byte| is_uri_byte(*byte)) {
            return Err(Http1Error::Target);
        }
        let (authority, path) = if target.starts_with(b"/") {
            (None, 0)
        } else {
            let from = scheme(target).ok_or(Http1Error::Target)?;
            let rest = target.get(from..).unwrap_or_default();
            let ends = |byte: &u8| matches!(byte, b'/' | b'?');
            let to = from + rest.iter().position(ends).unwrap_or(rest.len());
            let authority = Span::new(from, to);
            if !is_authority(authority.on(target)) {
                return Err(Http1Error::Target);
            }
            (Some(authority), to)
        };
        let mark = memchr(b'?', target);
        Ok(Self {
            authority,
            path: Span::new(path, mark.unwrap_or(target.len())),
            query: mark.map(|mark| Span::new(mark + 1, target.len())),
        })
    }
}

/// Length of the scheme including `://`.
fn scheme(target: &[u8]) -> Option<usize> {
    ["http://", "https://"].into_iter().find_map(|scheme| {
        let start = target.get(..scheme.len())?;
        start
            .eq_ignore_ascii_case(scheme.as_bytes())
            .then_some(scheme.len())
    })
}

/// The characters of RFC 3986 except `#`, which a target must not contain.
fn is_uri_byte(byte: u8) -> bool {
    matches!(byte, b'!'..=b'~')
        && !matches!(
            byte,
            b'"' | b'#' | b'<' | b'>' | b'\\' | b'^' | b'`' | b'{' | b'|' | b'}'
        )
}

/// Whether this is `host` or `host:port`, with a name or an address as the
/// host. Other parts of URIs (user names, escapes, sub-delimiters) are not
/// accepted.
pub(super) fn is_authority(text: &[u8]) -> bool {
    let (host_ok, port) = if let [b'[', rest @ ..] = text {
        let Some(end) = memchr(b']', rest) else {
            return false;
        };
        let address = rest.get(..end).unwrap_or_default();
        let of_address = |byte: &u8| byte.is_ascii_hexdigit() || matches!(byte, b':' | b'.');
        let ok = !address.is_empty() && address.iter().all(of_address);
        (ok, rest.get(end + 1..).unwrap_or_default())
    } else {
        let end = memchr(b':', text).unwrap_or(text.len());
        let host = text.get(..end).unwrap_or_default();
        let of_name =
            |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_' | b'~');
        let ok = !host.is_empty() && host.iter().all(of_name);
        (ok, text.get(end..).unwrap_or_default())
    };
    host_ok
        && match port {
            [] => true,
            [b':', digits @ ..] => digits.len() <= 5 && digits.iter().all(u8::is_ascii_digit),
            _ => false,
        }
}

#[cfg(test)]
mod tests {
    use super::{Target, is_authority};
    use crate::http1::Http1Error;

    #[test]
    fn hosts_are_names_or_addresses_with_an_optional_port() {
        for good in [
            "a",
            "a-b.c_d:80",
            "10.0.0.1:4000",
            "[::1]",
            "[fe80::1]:1",
            "a:",
        ] {
            assert!(is_authority(good.as_bytes()), "{good}");
        }
        for bad in [
            "", ":80", "a b", "a,b", "u@a", "a/b", "a:b", "a:1:2", "a:123456", "[]", "[::1", "[g]",
            "[::1]x", "a?", "a#", "é", "a%41",
        ] {
            assert!(!is_authority(bad.as_bytes()), "{bad}");
        }
    }

    #[test]
    fn absolute_uris_and_paths_are_split() {
        let parts = |text: &'static str| {
            let target = Target::parse(text.as_bytes()).unwrap();
            let part = |span: super::Span| str::from_utf8(span.on(text.as_bytes())).unwrap();
            (
                target.authority.map(part),
                part(target.path),
                target.query.map(part),
            )
        };
        assert_eq!(parts("/"), (None, "/", None));
        assert_eq!(parts("/a?b?c"), (None, "/a", Some("b?c")));
        assert_eq!(parts("//a/b"), (None, "//a/b", None));
        assert_eq!(parts("HTTP://h:1/a?"), (Some("h:1"), "/a", Some("")));
        assert_eq!(parts("https://h"), (Some("h"), "", None));
        assert_eq!(parts("http://h?q"), (Some("h"), "", Some("q")));
    }

    #[test]
    fn other_targets_are_rejected() {
        for target in [
            "*",
            "h:443",
            "a",
            "?q",
            "ftp://h/",
            "http:///a",
            "http://u@h/",
            "/a#b",
            "/é",
            "/\"",
            "/a\\b",
            "http:/a",
        ] {
            assert_eq!(
                Target::parse(target.as_bytes()),
                Err(Http1Error::Target),
                "{target}"
            );
        }
    }
}
