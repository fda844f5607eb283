use std::any::Any;
use std::sync::Arc;

use axum::extract::{MatchedPath, Request};
use axum::http::{HeaderValue, Method, StatusCode, header};
use axum::middleware::{Next, from_fn};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Extension, Router};
use tower_http::catch_panic::CatchPanicLayer;

use super::probes;
use crate::api::{self, ApiError, ErrorCode};
use crate::app::AppState;
use crate::gateway_api;
use crate::request_timeout::with_timeout;

/// All routes of the admin listener.
pub(crate) fn router(app: &AppState) -> Result<Router, crate::Error> {
    let (api, document) = api::routes().split_for_parts();
    let document: Arc<str> = document
        .to_pretty_json()
        .map_err(crate::Error::OpenApi)?
        .into();
    let openapi = get(|| async move {
        (
            [(header::CONTENT_TYPE, "application/json")],
            document.to_string(),
        )
    });
    let router = api
        .layer(from_fn(api::same_origin))
        .layer(from_fn(with_timeout))
        .merge(gateway_api::routes())
        .merge(probes::routes())
        .route("/openapi.json", openapi)
        .fallback(|| async { ApiError::new(ErrorCode::NotFound, "no such route") })
        .method_not_allowed_fallback(|| async {
            ApiError::new(
                ErrorCode::MethodNotAllowed,
                "this route does not support this method",
            )
        })
        .layer(CatchPanicLayer::custom(panicked))
        .layer(from_fn(finish))
        .layer(Extension(app.clone()))
        .with_state(app.clone());
    Ok(router)
}

/// Counts the response and adds the header fields common to all responses.
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
        // The rest of the body is not read, so the connection cannot be reused.
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

/// The method as a label with a bounded number of values.
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
