//! Is this one of our endpoints? The accept loop, the endpoint table, bodies
//! in and out, error bodies, status, graceful shutdown. Only `connection` and
//! `body` know the HTTP library.

mod accept;
pub(crate) mod answer;
mod body;
mod connection;
mod endpoint;
mod status;

pub use accept::ListenError;
pub(crate) use accept::{Door, Listener};
pub(crate) use answer::AnswerBody;
pub(crate) use body::{BodyLimits, ClientBody, Received};
pub(crate) use endpoint::Endpoint;
pub(crate) use status::Status;

use std::sync::Arc;

use http::Response;
use http::request::Parts;

use crate::pipeline::Pipeline;

/// What a listener serves.
#[derive(Debug, Clone)]
pub(crate) enum Service {
    /// Clients; with `detailed` this port tells the whole status, too.
    Public {
        pipeline: Arc<Pipeline>,
        status: Arc<Status>,
        detailed: bool,
    },
    /// The status port.
    Status(Arc<Status>),
}

impl Service {
    pub(crate) async fn handle(&self, head: Parts, body: ClientBody) -> Response<AnswerBody> {
        match self {
            Self::Public {
                pipeline,
                status,
                detailed,
            } => match status.answer(&head, *detailed, true) {
                Some(answer) => answer,
                None => pipeline.handle(head, body).await,
            },
            Self::Status(status) => status
                .answer(&head, true, false)
                .unwrap_or_else(answer::not_found),
        }
    }
}
