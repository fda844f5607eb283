//! Is this one of our endpoints? The accept loop, the endpoint table, bodies
//! in and out, error bodies, status, graceful shutdown. `http1` and `http2`
//! know the wire; behind them a request is the same whichever it came by.

mod accept;
pub(crate) mod answer;
mod body;
mod connection;
mod cors;
mod date;
mod endpoint;
mod head;
mod http1;
mod http2;
mod rates;
mod status;

pub(crate) use accept::{Listener, Shutdown, WorkerSet};
pub(crate) use answer::ClientResponse;
pub(crate) use body::{
    BodyLimits, BodySource, MemoryShare, ReceivedBody, UnreadableBody, invalid_body,
};
pub use cors::CorsOrigin;
pub(crate) use cors::{Cors, CorsFields};
pub(crate) use endpoint::{BodyKind, Endpoint, ProxiedEndpoint};
pub(crate) use head::Head;
pub(crate) use rates::{RateLimitFields, is_rate_limit_field};
pub(crate) use status::Status;

use std::sync::Arc;
use std::time::Duration;

use crate::deadline::Deadline;
use crate::pipeline::Pipeline;
use crate::telemetry::OpenConnection;

/// A client that takes nothing of its answer for this long is taken for gone.
const STALLED: Duration = Duration::from_mins(5);

/// What a listener serves.
#[derive(Debug, Clone)]
pub(crate) enum Service {
    /// Clients; with `detailed` this port tells the whole status, too.
    Public {
        pipeline: Arc<Pipeline>,
        status: Arc<Status>,
        detailed: bool,
        cors: Option<Arc<Cors>>,
    },
    /// The status port.
    Status(Arc<Status>),
}

impl Service {
    /// A connection was accepted; clients' are counted.
    fn connected(&self) -> Option<OpenConnection> {
        match self {
            Self::Public { pipeline, .. } => Some(pipeline.sink.metrics.client_connected()),
            Self::Status(_) => None,
        }
    }

    /// The answer to a request; nothing where the client has left.
    pub(crate) async fn handle(
        &self,
        head: &Head,
        client: &mut dyn BodySource,
        deadline: &mut Deadline,
    ) -> Option<ClientResponse> {
        let own = match self {
            Self::Public {
                pipeline,
                status,
                detailed,
                cors,
            } => {
                let cors = cors.as_deref();
                if let Some(query) = Status::query_of(head, *detailed, true) {
                    status.respond(query).await
                } else if let Some(preflight) = cors.and_then(|cors| cors.preflight(head)) {
                    preflight
                } else {
                    let answer = pipeline.handle(head, client, deadline).await?;
                    return Some(match cors {
                        Some(cors) => answer.shared(cors.fields(head)),
                        None => answer,
                    });
                }
            }
            Self::Status(status) => match Status::query_of(head, true, false) {
                Some(query) => status.respond(query).await,
                None => answer::not_found(),
            },
        };
        Some(ClientResponse::Local(Box::new(own)))
    }
}
