use axum::extract::State;
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};

use crate::api::ApiError;
use crate::app::AppState;
use crate::crypto::digest;
use crate::db::limits_state;

/// Returns the limits state; 304 if its entity tag equals `If-None-Match`.
pub(super) async fn get(
    State(app): State<AppState>,
    headers: HeaderMap,
) -> Result<Response, ApiError> {
    let limits_state = limits_state::read(&app.db.gateways).await?;
    let bytes = serde_json::to_vec(&limits_state).map_err(|_| ApiError::internal())?;
    let tag = format!("\"{}\"", hex::encode(&digest(&bytes)[..16]));
    let held = headers.get(header::IF_NONE_MATCH);
    let same = held.is_some_and(|held| held.as_bytes() == tag.as_bytes());
    let tag = HeaderValue::from_str(&tag).map_err(|_| ApiError::internal())?;
    if same {
        return Ok((StatusCode::NOT_MODIFIED, [(header::ETAG, tag)]).into_response());
    }
    let json = HeaderValue::from_static("application/json");
    Ok(([(header::ETAG, tag), (header::CONTENT_TYPE, json)], bytes).into_response())
}
