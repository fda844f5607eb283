use crate::forward::ForwardedResponse;
use crate::http::{CorsFields, LocalResponse};

/// What a client gets.
#[derive(Debug)]
pub(crate) enum ClientResponse {
    /// The gateway's own.
    Local(Box<LocalResponse>),
    /// An upstream's, as it comes.
    Forwarded(Box<ForwardedResponse>),
}

impl ClientResponse {
    /// The same, with what its browser has to know.
    pub(crate) fn shared(mut self, fields: CorsFields) -> Self {
        match &mut self {
            Self::Local(own) => own.headers_mut().extend(fields.named()),
            Self::Forwarded(relay) => relay.share(fields),
        }
        self
    }
}
