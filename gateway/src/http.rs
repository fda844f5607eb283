//! What the parts of the request path share: a request's head, body and
//! endpoint, the gateway's own responses, and the header fields on either side.

mod body;
mod cors;
mod endpoint;
mod forwarding;
mod head;
pub(crate) mod local_response;
mod query;
mod rate_limits;
mod response_fields;

pub(crate) use body::{
    BodyLimits, BodySource, BodyTime, BodyTimeouts, MemoryShare, ReceivedBody, RequestContext,
    UnreadableBody, invalid_body,
};
pub use cors::CorsOrigin;
pub(crate) use cors::{Cors, CorsFields};
pub(crate) use endpoint::{BodyKind, Endpoint, ProxiedEndpoint};
pub use forwarding::ForwardedHeader;
pub(crate) use forwarding::{ClientFields, Coding, UpstreamFields, is_event_stream, is_json};
pub(crate) use head::Head;
pub(crate) use local_response::LocalResponse;
pub(crate) use query::ClientQuery;
pub use query::ForwardedParameter;
pub(crate) use rate_limits::{RateLimitFields, is_rate_limit_field};
pub(crate) use response_fields::ForwardedFields;
pub use response_fields::ForwardedResponseHeader;

/// The header field that identifies a request from client to upstream and back.
pub(crate) const REQUEST_ID: &str = "x-request-id";

/// The header field that states whether a response came from the cache. A client
/// skips the cache with it.
pub(crate) const CACHE: &str = "x-fastllm-cache";

/// The header field that states whether a client should retry a failed request.
/// The client libraries of `OpenAI` and Anthropic follow it.
pub(crate) const SHOULD_RETRY: &str = "x-should-retry";

/// The header field that identifies a trace across services (W3C trace context).
pub(crate) const TRACEPARENT: &str = "traceparent";
