use axum::extract::State;
use axum::http::Uri;
use axum::response::Response;
use fastllm_contract::Metadata;
use serde::Deserialize;
use time::OffsetDateTime;
use utoipa::IntoParams;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::report;
use crate::api::framework::fields::view;
use crate::api::framework::{ApiError, Json, Permission, Query, checks, page, require_permission};
use crate::app::AppState;
use crate::db::usage;
use crate::db::usage::{Grouping, UsageFilter, UsageRow, UsageTotal};

pub(crate) fn routes() -> OpenApiRouter<AppState> {
    OpenApiRouter::new()
        .routes(require_permission(Permission::UsageRead, routes!(totals)))
        .routes(require_permission(Permission::UsageRead, routes!(events)))
}

view! {
    /// One request that a backend responded to or that the gateway rejected.
    pub(crate) struct UsageEventView from UsageRow {
        id: i64,
        #[serde(with = "time::serde::rfc3339")]
        at: OffsetDateTime,
        /// The gateway that handled the request.
        replica: String,
        principal_id: i64,
        /// The name of the principal at that time.
        principal: String,
        key_id: Option<i64>,
        /// The model that responded, or for which the request was rejected.
        model: String,
        /// The requested name, if it is another one.
        requested_model: Option<String>,
        /// The path below `/v1`, such as `/chat/completions`.
        endpoint: Option<String>,
        /// The request ID that the client and the backend received.
        request_id: Option<String>,
        /// The number of attempts at backends.
        attempts: Option<i64>,
        prompt_tokens: i64,
        completion_tokens: i64,
        /// Prompt tokens read from the backend's cache; `null` if not reported.
        cached_tokens: Option<i64>,
        /// Completion tokens spent on reasoning; `null` if not reported.
        reasoning_tokens: Option<i64>,
        /// Prompt tokens written to the backend's cache.
        cache_write_tokens: Option<i64>,
        /// Audio tokens of the prompt.
        audio_prompt_tokens: Option<i64>,
        /// Audio tokens of the completion.
        audio_completion_tokens: Option<i64>,
        /// Generated images.
        images: Option<i64>,
        /// Characters converted to speech.
        input_characters: Option<i64>,
        /// Duration of transcribed audio, in milliseconds.
        audio_ms: Option<i64>,
        /// Size of audio in the request or the response, in bytes.
        audio_bytes: Option<i64>,
        /// Whether the backend reported the counts. If they are not estimated either, they
        /// are unknown.
        usage_reported: bool,
        /// The counts are the gateway's estimate: the response contained none or was
        /// aborted, or the client disconnected.
        estimated: bool,
        /// The response came from a gateway's cache.
        cached: bool,
        /// The reason why the gateway rejected the request.
        refusal: Option<String>,
        duration_ms: Option<i64>,
        ttft_ms: Option<i64>,
        status: Option<i32>,
        /// In micro-units; `null` if unknown.
        cost_micros: Option<i64>,
        /// The cost that a cached response saved.
        saved_cost_micros: Option<i64>,
        /// The principal's team at that time.
        team_id: Option<i64>,
        /// The metadata that the client sent.
        #[schema(value_type = Option<Object>)]
        metadata: Option<serde_json::Value>,
    }
}

/// The requested usage events.
#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct EventParams {
    /// The maximum number of results, from 1 to 1000; 100 by default.
    limit: Option<i64>,
    /// Return only objects with a smaller ID.
    before: Option<i64>,
    /// Return only objects of this principal.
    principal_id: Option<i64>,
    /// Return only requests with this key.
    key_id: Option<i64>,
    /// Return only requests to this model.
    model: Option<String>,
    /// Return only requests whose metadata contains all members of this JSON object, such
    /// as `{"job":"nightly"}`. The JSON type counts: `{"batch":42}` does not match the
    /// string "42", nor `{"batch":"42"}` the number. Lists have to contain all texts, such
    /// as `{"tags":["team:search"]}`.
    metadata: Option<String>,
}

/// List usage events
///
/// Lists single requests, newest first.
#[utoipa::path(get, path = "/admin/usage/events", tag = "usage", params(EventParams),
    responses((status = 200, body = Vec<UsageEventView>, description = "The usage events.")))]
async fn events(
    State(app): State<AppState>,
    uri: Uri,
    Query(params): Query<EventParams>,
) -> Result<Response, ApiError> {
    let EventParams {
        limit,
        before,
        principal_id,
        key_id,
        model,
        metadata,
    } = params;
    let page = page::page(limit, 100, before)?;
    let filter = UsageFilter {
        principal_id,
        key_id,
        model,
        metadata: metadata.as_deref().map(members).transpose()?,
    };
    let rows = report(&app, async |connection| {
        usage::list(connection, &filter, page).await
    })
    .await?;
    let rows = rows
        .into_iter()
        .map(|row| (row.id, UsageEventView::from(row)));
    Ok(page::respond(&uri, page, "before", rows))
}

fn members(text: &str) -> Result<serde_json::Value, ApiError> {
    serde_json::from_str::<serde_json::Map<_, _>>(text)
        .map(serde_json::Value::Object)
        .map_err(|_| ApiError::invalid("metadata", "metadata must be a JSON object"))
}

view! {
    /// Usage of one group of requests, including rejected ones.
    pub(crate) struct UsageTotalView from UsageTotal {
        /// The name of the model, principal, key, team, ...; the ID of a deleted key or
        /// team; `null` for the requests that have none.
        key: Option<String>,
        /// The value of the member in its type, for `metadata:NAME`: the number 42 and
        /// the string "42" are two groups, although both have the key `42`. `null` for
        /// the requests that have none.
        value: Option<serde_json::Value>,
        /// The ID of the principal, key or team.
        id: Option<i64>,
        requests: i64,
        prompt_tokens: i64,
        completion_tokens: i64,
        /// In micro-units, without the unpriced requests.
        cost_micros: i64,
        /// The cost that cached responses saved.
        saved_cost_micros: i64,
        /// Requests of unknown cost, without rejected ones.
        unpriced_requests: i64,
    }
}

/// The period and the grouping.
#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct TotalParams {
    /// `model` (the default), `principal`, `day` (UTC), `virtual_model`, `key`,
    /// `team`, `endpoint`, or `metadata:NAME` for a member of the metadata, by type and
    /// value. If its value is a list, a request counts in the group of each text.
    group_by: Option<String>,
    /// Start of the period, inclusive (RFC 3339).
    #[param(value_type = Option<String>, format = DateTime)]
    since: Option<String>,
    /// End of the period, exclusive (RFC 3339).
    #[param(value_type = Option<String>, format = DateTime)]
    until: Option<String>,
    /// The maximum number of groups, from 1 to 1000; 100 by default.
    limit: Option<i64>,
}

/// Summarize usage
///
/// Returns the usage of each group, most expensive first, then by the number of
/// requests.
#[utoipa::path(get, path = "/admin/usage", tag = "usage", params(TotalParams),
    responses((status = 200, body = Vec<UsageTotalView>, description = "The groups.")))]
async fn totals(
    State(app): State<AppState>,
    Query(params): Query<TotalParams>,
) -> Result<Json<Vec<UsageTotalView>>, ApiError> {
    let TotalParams {
        group_by,
        since,
        until,
        limit,
    } = params;
    let grouping = grouping(group_by.as_deref().unwrap_or("model"))?;
    let page = page::page(limit, 100, None)?;
    let since = since.map(|text| checks::time("since", &text)).transpose()?;
    let until = until.map(|text| checks::time("until", &text)).transpose()?;
    if since
        .zip(until)
        .is_some_and(|(since, until)| since >= until)
    {
        return Err(ApiError::invalid("until", "until must be after since"));
    }
    let rows = report(&app, async |connection| {
        usage::totals(connection, &grouping, since, until, page.limit).await
    })
    .await?;
    Ok(Json(rows.into_iter().map(UsageTotalView::from).collect()))
}

fn grouping(name: &str) -> Result<Grouping, ApiError> {
    Ok(match name {
        "model" => Grouping::Model,
        "principal" => Grouping::Principal,
        "day" => Grouping::Day,
        "virtual_model" => Grouping::VirtualModel,
        "key" => Grouping::Key,
        "team" => Grouping::Team,
        "endpoint" => Grouping::Endpoint,
        _ => match name.strip_prefix("metadata:") {
            Some(member) if Metadata::is_name(member) => Grouping::Metadata(member.to_owned()),
            _ => {
                return Err(ApiError::invalid(
                    "group_by",
                    "group_by must be model, principal, day, virtual_model, key, team, endpoint \
                     or metadata:NAME",
                ));
            }
        },
    })
}
