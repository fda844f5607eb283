//! Serves clients' connections: the accept loop, HTTP/1.1 (`http1`) and HTTP/2
//! (`http2`), the status endpoints, and graceful shutdown. Requests of both
//! protocols are handled in the same way.

mod accept;
mod connection;
mod date;
mod http1;
mod http2;
mod status;

pub(crate) use accept::{Listener, Shutdown, WorkerSet};
pub(crate) use status::Status;

use std::sync::Arc;
use std::time::Duration;

use crate::http::{Cors, CorsOrigin, Head, RequestContext, local_response};
use crate::pipeline::{ClientResponse, Pipeline};
use crate::telemetry::{Metrics, OpenConnection};

/// How clients' connections are served.
#[derive(Debug, Clone)]
pub(crate) struct Config {
    /// Connections per port that are served at one time; further ones wait.
    pub(crate) max_connections: u32,
    /// The longest time for the head of a request, including the idle time before
    /// it.
    pub(crate) header_timeout: Duration,
    /// The longest time for a client to receive a part of its response.
    pub(crate) send_timeout: Duration,
    /// Origins whose pages may use the gateway from a browser.
    pub(crate) cors_origins: Vec<CorsOrigin>,
}

/// What a listener serves.
#[derive(Debug, Clone)]
pub(crate) enum Service {
    /// Clients; with `detailed` this port serves the full status as well.
    Public {
        pipeline: Arc<Pipeline>,
        status: Arc<Status>,
        detailed: bool,
        cors: Option<Arc<Cors>>,
        metrics: Arc<Metrics>,
    },
    /// The status port.
    Status(Arc<Status>),
}

impl Service {
    /// Counts a client's connection that was accepted.
    fn connected(&self) -> Option<OpenConnection> {
        match self {
            Self::Public { metrics, .. } => Some(metrics.client_connected()),
            Self::Status(_) => None,
        }
    }

    /// The response to a request; `None` if the client has disconnected.
    pub(crate) async fn handle(
        &self,
        head: &Head,
        context: RequestContext<'_>,
    ) -> Option<ClientResponse> {
        let own = match self {
            Self::Public {
                pipeline,
                status,
                detailed,
                cors,
                metrics: _,
            } => {
                let cors = cors.as_deref();
                if let Some(query) = Status::query_of(head, *detailed, true) {
                    status.respond(query).await
                } else if let Some(preflight) = cors.and_then(|cors| cors.preflight(head)) {
                    preflight
                } else {
                    let response = pipeline.handle(head, context).await?;
                    return Some(match cors {
                        Some(cors) => response.shared(cors.fields(head)),
                        None => response,
                    });
                }
            }
            Self::Status(status) => match Status::query_of(head, true, false) {
                Some(query) => status.respond(query).await,
                None => local_response::not_found(),
            },
        };
        Some(ClientResponse::Local(Box::new(own)))
    }
}
