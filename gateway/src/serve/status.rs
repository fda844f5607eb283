use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use fastllm_engine::RoutingState;
use http::StatusCode;
use http::header::HeaderValue;
use serde::Serialize;
use serde_json::json;
use tokio::task::spawn_blocking;

use crate::http::Head;
use crate::http::{LocalResponse, local_response};
use crate::runtime::clock;
use crate::snapshot::CurrentSnapshot;
use crate::telemetry::Metrics;

/// The status endpoints: /health, /livez, /readyz, /metrics.
#[derive(Debug)]
pub(crate) struct Status {
    current: Arc<CurrentSnapshot>,
    metrics: Arc<Metrics>,
    started: Instant,
    draining: AtomicBool,
}

/// A request to a status endpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum StatusQuery {
    /// Whether any backend is available.
    Health {
        /// Whether the response contains details.
        detailed: bool,
    },
    /// Whether the process runs.
    Live,
    /// Whether the gateway accepts requests.
    Ready,
    /// All metrics.
    Metrics,
}

#[derive(Serialize)]
struct HealthBody<'a> {
    status: &'static str,
    policy: Option<&'static str>,
    uptime_seconds: u64,
    snapshot_version: u64,
    keys: usize,
    models: Vec<&'a str>,
    backends: Vec<BackendStatus<'a>>,
}

#[derive(Serialize)]
struct BackendStatus<'a> {
    api_base: &'a str,
    model: &'a str,
    healthy: bool,
    inflight: u64,
    requests_total: u64,
    errors_total: u64,
}

impl Status {
    pub(crate) fn new(current: Arc<CurrentSnapshot>, metrics: Arc<Metrics>) -> Self {
        Self {
            current,
            metrics,
            started: clock::now(),
            draining: AtomicBool::new(false),
        }
    }

    /// Makes the gateway not ready from now on.
    pub(crate) fn drain(&self) {
        self.draining.store(true, Ordering::Relaxed);
    }

    /// The status endpoint of a request; nothing for any other path. Without
    /// `detailed`, only up or down is served, and no metrics. `public` ports do
    /// not reveal endpoints that they do not serve.
    pub(crate) fn query_of(head: &Head, detailed: bool, public: bool) -> Option<StatusQuery> {
        if !matches!(head.method(), b"GET" | b"HEAD") {
            return None;
        }
        match head.path() {
            "/health" | "/healthz" => Some(StatusQuery::Health { detailed }),
            "/livez" => Some(StatusQuery::Live),
            "/readyz" => Some(StatusQuery::Ready),
            "/metrics" if detailed || !public => Some(StatusQuery::Metrics),
            _ => None,
        }
    }

    /// Responds to a status request. Responses that grow with the number of
    /// models are built on a blocking thread.
    pub(crate) async fn respond(self: &Arc<Self>, query: StatusQuery) -> LocalResponse {
        let this = Arc::clone(self);
        let written = match query {
            StatusQuery::Live => {
                return local_response::json(StatusCode::OK, &json!({"status": "ok"}));
            }
            StatusQuery::Ready => return self.ready(),
            StatusQuery::Health { detailed: false } => return self.health(false),
            StatusQuery::Health { detailed: true } => {
                spawn_blocking(move || this.health(true)).await
            }
            StatusQuery::Metrics => spawn_blocking(move || this.metrics()).await,
        };
        written.unwrap_or_else(|error| {
            tracing::error!(%error, "the status cannot be written");
            local_response::json(
                StatusCode::INTERNAL_SERVER_ERROR,
                &json!({"status": "unknown"}),
            )
        })
    }

    fn ready(&self) -> LocalResponse {
        let (status, text) = if self.draining.load(Ordering::Relaxed) {
            (StatusCode::SERVICE_UNAVAILABLE, "draining")
        } else if self.current.load().is_none() {
            (StatusCode::SERVICE_UNAVAILABLE, "no_snapshot")
        } else {
            (StatusCode::OK, "ok")
        };
        local_response::json(status, &json!({"status": text}))
    }

    fn health(&self, detailed: bool) -> LocalResponse {
        let tables = self.current.tables();
        let up = tables.as_ref().is_some_and(|tables| {
            tables
                .backends()
                .any(|(_, backend)| backend.state().healthy())
        });
        let code = if up {
            StatusCode::OK
        } else {
            StatusCode::SERVICE_UNAVAILABLE
        };
        if !detailed {
            let status = if up { "ok" } else { "unavailable" };
            return local_response::json(code, &json!({"status": status}));
        }
        local_response::json(code, &self.details(tables.as_deref(), up))
    }

    fn details<'a>(&self, tables: Option<&'a RoutingState>, up: bool) -> HealthBody<'a> {
        let backends = tables.into_iter().flat_map(RoutingState::backends);
        HealthBody {
            status: match (up, tables) {
                (true, _) => "ok",
                (false, Some(_)) => "no_healthy_backends",
                (false, None) => "no_snapshot",
            },
            policy: tables.map(|tables| tables.policy().as_str()),
            uptime_seconds: self.started.elapsed().as_secs(),
            snapshot_version: tables.map_or(0, RoutingState::version),
            keys: tables.map_or(0, RoutingState::key_count),
            models: tables
                .into_iter()
                .flat_map(RoutingState::pools)
                .map(|pool| pool.model().as_str())
                .collect(),
            backends: backends
                .map(|(model, backend)| BackendStatus {
                    api_base: backend.api_base(),
                    model: model.as_str(),
                    healthy: backend.state().healthy(),
                    inflight: backend.state().in_flight(),
                    requests_total: backend.state().requests(),
                    errors_total: backend.state().errors(),
                })
                .collect(),
        }
    }

    fn metrics(&self) -> LocalResponse {
        let tables = self.current.tables();
        let text = self.metrics.render(tables.as_deref());
        let kind = HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8");
        local_response::bytes(StatusCode::OK, kind, text)
    }
}
