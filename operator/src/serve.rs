//! The HTTP endpoints `/metrics`, `/healthz` and `/readyz`.

use std::net::SocketAddr;
use std::sync::Arc;

use axum::Router;
use axum::extract::State;
use axum::http::StatusCode;
use axum::routing::get;
use fastllm_crds::FastllmProxy;
use fastllm_process::accept;
use kube::runtime::reflector::Store;
use parking_lot::Mutex;
use tokio::net::TcpListener;

use crate::error::OperatorError;
use crate::metrics::Metrics;

/// Length of the kernel's queue of connections that are not accepted yet.
const BACKLOG: u32 = 1024;

/// The state of this replica.
enum ReplicaState {
    /// Another replica holds the lease.
    Standby,
    /// This replica is the leader and fills its caches.
    Syncing(Store<FastllmProxy>),
    /// This replica is the leader and reconciles.
    Leading(Store<FastllmProxy>),
}

/// State of the HTTP endpoints.
pub struct ServerState {
    metrics: Arc<Metrics>,
    replica: Mutex<ReplicaState>,
}

impl ServerState {
    /// The state of a standby replica.
    #[must_use]
    pub fn new(metrics: Arc<Metrics>) -> Self {
        Self {
            metrics,
            replica: Mutex::new(ReplicaState::Standby),
        }
    }

    /// Records that this replica became the leader and fills its caches.
    pub fn set_syncing(&self, proxies: Store<FastllmProxy>) {
        *self.replica.lock() = ReplicaState::Syncing(proxies);
    }

    /// Records that the caches are filled.
    pub fn set_leading(&self, proxies: Store<FastllmProxy>) {
        *self.replica.lock() = ReplicaState::Leading(proxies);
    }
}

/// Binds the address.
///
/// # Errors
/// If the address cannot be bound.
pub fn bind(address: SocketAddr) -> Result<TcpListener, OperatorError> {
    Ok(accept::bind(address, BACKLOG)?)
}

/// Serves the endpoints until the process exits.
///
/// # Errors
/// If the listener fails.
pub async fn serve(listener: TcpListener, state: Arc<ServerState>) -> Result<(), OperatorError> {
    let router = Router::new()
        .route("/metrics", get(metrics))
        .route("/healthz", get(|| async { "ok" }))
        .route("/readyz", get(ready))
        .with_state(state);
    axum::serve(listener, router)
        .await
        .map_err(OperatorError::Serve)
}

async fn metrics(State(state): State<Arc<ServerState>>) -> String {
    let proxies = match &*state.replica.lock() {
        ReplicaState::Standby => Vec::new(),
        ReplicaState::Syncing(store) | ReplicaState::Leading(store) => store.state(),
    };
    state.metrics.count(proxies.iter().map(AsRef::as_ref));
    state.metrics.render()
}

async fn ready(State(state): State<Arc<ServerState>>) -> (StatusCode, &'static str) {
    match &*state.replica.lock() {
        ReplicaState::Standby => (StatusCode::OK, "standby"),
        ReplicaState::Leading(_) => (StatusCode::OK, "leader"),
        ReplicaState::Syncing(_) => (StatusCode::SERVICE_UNAVAILABLE, "syncing caches"),
    }
}
