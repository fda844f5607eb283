//! Which headers cross the gateway.

use http::header::{self, HeaderMap, HeaderName, HeaderValue};

/// Names a request through several services (W3C trace context).
const TRACEPARENT: HeaderName = HeaderName::from_static("traceparent");
const TRACESTATE: HeaderName = HeaderName::from_static("tracestate");

/// The vendor header that turns features on. Those that choose an organisation
/// or project stay here: they would act under the operator's credential.
const OPENAI_BETA: HeaderName = HeaderName::from_static("openai-beta");

/// What an upstream sees of the client's headers: those that describe the
/// request, and nothing that says who the client is. Repeated headers stay
/// repeated.
pub(crate) fn request_headers(client: &HeaderMap, request_id: &HeaderValue) -> HeaderMap {
    let mut headers = HeaderMap::with_capacity(12);
    for (name, value) in client {
        if passes_upstream(name) {
            headers.append(name.clone(), value.clone());
        }
    }
    // It was authorised as JSON: under another type an upstream might read
    // another model from the same bytes.
    headers.insert(
        header::CONTENT_TYPE,
        HeaderValue::from_static("application/json"),
    );
    // What is answered is looked into for usage, and passed on as it is.
    headers.insert(
        header::ACCEPT_ENCODING,
        HeaderValue::from_static("identity"),
    );
    headers.insert(crate::record::REQUEST_ID, request_id.clone());
    headers
}

fn passes_upstream(name: &HeaderName) -> bool {
    *name == header::ACCEPT
        || *name == header::USER_AGENT
        || *name == TRACEPARENT
        || *name == TRACESTATE
        || *name == OPENAI_BETA
}

/// What a client sees of an upstream's headers. `reframed` says that the body
/// may leave with another length than it came. A length beside a transfer
/// coding means nothing, and would cut the answer off.
pub(crate) fn response_headers(
    upstream: &HeaderMap,
    reframed: bool,
    request_id: &HeaderValue,
) -> HeaderMap {
    let hop_by_hop = Connection::of(upstream);
    let sized = !reframed && !upstream.contains_key(header::TRANSFER_ENCODING);
    let mut headers = HeaderMap::with_capacity(upstream.len() + 1);
    for (name, value) in upstream {
        let dropped = hop_by_hop.names(name)
            || *name == header::SET_COOKIE
            || *name == header::ALT_SVC
            || (!sized && *name == header::CONTENT_LENGTH);
        if !dropped {
            headers.append(name.clone(), value.clone());
        }
    }
    headers.insert(crate::record::REQUEST_ID, request_id.clone());
    headers
}

/// The headers that belong to one connection.
struct Connection<'a>(Vec<&'a str>);

impl<'a> Connection<'a> {
    fn of(headers: &'a HeaderMap) -> Self {
        let listed = headers
            .get_all(header::CONNECTION)
            .into_iter()
            .filter_map(|value| value.to_str().ok())
            .flat_map(|list| list.split(','))
            .map(str::trim)
            .collect();
        Self(listed)
    }

    fn names(&self, name: &HeaderName) -> bool {
        const ALWAYS: [HeaderName; 9] = [
            header::CONNECTION,
            HeaderName::from_static("keep-alive"),
            header::PROXY_AUTHENTICATE,
            header::PROXY_AUTHORIZATION,
            header::TE,
            header::TRAILER,
            header::TRANSFER_ENCODING,
            header::UPGRADE,
            HeaderName::from_static("proxy-connection"),
        ];
        ALWAYS.contains(name)
            || self
                .0
                .iter()
                .any(|listed| listed.eq_ignore_ascii_case(name.as_str()))
    }
}

/// Whether a body is a stream of events that can be read.
pub(crate) fn is_event_stream(headers: &HeaderMap) -> bool {
    let Some(kind) = headers.get(header::CONTENT_TYPE) else {
        return false;
    };
    let kind = kind.as_bytes();
    let kind = kind.split(|byte| *byte == b';').next().unwrap_or_default();
    kind.trim_ascii().eq_ignore_ascii_case(b"text/event-stream")
}

/// Whether a body comes as it is meant, not compressed.
pub(crate) fn is_identity(headers: &HeaderMap) -> bool {
    headers
        .get_all(header::CONTENT_ENCODING)
        .into_iter()
        .all(|coding| {
            coding
                .as_bytes()
                .trim_ascii()
                .eq_ignore_ascii_case(b"identity")
        })
}

#[cfg(test)]
mod tests;
