use axum::extract::State;
use axum::http::Uri;
use axum::response::Response;
use serde::{Deserialize, Serialize};
use time::OffsetDateTime;
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::api::framework::{ApiError, Json, Permission, Query, checks, page, require_permission};
use crate::app::AppState;
use crate::db::usage;
use crate::db::usage::{Grouping, UsageFilter, UsageRow, UsageTotal};

pub(crate) fn routes() -> OpenApiRouter<AppState> {
    OpenApiRouter::new()
        .routes(require_permission(Permission::UsageRead, routes!(totals)))
        .routes(require_permission(Permission::UsageRead, routes!(events)))
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
    /// Those of the prompt that were written to the backend's cache.
    cache_write_tokens: Option<i64>,
    /// Those of the prompt that are sound.
    audio_prompt_tokens: Option<i64>,
    /// Those of the answer that are sound.
    audio_completion_tokens: Option<i64>,
    /// Images of the answer.
    images: Option<i64>,
    /// Characters that were read aloud.
    input_characters: Option<i64>,
    /// Sound that was transcribed, in milliseconds.
    audio_ms: Option<i64>,
    /// Sound that was sent or answered, in bytes.
    audio_bytes: Option<i64>,
    /// Whether the counts are the backend's own. Where they are not estimated
    /// either, they are unknown.
    usage_reported: bool,
    /// The counts are the gateway's estimate: the answer said none, broke off, or
    /// its client left.
    estimated: bool,
    /// Answered from a gateway's cache.
    cached: bool,
    /// Why the gateway refused.
    refusal: Option<String>,
    duration_ms: Option<i64>,
    ttft_ms: Option<i64>,
    status: Option<i32>,
    /// Micro-units; `null`: unknown.
    cost_micros: Option<i64>,
    /// What an answer from a gateway's cache would have cost.
    saved_cost_micros: Option<i64>,
    /// The principal's team, then.
    team_id: Option<i64>,
    /// What the client said about its request, in its types.
    #[schema(value_type = Option<Object>)]
    metadata: Option<serde_json::Value>,
}

impl From<UsageRow> for UsageEventView {
    fn from(row: UsageRow) -> Self {
        Self {
            id: row.id,
            at: row.at,
            replica: row.replica,
            principal_id: row.principal_id,
            principal: row.principal,
            key_id: row.key_id,
            model: row.model,
            requested_model: row.requested_model,
            endpoint: row.endpoint,
            request_id: row.request_id,
            attempts: row.attempts,
            prompt_tokens: row.prompt_tokens,
            completion_tokens: row.completion_tokens,
            cached_tokens: row.cached_tokens,
            reasoning_tokens: row.reasoning_tokens,
            cache_write_tokens: row.cache_write_tokens,
            audio_prompt_tokens: row.audio_prompt_tokens,
            audio_completion_tokens: row.audio_completion_tokens,
            images: row.images,
            input_characters: row.input_characters,
            audio_ms: row.audio_ms,
            audio_bytes: row.audio_bytes,
            usage_reported: row.usage_reported,
            estimated: row.estimated,
            cached: row.cached,
            refusal: row.refusal,
            duration_ms: row.duration_ms,
            ttft_ms: row.ttft_ms,
            status: row.status,
            cost_micros: row.cost_micros,
            saved_cost_micros: row.saved_cost_micros,
            team_id: row.team_id,
            metadata: row.metadata,
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
    /// Only with this key.
    key_id: Option<i64>,
    /// Only this model's.
    model: Option<String>,
    /// Only where the metadata has all members of this JSON object, in the same
    /// types: `{"job":"nightly"}`.
    metadata: Option<String>,
}

/// Lists usage events, newest first.
#[utoipa::path(get, path = "/admin/usage/events", tag = "usage", params(EventParams),
    responses((status = 200, body = Vec<UsageEventView>, description = "Events")))]
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
    let mut connection = app.db.acquire().await?;
    let rows = usage::list(&mut connection, &filter, page).await?;
    let rows = rows
        .into_iter()
        .map(|row| (row.id, UsageEventView::from(row)));
    Ok(page::answer(&uri, page, "before", rows))
}

fn members(text: &str) -> Result<serde_json::Value, ApiError> {
    serde_json::from_str::<serde_json::Map<_, _>>(text)
        .map(serde_json::Value::Object)
        .map_err(|_| ApiError::invalid("metadata", "metadata must be a JSON object"))
}

/// Usage of one group of requests, refused ones included.
#[derive(Serialize, ToSchema)]
pub(crate) struct UsageTotalView {
    /// The group's name: of the model, principal, key, team, ...; the id of a
    /// key or team that is gone; `null`: the requests that have nothing of the
    /// kind.
    key: Option<String>,
    /// Of the principal, key or team.
    id: Option<i64>,
    requests: i64,
    prompt_tokens: i64,
    completion_tokens: i64,
    /// Micro-units, without the unpriced requests.
    cost_micros: i64,
    /// What answers from gateways' caches would have cost.
    saved_cost_micros: i64,
    /// Requests whose cost nobody knows. Refused ones are not among them.
    unpriced_requests: i64,
}

impl From<UsageTotal> for UsageTotalView {
    fn from(total: UsageTotal) -> Self {
        let UsageTotal {
            key,
            id,
            requests,
            prompt_tokens,
            completion_tokens,
            cost_micros,
            saved_cost_micros,
            unpriced_requests,
        } = total;
        Self {
            key,
            id,
            requests,
            prompt_tokens,
            completion_tokens,
            cost_micros,
            saved_cost_micros,
            unpriced_requests,
        }
    }
}

/// Which usage, and how it is summed.
#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct TotalParams {
    /// `model` (the default), `principal`, `day` (of UTC), `virtual_model`,
    /// `key`, `team`, `endpoint`, or `metadata:NAME` for a member of the
    /// metadata.
    group_by: Option<String>,
    /// Only from this time on (RFC 3339).
    #[param(value_type = Option<String>, format = DateTime)]
    since: Option<String>,
    /// Only before this time (RFC 3339).
    #[param(value_type = Option<String>, format = DateTime)]
    until: Option<String>,
    /// At most so many groups, from 1 to 1000; 100 by default.
    limit: Option<i64>,
}

/// Sums usage by group, the dearest first, then those with the most requests.
#[utoipa::path(get, path = "/admin/usage", tag = "usage", params(TotalParams),
    responses((status = 200, body = Vec<UsageTotalView>, description = "Groups")))]
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
    let mut connection = app.db.acquire().await?;
    let rows = usage::totals(&mut connection, &grouping, since, until, page.limit).await?;
    Ok(Json(rows.into_iter().map(UsageTotalView::from).collect()))
}

fn grouping(name: &str) -> Result<Grouping, ApiError> {
    /// Longest name of a member of metadata, in bytes.
    const LONGEST: usize = 64;
    Ok(match name {
        "model" => Grouping::Model,
        "principal" => Grouping::Principal,
        "day" => Grouping::Day,
        "virtual_model" => Grouping::VirtualModel,
        "key" => Grouping::Key,
        "team" => Grouping::Team,
        "endpoint" => Grouping::Endpoint,
        _ => match name.strip_prefix("metadata:") {
            Some(member) if member.len() <= LONGEST && !member.contains('\0') => {
                Grouping::Metadata(member.to_owned())
            }
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
