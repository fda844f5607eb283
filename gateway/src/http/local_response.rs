//! Responses of the gateway itself: errors and model lists.

use std::time::Duration;

use bytes::Bytes;
use fastllm_engine::Refusal;
use fastllm_wire::http1::Http1Error;
use http::header::{self, HeaderValue};
use http::{Response, StatusCode};
use serde::Serialize;

use super::RateLimitFields;
use super::{REQUEST_ID, SHOULD_RETRY};

/// A response of the gateway itself.
pub(crate) type LocalResponse = Response<Bytes>;

#[derive(Serialize)]
struct ErrorBody<'a> {
    error: ErrorFields<'a>,
}

#[derive(Serialize)]
struct ErrorFields<'a> {
    message: &'a str,
    r#type: &'a str,
    param: Option<&'a str>,
    code: &'a str,
}

#[derive(Serialize)]
struct ModelList<'a> {
    object: &'static str,
    data: Vec<ModelEntry<'a>>,
}

#[derive(Serialize)]
struct ModelEntry<'a> {
    id: &'a str,
    object: &'static str,
    owned_by: &'static str,
    created: u32,
}

impl<'a> ModelEntry<'a> {
    fn new(id: &'a str) -> Self {
        Self {
            id,
            object: "model",
            owned_by: "fastllm-proxy",
            created: 0,
        }
    }
}

/// A JSON response.
pub(crate) fn json(status: StatusCode, value: &impl Serialize) -> LocalResponse {
    let (status, text) = match serde_json::to_vec(value) {
        Ok(text) => (status, text),
        Err(error) => {
            tracing::error!(%error, "a response cannot be serialized as JSON");
            (StatusCode::INTERNAL_SERVER_ERROR, Vec::new())
        }
    };
    bytes(status, HeaderValue::from_static("application/json"), text)
}

/// A response of any content type.
pub(crate) fn bytes(status: StatusCode, kind: HeaderValue, body: Vec<u8>) -> LocalResponse {
    let mut response = Response::new(Bytes::from(body));
    *response.status_mut() = status;
    response.headers_mut().insert(header::CONTENT_TYPE, kind);
    response
}

/// The one place where a refusal, such as a 429, becomes a response.
pub(crate) fn refusal(refusal: &Refusal, request_id: &HeaderValue) -> LocalResponse {
    let message = refusal.to_string();
    let body = ErrorBody {
        error: ErrorFields {
            message: &message,
            r#type: refusal.kind(),
            param: refusal.param(),
            code: refusal.code(),
        },
    };
    let status =
        StatusCode::from_u16(refusal.status()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let mut response = json(status, &body);
    let headers = response.headers_mut();
    headers.insert(REQUEST_ID, request_id.clone());
    if let Some(wait) = refusal.retry_after() {
        headers.insert(header::RETRY_AFTER, HeaderValue::from(whole_seconds(wait)));
    }
    if let Some(rates) = refusal.rate_limits().and_then(RateLimitFields::of) {
        headers.extend(rates.named());
    }
    if status == StatusCode::UNAUTHORIZED {
        headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
    }
    response
}

/// Asks client libraries not to retry: the gateway has done so, or it cannot
/// help.
pub(crate) fn forbid_retries(response: &mut LocalResponse) {
    let headers = response.headers_mut();
    headers.insert(SHOULD_RETRY, HeaderValue::from_static("false"));
}

/// Rounded up, so that a client does not retry too early.
fn whole_seconds(wait: Duration) -> u64 {
    wait.as_secs() + u64::from(wait.subsec_nanos() > 0)
}

/// The response to a malformed request.
pub(crate) fn malformed(error: Http1Error) -> LocalResponse {
    let message = error.to_string();
    let body = ErrorBody {
        error: ErrorFields {
            message: &message,
            r#type: "invalid_request_error",
            param: None,
            code: error.code(),
        },
    };
    json(
        StatusCode::from_u16(error.status()).unwrap_or(StatusCode::BAD_REQUEST),
        &body,
    )
}

/// The response to `GET /v1/models`.
pub(crate) fn model_list<'a>(
    models: impl Iterator<Item = &'a str>,
    request_id: &HeaderValue,
) -> LocalResponse {
    let list = ModelList {
        object: "list",
        data: models.map(ModelEntry::new).collect(),
    };
    named(json(StatusCode::OK, &list), request_id)
}

/// The response to `GET /v1/models/{id}`.
pub(crate) fn model(id: &str, request_id: &HeaderValue) -> LocalResponse {
    named(json(StatusCode::OK, &ModelEntry::new(id)), request_id)
}

fn named(mut response: LocalResponse, request_id: &HeaderValue) -> LocalResponse {
    response
        .headers_mut()
        .insert(REQUEST_ID, request_id.clone());
    response
}

/// The response of the status port to unknown paths.
pub(crate) fn not_found() -> LocalResponse {
    let mut response = Response::new(Bytes::new());
    *response.status_mut() = StatusCode::NOT_FOUND;
    response
}
