use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router};
use serde_json::{Value, json};

use crate::app::AppState;

/// The routes for probes and metrics.
pub(super) fn routes() -> Router<AppState> {
    Router::new()
        .route("/livez", get(alive))
        .route("/healthz", get(alive))
        .route("/readyz", get(ready))
        .route("/metrics", get(metrics))
}

async fn alive() -> Json<Value> {
    Json(json!({ "status": "ok" }))
}

/// Ready from the first snapshot until shutdown begins. An unavailable database is
/// reported but does not make the process unready: it serves the last snapshot.
async fn ready(State(app): State<AppState>) -> Response {
    let version = app.publisher.current().map(|current| current.etag.version);
    let (status, text) = if app.draining.is_cancelled() {
        (StatusCode::SERVICE_UNAVAILABLE, "draining")
    } else if version.is_none() {
        (
            StatusCode::SERVICE_UNAVAILABLE,
            "no snapshot has been built yet",
        )
    } else {
        (StatusCode::OK, "ok")
    };
    let database = app.status.problem().unwrap_or_else(|| "ok".to_owned());
    let body = json!({ "status": text, "snapshot_version": version, "database": database });
    (status, Json(body)).into_response()
}

async fn metrics(State(app): State<AppState>) -> Response {
    let (idle, all) = app.db.connections();
    app.metrics.connections(idle, all);
    (
        [(header::CONTENT_TYPE, "text/plain; version=0.0.4")],
        app.metrics.render(),
    )
        .into_response()
}
