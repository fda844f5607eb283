//! Which headers cross the gateway.

use std::str::FromStr;

use fastllm_engine::is_reserved_header;
use fastllm_wire::http1::{Fields, HeadWriter};
use http::header::{HeaderName, HeaderValue};

use super::REQUEST_ID;
use super::{CACHE, TRACEPARENT};
use crate::request_log::RequestLog;

/// What an upstream may see of a client's headers: those that describe the
/// request, and nothing that says who the client is. `openai-beta` turns
/// features on; its neighbours that choose an organisation or project stay
/// here: they would act under the operator's credential.
const UPSTREAM: [&str; 5] = [
    "accept",
    "user-agent",
    TRACEPARENT,
    "tracestate",
    "openai-beta",
];

/// A further header of clients that upstreams may see.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ForwardedHeader(HeaderName);

impl FromStr for ForwardedHeader {
    type Err = String;

    /// Credentials, cookies and what frames a message never go upstream.
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

/// Writes the client's fields that go upstream, `further` ones among them, those that the `backend` wants,
/// which take the place of others of their names, and those of ours that go with
/// every request. Repeated fields stay repeated; our span, if there is one,
/// stands before the client's.
pub(crate) fn request_fields(
    head: &mut HeadWriter<'_>,
    (client, further): (Fields<'_>, &[ForwardedHeader]),
    backend: &[(HeaderName, HeaderValue)],
    content_type: &[u8],
    record: &RequestLog,
) {
    let traceparent = record.trace().upstream_traceparent();
    if let Some(ours) = &traceparent {
        head.field(TRACEPARENT.as_bytes(), ours.as_bytes());
    }
    let wants = |text: &str| backend.iter().any(|(name, _)| name.as_str() == text);
    for field in client.end_to_end() {
        let replaced = traceparent.is_some() && field.is(TRACEPARENT);
        let passes = |name: &str| field.is(name) && !wants(name);
        let listed = UPSTREAM.into_iter().any(passes)
            || further.iter().any(|header| passes(header.0.as_str()));
        if !replaced && listed {
            head.copy(field);
        }
    }
    for (name, value) in backend {
        head.field(name.as_str().as_bytes(), value.as_bytes());
    }
    head.field(b"content-type", content_type);
    // What is answered is looked into for usage, and passed on as it is.
    head.field(b"accept-encoding", b"identity");
    if !wants(REQUEST_ID) {
        head.field(REQUEST_ID.as_bytes(), record.id().as_bytes());
    }
}

/// Of the client's fields that go upstream, those by which an answer may differ,
/// under their names in lower case. Who asks with which program, and for which
/// trace, makes no difference.
pub(crate) fn deciding_fields<'a>(
    client: Fields<'a>,
    further: &'a [ForwardedHeader],
) -> impl Iterator<Item = (&'a str, &'a [u8])> {
    const INDIFFERENT: [&str; 3] = ["user-agent", TRACEPARENT, "tracestate"];
    let usual = UPSTREAM
        .into_iter()
        .filter(|name| !INDIFFERENT.contains(name));
    usual
        .chain(further.iter().map(|header| header.0.as_str()))
        .flat_map(move |name| client.all(name).map(move |value| (name, value)))
}

/// Whether a client sees this field of an upstream's answer; those of the
/// connection are left out already.
pub(crate) fn passes_to_client(name: &[u8]) -> bool {
    let ours = match name.len() {
        7 => "alt-svc",
        10 => "set-cookie",
        12 => REQUEST_ID,
        15 => CACHE,
        _ => return true,
    };
    !name.eq_ignore_ascii_case(ours.as_bytes())
}

/// Whether a field of an answer tells browsers who may read it.
pub(crate) fn is_cors(name: &[u8]) -> bool {
    const BEGINNING: &[u8] = b"access-control-";
    name.get(..BEGINNING.len())
        .is_some_and(|beginning| beginning.eq_ignore_ascii_case(BEGINNING))
}

/// Whether a body is a stream of events that can be read.
pub(crate) fn is_event_stream(fields: Fields<'_>) -> bool {
    let Some(kind) = fields.get("content-type") else {
        return false;
    };
    let kind = kind.split(|byte| *byte == b';').next().unwrap_or_default();
    kind.trim_ascii().eq_ignore_ascii_case(b"text/event-stream")
}

/// How a body is compressed, against our wish.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Coding {
    /// It comes as it is meant.
    BatchIdentity,
    Gzip,
    /// In a way that nobody here reads, or in several.
    Other,
}

impl Coding {
    /// What the header of an answer says of its body.
    pub(crate) fn of(fields: Fields<'_>) -> Self {
        let mut coding = Self::BatchIdentity;
        for value in fields.all("content-encoding") {
            let is = |name: &[u8]| value.trim_ascii().eq_ignore_ascii_case(name);
            coding = match coding {
                kept if is(b"identity") => kept,
                Self::BatchIdentity if is(b"gzip") || is(b"x-gzip") => Self::Gzip,
                _ => Self::Other,
            };
        }
        coding
    }
}

#[cfg(test)]
mod tests;
