//! The HTTP endpoints `/metrics`, `/healthz` and `/readyz`.

use std::borrow::Cow;
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

use crate::definition::{self, DefinitionCheck};
use crate::error::OperatorError;
use crate::health::Liveness;
use crate::metrics::Metrics;

/// Length of the kernel's queue of connections that are not accepted yet.
const BACKLOG: u32 = 1024;

/// The state of this replica.
enum ReplicaState {
    /// Another replica holds the lease.
    Standby,
    /// This replica is the leader and fills its caches.
    Syncing(Leader),
    /// This replica is the leader and reconciles.
    Leading(Leader),
}

/// What the endpoints of a leader report about.
#[derive(Clone)]
pub struct Leader {
    /// The cached resources.
    pub proxies: Store<FastllmProxy>,
    /// The controller's signs of life.
    pub health: Arc<Liveness>,
    /// The check of the installed definition.
    pub definition: Arc<DefinitionCheck>,
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
    pub fn set_syncing(&self, leader: Leader) {
        *self.replica.lock() = ReplicaState::Syncing(leader);
    }

    /// Records that the caches are filled.
    pub fn set_leading(&self, leader: Leader) {
        *self.replica.lock() = ReplicaState::Leading(leader);
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
        .route("/healthz", get(alive))
        .route("/readyz", get(ready))
        .with_state(state);
    axum::serve(listener, router)
        .await
        .map_err(OperatorError::Serve)
}

async fn metrics(State(state): State<Arc<ServerState>>) -> String {
    let proxies = match &*state.replica.lock() {
        ReplicaState::Standby => Vec::new(),
        ReplicaState::Syncing(leader) | ReplicaState::Leading(leader) => leader.proxies.state(),
    };
    state.metrics.count(proxies.iter().map(AsRef::as_ref));
    state.metrics.render()
}

/// Whether the process makes progress. A standby replica has nothing to do.
async fn alive(State(state): State<Arc<ServerState>>) -> (StatusCode, String) {
    let checked = match &*state.replica.lock() {
        ReplicaState::Standby => Ok(()),
        ReplicaState::Syncing(leader) | ReplicaState::Leading(leader) => leader.health.check(),
    };
    match checked {
        Ok(()) => (StatusCode::OK, "ok".to_owned()),
        Err(wedged) => (StatusCode::INTERNAL_SERVER_ERROR, wedged.to_string()),
    }
}

async fn ready(State(state): State<Arc<ServerState>>) -> (StatusCode, Cow<'static, str>) {
    match &*state.replica.lock() {
        ReplicaState::Standby => (StatusCode::OK, "standby".into()),
        ReplicaState::Leading(_) => (StatusCode::OK, "leader".into()),
        ReplicaState::Syncing(leader) if leader.definition.is_missing() => (
            StatusCode::SERVICE_UNAVAILABLE,
            definition::not_installed().into(),
        ),
        ReplicaState::Syncing(_) => (StatusCode::SERVICE_UNAVAILABLE, "syncing caches".into()),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use axum::extract::State;
    use kube::runtime::reflector;

    use super::{DefinitionCheck, Leader, ServerState, alive};
    use crate::health::Liveness;
    use crate::metrics::Metrics;

    #[tokio::test(start_paused = true)]
    async fn the_liveness_of_a_leader_depends_on_its_controller() {
        let state = Arc::new(ServerState::new(Arc::new(Metrics::new().unwrap())));
        tokio::time::advance(Duration::from_mins(5)).await;
        let (status, _) = alive(State(Arc::clone(&state))).await;
        assert_eq!(status, 200);
        let (proxies, _writer) = reflector::store();
        let config = kube::Config::new("http://localhost".parse().unwrap());
        let client = kube::Client::try_from(config).unwrap();
        let metrics = Arc::new(Metrics::new().unwrap());
        state.set_leading(Leader {
            proxies,
            health: Arc::new(Liveness::default()),
            definition: Arc::new(DefinitionCheck::new(client, metrics)),
        });
        let (status, _) = alive(State(Arc::clone(&state))).await;
        assert_eq!(status, 200);
        tokio::time::advance(Duration::from_mins(5)).await;
        let (status, body) = alive(State(state)).await;
        assert_eq!(status, 500);
        assert_eq!(body, "the controller has not run for 300 seconds");
    }
}
