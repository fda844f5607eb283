//! `/metrics`, `/healthz` and `/readyz`.

use std::net::SocketAddr;
use std::sync::Arc;

use axum::Router;
use axum::extract::State;
use axum::http::StatusCode;
use axum::routing::get;
use fastllm_crds::FastllmProxy;
use kube::runtime::reflector::Store;
use parking_lot::Mutex;
use tokio::net::TcpListener;

use crate::error::OperatorError;
use crate::metrics::Metrics;

/// Where this replica stands.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Standing {
    /// It waits for its turn, which is what a standby should do.
    Standby,
    /// It leads and fills its caches.
    Syncing,
    /// It leads and acts.
    Acting,
}

/// What the endpoints read.
pub struct Served {
    metrics: Arc<Metrics>,
    standing: Mutex<(Standing, Option<Store<FastllmProxy>>)>,
}

impl Served {
    /// A standby.
    #[must_use]
    pub fn new(metrics: Arc<Metrics>) -> Self {
        Self {
            metrics,
            standing: Mutex::new((Standing::Standby, None)),
        }
    }

    /// The caches exist and are being filled.
    pub fn syncing(&self, proxies: Store<FastllmProxy>) {
        *self.standing.lock() = (Standing::Syncing, Some(proxies));
    }

    /// The caches are full.
    pub fn acting(&self) {
        self.standing.lock().0 = Standing::Acting;
    }
}

/// Binds the address.
///
/// # Errors
/// If it cannot be listened on.
pub async fn bind(address: SocketAddr) -> Result<TcpListener, OperatorError> {
    TcpListener::bind(address)
        .await
        .map_err(|source| OperatorError::Listen { address, source })
}

/// Serves until the process ends.
///
/// # Errors
/// If the listener breaks.
pub async fn serve(listener: TcpListener, served: Arc<Served>) -> Result<(), OperatorError> {
    let router = Router::new()
        .route("/metrics", get(metrics))
        .route("/healthz", get(|| async { "ok" }))
        .route("/readyz", get(ready))
        .with_state(served);
    axum::serve(listener, router)
        .await
        .map_err(|_| OperatorError::TaskEnded("the HTTP listener"))
}

async fn metrics(State(served): State<Arc<Served>>) -> String {
    let proxies = served.standing.lock().1.clone();
    let proxies = proxies.map(|store| store.state()).unwrap_or_default();
    served.metrics.count(proxies.iter().map(AsRef::as_ref));
    served.metrics.render()
}

async fn ready(State(served): State<Arc<Served>>) -> (StatusCode, &'static str) {
    match served.standing.lock().0 {
        Standing::Standby => (StatusCode::OK, "standby"),
        Standing::Acting => (StatusCode::OK, "acting"),
        Standing::Syncing => (StatusCode::SERVICE_UNAVAILABLE, "filling the caches"),
    }
}
