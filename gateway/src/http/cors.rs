//! Cross-origin resource sharing (CORS): which web pages may use the gateway from
//! a browser. Pages have to send their key themselves; credentials that a browser
//! adds are not allowed.

use std::str::FromStr;
use std::sync::Arc;

use bytes::Bytes;
use fastllm_wire::http1::HeaderField;
use http::header::{self, HeaderName, HeaderValue};
use http::{HeaderMap, Response, StatusCode};
use url::Url;

use super::{Endpoint, ForwardedResponseHeader, Head, LocalResponse};

/// The longest list of header names that is allowed to a page, in bytes.
const MAX_HEADER_NAMES_BYTES: usize = 4 << 10;

/// The headers that are allowed to a page that requests none.
const REQUEST_HEADERS: &str = "authorization, content-type, x-api-key, x-request-id, \
openai-beta, openai-organization, openai-project, traceparent, tracestate";

/// The response headers that a page may read, besides those of the Fetch standard
/// and those of upstreams that `--forward-response-header` adds.
const EXPOSED: &str = "x-request-id, retry-after, retry-after-ms, x-should-retry, openai-model, \
openai-processing-ms, openai-version, x-ratelimit-limit-requests, x-ratelimit-limit-tokens, \
x-ratelimit-remaining-requests, x-ratelimit-remaining-tokens, x-ratelimit-reset, \
x-ratelimit-reset-requests, x-ratelimit-reset-tokens, x-fastllm-cache";

/// Seconds for which a browser may cache a preflight response: the maximum of the
/// most restrictive browser.
const MAX_AGE: &str = "7200";

/// An origin whose pages may use the gateway, as in the `origin` header, or `*`
/// for all.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CorsOrigin(HeaderValue);

/// The allowed origins.
#[derive(Debug)]
pub(crate) struct Cors {
    origins: Vec<(CorsOrigin, CorsFields)>,
    /// The fields for all other origins.
    others: CorsFields,
}

/// The CORS fields of a response.
#[derive(Debug, Clone)]
pub(crate) struct CorsFields(Arc<HeaderMap>);

impl CorsOrigin {
    const ANY: &str = "*";

    fn is_any(&self) -> bool {
        self.0 == Self::ANY
    }
}

/// A text is not a valid origin.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("expected * or an origin: scheme://host, or scheme://host:port, and no path")]
pub struct InvalidOrigin;

impl FromStr for CorsOrigin {
    type Err = InvalidOrigin;

    /// Normalizes the origin to what a browser sends: the host name in lower case,
    /// without the default port.
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
        // Origins of extensions and apps have no standard form.
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
    /// Nothing where no origin is allowed. Pages may also read the fields in
    /// `forwarded`.
    pub(crate) fn new(
        origins: &[CorsOrigin],
        forwarded: &[ForwardedResponseHeader],
    ) -> Option<Self> {
        let exposed = exposed(forwarded);
        let any = origins.iter().find(|origin| origin.is_any());
        let named = origins.iter().filter(|_| any.is_none());
        let named = named.map(|origin| (origin.clone(), CorsFields::new(Some((origin, &exposed)))));
        (!origins.is_empty()).then(|| Self {
            origins: named.collect(),
            others: CorsFields::new(any.map(|origin| (origin, &exposed))),
        })
    }

    /// The fields of the response to this request.
    pub(crate) fn fields(&self, head: &Head) -> CorsFields {
        let asks = head.field("origin").unwrap_or_default();
        let known = self
            .origins
            .iter()
            .find(|(origin, _)| origin.0.as_bytes() == asks);
        known.map_or(&self.others, |(_, fields)| fields).clone()
    }

    /// The response to a preflight request, which has no key; `None` if the
    /// request is no preflight.
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

/// The headers that the page requests: client libraries send many of their own,
/// and rules may match any of them.
fn wanted_headers(head: &Head) -> HeaderValue {
    let is_list = |value: &&[u8]| {
        let is_name = |byte: &u8| byte.is_ascii_alphanumeric() || b"-_., ".contains(byte);
        (1..=MAX_HEADER_NAMES_BYTES).contains(&value.len()) && value.iter().all(is_name)
    };
    head.field("access-control-request-headers")
        .filter(is_list)
        .and_then(|value| HeaderValue::from_bytes(value).ok())
        .unwrap_or(HeaderValue::from_static(REQUEST_HEADERS))
}

/// The names of the fields that pages may read.
fn exposed(forwarded: &[ForwardedResponseHeader]) -> HeaderValue {
    let names = [EXPOSED].into_iter();
    let names: Vec<&str> = names
        .chain(forwarded.iter().map(ForwardedResponseHeader::name))
        .collect();
    HeaderValue::try_from(names.join(", ")).unwrap_or(HeaderValue::from_static(EXPOSED))
}

impl CorsFields {
    /// `readers` is the origin whose pages may read the response, if any, with the
    /// names of the fields that they see.
    fn new(readers: Option<(&CorsOrigin, &HeaderValue)>) -> Self {
        let mut fields = HeaderMap::new();
        // A cache must not use a response for a page of another origin.
        fields.insert(header::VARY, HeaderValue::from_static("origin"));
        if let Some((CorsOrigin(origin), exposed)) = readers {
            fields.insert(header::ACCESS_CONTROL_ALLOW_ORIGIN, origin.clone());
            fields.insert(header::ACCESS_CONTROL_EXPOSE_HEADERS, exposed.clone());
        }
        Self(Arc::new(fields))
    }

    fn grants(&self) -> bool {
        self.0.contains_key(header::ACCESS_CONTROL_ALLOW_ORIGIN)
    }

    /// The fields for a response of the gateway itself.
    pub(crate) fn named(&self) -> impl Iterator<Item = (HeaderName, HeaderValue)> {
        let fields = self.0.iter();
        fields.map(|(name, value)| (name.clone(), value.clone()))
    }

    /// The fields for a forwarded response.
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

    /// The origin that may read a response to a page of this origin.
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
        assert!(Cors::new(&[], &[]).is_none());
        let some = Cors::new(&origins(&["https://a.example", "https://b.example"]), &[]).unwrap();
        let b = Some("https://b.example".to_owned());
        assert_eq!(allowed(&some, "https://b.example"), b);
        for other in ["https://c.example", "http://b.example", "null", "*"] {
            assert_eq!(allowed(&some, other), None, "{other}");
        }
        let all = Cors::new(&origins(&["https://a.example", "*"]), &[]).unwrap();
        for page in ["https://a.example", "https://c.example", "null"] {
            assert_eq!(allowed(&all, page), Some("*".to_owned()));
        }
    }
}
