use crate::forward::ForwardedResponse;
use crate::http::{CorsFields, LocalResponse};

/// The response to a client.
#[derive(Debug)]
pub(crate) enum ClientResponse {
    /// A response of the gateway itself.
    Local(Box<LocalResponse>),
    /// The response of an upstream, forwarded as it arrives.
    Forwarded(Box<ForwardedResponse>),
}

impl ClientResponse {
    /// Adds CORS fields.
    pub(crate) fn shared(mut self, fields: CorsFields) -> Self {
        match &mut self {
            Self::Local(own) => own.headers_mut().extend(fields.named()),
            Self::Forwarded(relay) => relay.share(fields),
        }
        self
    }
}
