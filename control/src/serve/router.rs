use std::any::Any;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::{MatchedPath, Request};
use axum::http::{HeaderValue, Method, StatusCode, header};
use axum::middleware::{Next, from_fn};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Extension, Router};
use tokio::time::timeout;
use tower_http::catch_panic::CatchPanicLayer;

use super::probes;
use crate::api::{self, ApiError, ErrorCode};
use crate::app::AppState;
use crate::gateway_api;

/// Longest time that an answer may take; waiting for a change has its own.
const PATIENCE: Duration = Duration::from_secs(30);

/// Everything that the admin port answers.
pub(crate) fn router(app: &AppState) -> Result<Router, crate::Error> {
    let (api, document) = api::routes().split_for_parts();
    let document: Arc<str> = document
        .to_pretty_json()
        .map_err(|_| crate::Error::Internal("the OpenAPI document cannot be written"))?
        .into();
    let openapi = get(|| async move {
        (
            [(header::CONTENT_TYPE, "application/json")],
            document.to_string(),
        )
    });
    let router = api
        .layer(from_fn(api::same_origin))
        .layer(from_fn(in_time))
        .merge(gateway_api::routes())
        .merge(probes::routes())
        .route("/openapi.json", openapi)
        .fallback(|| async { ApiError::new(ErrorCode::NotFound, "there is no such route") })
        .method_not_allowed_fallback(|| async {
            ApiError::new(
                ErrorCode::MethodNotAllowed,
                "this route does not have this method",
            )
        })
        .layer(CatchPanicLayer::custom(panicked))
        .layer(from_fn(finish))
        .layer(Extension(app.clone()))
        .with_state(app.clone());
    Ok(router)
}

/// Answers 504 instead of later.
pub(crate) async fn in_time(request: Request, next: Next) -> Response {
    match timeout(PATIENCE, next.run(request)).await {
        Ok(response) => response,
        Err(_) => ApiError::new(
            ErrorCode::TooSlow,
            "this took too long; whether it was done is not known",
        )
        .into_response(),
    }
}

/// Counts the answer, and gives it the headers that all have.
async fn finish(request: Request, next: Next) -> Response {
    let app = request.extensions().get::<AppState>().cloned();
    let route = request.extensions().get::<MatchedPath>().cloned();
    let method = method_label(request.method());
    let mut response = next.run(request).await;
    let headers = response.headers_mut();
    headers.insert(
        header::X_CONTENT_TYPE_OPTIONS,
        HeaderValue::from_static("nosniff"),
    );
    headers
        .entry(header::CACHE_CONTROL)
        .or_insert(HeaderValue::from_static("no-store"));
    if response.status() == StatusCode::PAYLOAD_TOO_LARGE {
        // The rest of the body is not read, so nothing can follow it: a client
        // that did not know would send its next request into a closing connection.
        let headers = response.headers_mut();
        headers.insert(header::CONNECTION, HeaderValue::from_static("close"));
    }
    if let Some(app) = app {
        let route = route.as_ref().map_or("unknown", MatchedPath::as_str);
        app.metrics
            .http_request(method, route, response.status().as_u16());
    }
    response
}

/// A bounded set, whatever clients send.
fn method_label(method: &Method) -> &'static str {
    match *method {
        Method::GET => "GET",
        Method::POST => "POST",
        Method::PUT => "PUT",
        Method::PATCH => "PATCH",
        Method::DELETE => "DELETE",
        _ => "other",
    }
}

fn panicked(_: Box<dyn Any + Send + 'static>) -> Response {
    tracing::error!("a handler panicked");
    ApiError::internal().into_response()
}
