//! Send, retry, stream back: owned connections to upstreams, and what comes
//! over them.

mod attempts;
mod back_off;
mod connect;
mod connection;
mod flow;
mod headers;
mod names;
mod outgoing;
mod pool;
mod quiet;
mod relay;
mod sending;
mod sent;
mod turn;
mod upload;

pub(crate) use attempts::{Forwarder, UpstreamResponse};
pub(crate) use connect::Connector;
pub use headers::ForwardedHeader;
pub(crate) use headers::deciding_fields;
pub(crate) use names::Resolver;
pub(crate) use outgoing::{Outgoing, Payload};
pub(crate) use pool::Upstreams;
pub(crate) use quiet::IdleTimeouts;
pub(crate) use relay::{ForwardedResponse, StreamStep};
pub(crate) use sent::AwaitingResponse;
pub(crate) use upload::Upload;

use fastllm_engine::Refusal;

/// Why one attempt brought no answer. The texts hold no address.
#[derive(Debug, thiserror::Error)]
pub(crate) enum AttemptError {
    /// No connection could be made.
    #[error("cannot connect: {0}")]
    Connect(String),
    /// The connection broke before the answer began.
    #[error("the connection broke before an answer: {0}")]
    Broken(String),
    /// No response headers in time.
    #[error("no answer in time")]
    Timeout,
    /// The time of the whole request is over.
    #[error("the request's time is over")]
    RequestTimeout,
    /// The request could not be built.
    #[error("the request cannot be built: {0}")]
    Request(String),
    /// The client is at fault: no other attempt would help.
    #[error("{0}")]
    Refused(Refusal),
}
