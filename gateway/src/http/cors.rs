//! Whose web pages may use the gateway from a browser (CORS, as the Fetch
//! standard has it). Credentials that a browser adds by itself play no part: a
//! page has to send its key.

use std::str::FromStr;
use std::sync::Arc;

use bytes::Bytes;
use fastllm_wire::http1::HeaderField;
use http::header::{self, HeaderName, HeaderValue};
use http::{HeaderMap, Response, StatusCode};
use url::Url;

use super::LocalResponse;
use super::{Endpoint, Head};

/// Longest list of header names that is granted to a page, in bytes.
const LONGEST_REQUEST: usize = 4 << 10;

/// What a page may send if it does not say what it wants to.
const REQUEST_HEADERS: &str = "authorization, content-type, x-api-key, x-request-id, \
openai-beta, openai-organization, openai-project, traceparent, tracestate";

/// What a page may read beside what every page may.
const EXPOSED: &str = "x-request-id, retry-after, x-ratelimit-limit-requests, \
x-ratelimit-limit-tokens, x-ratelimit-remaining-requests, x-ratelimit-remaining-tokens, \
x-ratelimit-reset, x-ratelimit-reset-requests, x-ratelimit-reset-tokens, x-fastllm-cache";

/// Seconds for which a browser may remember a permission: as long as the most
/// restrictive of them does.
const MAX_AGE: &str = "7200";

/// An origin whose pages may use the gateway, as it is in the `origin` header,
/// or `*` for all.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CorsOrigin(HeaderValue);

/// Who may.
#[derive(Debug)]
pub(crate) struct Cors {
    origins: Vec<(CorsOrigin, CorsFields)>,
    /// What everybody else is told.
    others: CorsFields,
}

/// What answers say about it.
#[derive(Debug, Clone)]
pub(crate) struct CorsFields(Arc<HeaderMap>);

impl CorsOrigin {
    const ANY: &str = "*";

    fn is_any(&self) -> bool {
        self.0 == Self::ANY
    }
}

/// Why a text names no origin.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("expected * or an origin: scheme://host, or scheme://host:port, and no path")]
pub struct InvalidOrigin;

impl FromStr for CorsOrigin {
    type Err = InvalidOrigin;

    /// Takes what a browser would send: host names in lower case and without
    /// the usual port, which is what other spellings are brought to.
    fn from_str(text: &str) -> Result<Self, InvalidOrigin> {
        if text == Self::ANY {
            return Ok(Self(HeaderValue::from_static(Self::ANY)));
        }
        let (_, host) = text.split_once("://").ok_or(InvalidOrigin)?;
        let is_bare = !host.is_empty() && !host.contains(['/', '?', '#', '@', '\\', '*']);
        let url = Url::parse(text).map_err(|_| InvalidOrigin)?;
        if !is_bare || !text.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err(InvalidOrigin);
        }
        let origin = url.origin();
        // Those of extensions and apps are known to browsers only.
        let origin = if origin.is_tuple() {
            origin.ascii_serialization()
        } else {
            text.to_ascii_lowercase()
        };
        HeaderValue::try_from(origin)
            .map(Self)
            .map_err(|_| InvalidOrigin)
    }
}

impl Cors {
    /// Nothing where nobody may.
    pub(crate) fn new(origins: &[CorsOrigin]) -> Option<Self> {
        let any = origins.iter().find(|origin| origin.is_any());
        let named = origins.iter().filter(|_| any.is_none());
        let named = named.map(|origin| (origin.clone(), CorsFields::new(Some(origin))));
        (!origins.is_empty()).then(|| Self {
            origins: named.collect(),
            others: CorsFields::new(any),
        })
    }

    /// What the answer to this request says.
    pub(crate) fn fields(&self, head: &Head) -> CorsFields {
        let asks = head.field("origin").unwrap_or_default();
        let known = self
            .origins
            .iter()
            .find(|(origin, _)| origin.0.as_bytes() == asks);
        known.map_or(&self.others, |(_, fields)| fields).clone()
    }

    /// The answer to a browser that asks beforehand, which it does without a
    /// key; nothing where this is something else.
    pub(crate) fn preflight(&self, head: &Head) -> Option<LocalResponse> {
        const METHOD: &str = "access-control-request-method";
        let asks = head.method() == b"OPTIONS"
            && head.field("origin").is_some()
            && head.field(METHOD).is_some()
            && Endpoint::is_at(head.path());
        if !asks {
            return None;
        }
        let mut own = Response::new(Bytes::new());
        *own.status_mut() = StatusCode::NO_CONTENT;
        let fields = self.fields(head);
        let headers = own.headers_mut();
        if fields.grants() {
            let methods = HeaderValue::from_static("GET, POST, OPTIONS");
            headers.insert(header::ACCESS_CONTROL_ALLOW_METHODS, methods);
            headers.insert(header::ACCESS_CONTROL_ALLOW_HEADERS, wanted_headers(head));
            let age = HeaderValue::from_static(MAX_AGE);
            headers.insert(header::ACCESS_CONTROL_MAX_AGE, age);
        }
        headers.extend(fields.named());
        Some(own)
    }
}

/// The headers that the page wants to send: client libraries have many of their
/// own, and rules may look at any.
fn wanted_headers(head: &Head) -> HeaderValue {
    let is_list = |value: &&[u8]| {
        let is_name = |byte: &u8| byte.is_ascii_alphanumeric() || b"-_., ".contains(byte);
        (1..=LONGEST_REQUEST).contains(&value.len()) && value.iter().all(is_name)
    };
    head.field("access-control-request-headers")
        .filter(is_list)
        .and_then(|value| HeaderValue::from_bytes(value).ok())
        .unwrap_or(HeaderValue::from_static(REQUEST_HEADERS))
}

impl CorsFields {
    /// `origin` is whose pages may read an answer, if some may.
    fn new(origin: Option<&CorsOrigin>) -> Self {
        let mut fields = HeaderMap::new();
        // A cache must not show to one page what was said to another.
        fields.insert(header::VARY, HeaderValue::from_static("origin"));
        if let Some(CorsOrigin(origin)) = origin {
            fields.insert(header::ACCESS_CONTROL_ALLOW_ORIGIN, origin.clone());
            let exposed = HeaderValue::from_static(EXPOSED);
            fields.insert(header::ACCESS_CONTROL_EXPOSE_HEADERS, exposed);
        }
        Self(Arc::new(fields))
    }

    fn grants(&self) -> bool {
        self.0.contains_key(header::ACCESS_CONTROL_ALLOW_ORIGIN)
    }

    /// For an answer of the gateway's own.
    pub(crate) fn named(&self) -> impl Iterator<Item = (HeaderName, HeaderValue)> {
        let fields = self.0.iter();
        fields.map(|(name, value)| (name.clone(), value.clone()))
    }

    /// For an answer that is written as it came.
    pub(crate) fn fields(&self) -> impl Iterator<Item = HeaderField<'_>> {
        self.0.iter().map(|(name, value)| HeaderField {
            name: name.as_str().as_bytes(),
            value: value.as_bytes(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::{Cors, CorsOrigin, InvalidOrigin};
    use crate::http::Head;

    fn origins(texts: &[&str]) -> Vec<CorsOrigin> {
        texts.iter().map(|text| text.parse().unwrap()).collect()
    }

    /// Whose page may read an answer to a page of this origin.
    fn allowed(cors: &Cors, origin: &str) -> Option<String> {
        let fields = cors.fields(&Head::with(&format!("origin: {origin}\r\n")));
        let found = fields
            .fields()
            .find(|field| field.is("access-control-allow-origin"))
            .map(|field| String::from_utf8(field.value.to_vec()).unwrap());
        assert!(fields.fields().any(|field| field.is("vary")));
        found
    }

    #[test]
    fn an_origin_is_a_scheme_and_a_host_as_browsers_write_them() {
        for (given, meant) in [
            ("https://app.example.com", "https://app.example.com"),
            ("HTTPS://App.Example.com:443", "https://app.example.com"),
            ("http://localhost:3000", "http://localhost:3000"),
            ("http://[::1]:8080", "http://[::1]:8080"),
            ("chrome-extension://abcdef", "chrome-extension://abcdef"),
            ("*", "*"),
        ] {
            let origin: CorsOrigin = given.parse().unwrap();
            assert_eq!(origin.0, meant, "{given}");
        }
        for given in [
            "",
            "null",
            "app.example.com",
            "https://",
            "https://app.example.com/",
            "https://app.example.com/path",
            "https://app.example.com?x",
            "https://user@app.example.com",
            "https://*.example.com",
            "https://app example.com",
            " https://app.example.com",
        ] {
            assert_eq!(given.parse::<CorsOrigin>(), Err(InvalidOrigin), "{given}");
        }
    }

    #[test]
    fn an_origin_is_allowed_by_its_name_or_because_all_are() {
        assert!(Cors::new(&[]).is_none());
        let some = Cors::new(&origins(&["https://a.example", "https://b.example"])).unwrap();
        let b = Some("https://b.example".to_owned());
        assert_eq!(allowed(&some, "https://b.example"), b);
        for other in ["https://c.example", "http://b.example", "null", "*"] {
            assert_eq!(allowed(&some, other), None, "{other}");
        }
        let all = Cors::new(&origins(&["https://a.example", "*"])).unwrap();
        for page in ["https://a.example", "https://c.example", "null"] {
            assert_eq!(allowed(&all, page), Some("*".to_owned()));
        }
    }
}
