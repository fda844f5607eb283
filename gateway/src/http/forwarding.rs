//! Which header fields of clients are forwarded to upstreams, and what the fields
//! of a response mean for its body.

use std::str::FromStr;

use fastllm_engine::is_reserved_header;
use fastllm_wire::http1::{HeadWriter, HeaderFields};
use http::header::{HeaderName, HeaderValue};

use super::{REQUEST_ID, TRACEPARENT};

/// The client header fields that upstreams see: those that describe the request,
/// and none that identifies the client. `openai-beta` enables features; its
/// relatives that select an organisation or project are stripped, since they
/// would apply to the operator's credential.
const UPSTREAM: [&str; 5] = [
    "accept",
    "user-agent",
    TRACEPARENT,
    "tracestate",
    "openai-beta",
];

/// A client header that is forwarded in addition.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ForwardedHeader(HeaderName);

impl FromStr for ForwardedHeader {
    type Err = String;

    /// Credentials, cookies and framing fields are never forwarded.
    fn from_str(text: &str) -> Result<Self, String> {
        const NEVER: [&str; 6] = [
            "authorization",
            "cookie",
            "x-api-key",
            "api-key",
            "x-goog-api-key",
            REQUEST_ID,
        ];
        let name: HeaderName = text
            .trim()
            .parse()
            .map_err(|_| "expected the name of a header".to_owned())?;
        if NEVER.contains(&name.as_str()) || is_reserved_header(&name) {
            return Err(format!("{name} never goes upstream as it came"));
        }
        Ok(Self(name))
    }
}

/// The header fields of a request to an upstream, framing aside.
pub(crate) struct UpstreamFields<'a> {
    pub(crate) client: ClientFields<'a>,
    /// Header fields that the backend requires. They replace client fields of the same
    /// name.
    pub(crate) backend: &'a [(HeaderName, HeaderValue)],
    pub(crate) content_type: &'a str,
    /// The gateway's own span. It replaces the client's.
    pub(crate) traceparent: Option<HeaderValue>,
    pub(crate) request_id: &'a HeaderValue,
}

/// The header fields of a client, and which of them upstreams see.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ClientFields<'a> {
    pub(crate) fields: HeaderFields<'a>,
    /// Headers that are forwarded in addition to the usual ones.
    pub(crate) forwarded: &'a [ForwardedHeader],
}

impl UpstreamFields<'_> {
    /// Writes all fields. Repeated fields stay repeated.
    pub(crate) fn write(&self, head: &mut HeadWriter<'_>) {
        if let Some(ours) = &self.traceparent {
            head.field(TRACEPARENT.as_bytes(), ours.as_bytes());
        }
        for field in self.client.fields.end_to_end() {
            let replaced = self.traceparent.is_some() && field.is(TRACEPARENT);
            let passes = |name: &str| field.is(name) && !self.backend_sets(name);
            let forwarded = self.client.forwarded.iter();
            let listed = UPSTREAM.into_iter().any(passes)
                || forwarded.map(|header| header.0.as_str()).any(passes);
            if !replaced && listed {
                head.copy(field);
            }
        }
        for (name, value) in self.backend {
            head.field(name.as_str().as_bytes(), value.as_bytes());
        }
        head.field(b"content-type", self.content_type.as_bytes());
        // The response is inspected for usage and forwarded as it is.
        head.field(b"accept-encoding", b"identity");
        if !self.backend_sets(REQUEST_ID) {
            head.field(REQUEST_ID.as_bytes(), self.request_id.as_bytes());
        }
    }

    fn backend_sets(&self, name: &str) -> bool {
        self.backend.iter().any(|(set, _)| set.as_str() == name)
    }
}

impl<'a> ClientFields<'a> {
    /// The forwarded fields that the response may depend on, with names in lower
    /// case: all but the user agent and the trace context.
    pub(crate) fn deciding(self) -> impl Iterator<Item = (&'a str, &'a [u8])> {
        const INDIFFERENT: [&str; 3] = ["user-agent", TRACEPARENT, "tracestate"];
        let Self { fields, forwarded } = self;
        let usual = UPSTREAM
            .into_iter()
            .filter(|name| !INDIFFERENT.contains(name));
        usual
            .chain(forwarded.iter().map(|header| header.0.as_str()))
            .flat_map(move |name| fields.all(name).map(move |value| (name, value)))
    }
}

/// Whether a body is a stream of server-sent events.
pub(crate) fn is_event_stream(fields: HeaderFields<'_>) -> bool {
    media_type(fields).eq_ignore_ascii_case(b"text/event-stream")
}

/// Whether a body is one JSON value.
pub(crate) fn is_json(fields: HeaderFields<'_>) -> bool {
    media_type(fields).eq_ignore_ascii_case(b"application/json")
}

/// The media type of a body, without parameters; empty if it is not stated.
fn media_type(fields: HeaderFields<'_>) -> &[u8] {
    let stated = fields.get("content-type").unwrap_or_default();
    let media_type = stated.split(|byte| *byte == b';').next();
    media_type.unwrap_or_default().trim_ascii()
}

/// The content coding of a response body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Coding {
    /// Not compressed.
    Identity,
    Gzip,
    /// A coding that cannot be decoded here, or several.
    Other,
}

impl Coding {
    /// The coding that the header of a response states.
    pub(crate) fn of(fields: HeaderFields<'_>) -> Self {
        let mut coding = Self::Identity;
        for value in fields.all("content-encoding") {
            let is = |name: &[u8]| value.trim_ascii().eq_ignore_ascii_case(name);
            coding = match coding {
                kept if is(b"identity") => kept,
                Self::Identity if is(b"gzip") || is(b"x-gzip") => Self::Gzip,
                _ => Self::Other,
            };
        }
        coding
    }
}

#[cfg(test)]
mod tests;
