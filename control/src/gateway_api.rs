//! The HTTP API for gateways, authenticated with the proxy token. Unknown members
//! are ignored, so that gateways and control planes of different releases work
//! together.

mod health;
mod limits_state;
mod reconcile;
mod snapshot;
mod usage;

use axum::Router;
use axum::extract::{DefaultBodyLimit, Request};
use axum::http::header;
use axum::middleware::{Next, from_fn};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};

use crate::api::ApiError;
use crate::app::AppState;
use crate::request_timeout::with_timeout;

/// The maximum size of a request other than usage, in bytes: enough for thousands
/// of backends.
const MAX_BODY: usize = 4 * 1024 * 1024;
/// The maximum length of a replica name and of a boot ID, in bytes.
const MAX_NAME: usize = 256;

/// The routes for gateways.
pub(crate) fn routes() -> Router<AppState> {
    Router::new()
        .route(
            "/usage",
            post(usage::post).layer(DefaultBodyLimit::max(usage::MAX_BODY)),
        )
        .route("/health-report", post(health::post))
        .route("/limits/reconcile", post(reconcile::post))
        .route("/limits-state", get(limits_state::get))
        .layer(from_fn(with_timeout))
        .route("/snapshot", get(snapshot::get))
        .layer(DefaultBodyLimit::max(MAX_BODY))
        .route_layer(from_fn(check))
}

async fn check(request: Request, next: Next) -> Response {
    let app = request.extensions().get::<AppState>().cloned();
    let presented = request
        .headers()
        .get(header::AUTHORIZATION)
        .and_then(|value| value.as_bytes().strip_prefix(b"Bearer "));
    let authenticated = match app.zip(presented) {
        Some((app, token)) => app.tokens.accept(token).await,
        None => false,
    };
    if authenticated {
        next.run(request).await
    } else {
        ApiError::unauthenticated("the proxy token is missing or invalid").into_response()
    }
}

/// Validates the name of a gateway or the ID of one of its starts.
fn check_name(field: &str, name: &str) -> Result<(), ApiError> {
    if name.is_empty() || name.len() > MAX_NAME || name.chars().any(char::is_control) {
        return Err(ApiError::invalid(
            field,
            format!("{field} must have 1 to {MAX_NAME} bytes"),
        ));
    }
    Ok(())
}
