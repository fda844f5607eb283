//! Sends a request to an upstream, retries and fails over, and streams the
//! response back.

mod attempts;
mod back_off;
mod buffers;
mod error_excerpt;
mod event_tap;
mod forwarded_response;
mod idle_timer;
mod outgoing;
mod response_stream;
mod retry;
mod slot;
mod stored_objects;
mod upload;
mod upstream_response;

pub(crate) use attempts::{Config, Forwarder};
pub(crate) use buffers::ResponseBuffers;
pub(crate) use forwarded_response::{ForwardedResponse, StreamStep};
use idle_timer::IdleTimeouts;
pub(crate) use outgoing::{Outgoing, Payload};
pub(crate) use upload::Upload;

use fastllm_engine::Refusal;
use fastllm_wire::ErrorClass;

use crate::upstream::ExchangeError;

/// Why one attempt brought no response. The texts hold no address.
#[derive(Debug, thiserror::Error)]
pub(crate) enum AttemptError {
    /// The upstream sent no response head.
    #[error(transparent)]
    Exchange(#[from] ExchangeError),
    /// The request could not be built.
    #[error("the request cannot be built: {0}")]
    Request(String),
    /// The client is at fault: no other attempt would help.
    #[error("{0}")]
    Refused(Refusal),
}

impl AttemptError {
    /// The first event of a stream is a compressed error of this class.
    fn compressed(class: ErrorClass) -> Self {
        match class {
            ErrorClass::Client => Self::Refused(Refusal::invalid(
                "the upstream rejected the request, with a compressed text that is not forwarded",
            )),
            _ => Self::Exchange(ExchangeError::Broken(
                "its first event is a compressed error".to_owned(),
            )),
        }
    }
}
