use axum::extract::State;
use axum::http::Uri;
use axum::response::Response;
use serde::{Deserialize, Serialize};
use time::OffsetDateTime;
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::access::{Verb, guarded};
use super::error::ApiError;
use super::extract::Params;
use super::page;
use crate::app::App;
use crate::db::usage;
use crate::db::usage::UsageRow;

pub(crate) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new().routes(guarded(Verb::UsageRead, routes!(events)))
}

/// One request that a backend answered, or that the gateway refused.
#[derive(Serialize, ToSchema)]
pub(crate) struct UsageEventView {
    id: i64,
    #[serde(with = "time::serde::rfc3339")]
    at: OffsetDateTime,
    /// The gateway that it came through.
    replica: String,
    principal_id: i64,
    /// The principal's name at that time.
    principal: String,
    key_id: Option<i64>,
    /// The model that answered, or for which the request was refused.
    model: String,
    /// The name that was asked for, where it is another.
    requested_model: Option<String>,
    /// The path below `/v1`, as `/chat/completions`.
    endpoint: Option<String>,
    /// As the client and the backend know it.
    request_id: Option<String>,
    /// How often a backend was asked.
    attempts: Option<i64>,
    prompt_tokens: i64,
    completion_tokens: i64,
    /// Those of the prompt that came from the backend's cache; `null`: it did
    /// not say.
    cached_tokens: Option<i64>,
    /// Those of the answer that were spent on reasoning; `null`: the backend did
    /// not say.
    reasoning_tokens: Option<i64>,
    /// Whether the counts are the backend's own. Where they are not estimated
    /// either, they are unknown.
    usage_reported: bool,
    /// The counts are the gateway's estimate: the answer broke off, or its
    /// client left.
    estimated: bool,
    /// Why the gateway refused.
    refusal: Option<String>,
    duration_ms: Option<i64>,
    ttft_ms: Option<i64>,
    status: Option<i32>,
    /// Micro-units; `null`: unknown.
    cost_micros: Option<i64>,
}

impl From<UsageRow> for UsageEventView {
    fn from(row: UsageRow) -> Self {
        let UsageRow {
            id,
            at,
            replica,
            principal_id,
            principal,
            key_id,
            model,
            requested_model,
            endpoint,
            request_id,
            attempts,
            prompt_tokens,
            completion_tokens,
            cached_tokens,
            reasoning_tokens,
            usage_reported,
            estimated,
            refusal,
            duration_ms,
            ttft_ms,
            status,
            cost_micros,
        } = row;
        Self {
            id,
            at,
            replica,
            principal_id,
            principal,
            key_id,
            model,
            requested_model,
            endpoint,
            request_id,
            attempts,
            prompt_tokens,
            completion_tokens,
            cached_tokens,
            reasoning_tokens,
            usage_reported,
            estimated,
            refusal,
            duration_ms,
            ttft_ms,
            status,
            cost_micros,
        }
    }
}

/// Which events.
#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct EventParams {
    /// At most so many, from 1 to 1000; 100 by default.
    limit: Option<i64>,
    /// Only ids below this one.
    before: Option<i64>,
    /// Only this principal's.
    principal_id: Option<i64>,
    /// Only this model's.
    model: Option<String>,
}

/// Lists usage events, newest first.
#[utoipa::path(get, path = "/admin/usage/events", tag = "usage", params(EventParams),
    responses((status = 200, body = Vec<UsageEventView>, description = "Events")))]
async fn events(
    State(app): State<App>,
    uri: Uri,
    Params(params): Params<EventParams>,
) -> Result<Response, ApiError> {
    let EventParams {
        limit,
        before,
        principal_id,
        model,
    } = params;
    let page = page::page(limit, 100, before)?;
    let mut connection = app.db.acquire().await?;
    let rows = usage::list(&mut connection, principal_id, model.as_deref(), page).await?;
    let rows = rows
        .into_iter()
        .map(|row| (row.id, UsageEventView::from(row)))
        .collect();
    Ok(page::answer(&uri, page, "before", rows))
}
