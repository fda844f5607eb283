//! The timeout of requests.

use std::time::Duration;

use axum::extract::Request;
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use tokio::time::timeout;

use crate::api::{ApiError, ErrorCode};

/// The maximum duration of a request, except of one that waits for a change.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(30);

/// Responds with 504 to requests that take longer than the timeout.
pub(crate) async fn with_timeout(request: Request, next: Next) -> Response {
    match timeout(REQUEST_TIMEOUT, next.run(request)).await {
        Ok(response) => response,
        Err(_) => ApiError::new(
            ErrorCode::TooSlow,
            "the request timed out; it may or may not have been executed",
        )
        .into_response(),
    }
}
