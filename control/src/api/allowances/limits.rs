use std::num::NonZeroU64;

use axum::extract::State;
use axum::http::{StatusCode, Uri};
use axum::response::Response;
use fastllm_contract::Limits;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::{AllowanceParams, SubjectView, change_of, detail, found};
use crate::api::framework::{
    ApiError, Caller, Json, Permission, Query, checks, page, require_permission,
};
use crate::app::AppState;
use crate::db::subject::Allowance;
use crate::db::{SubjectId, limits};

const MAX_REQUESTS: i64 = 1_000_000_000;
const MAX_TOKENS: i64 = 1_000_000_000_000;
const MAX_CONCURRENCY: i64 = 1_000_000;

pub(crate) fn routes() -> OpenApiRouter<AppState> {
    OpenApiRouter::new().routes(require_permission(Permission::UsageRead, routes!(list)))
}

/// Rate limits and a concurrency limit; `null` is unlimited.
#[derive(Serialize, ToSchema)]
pub(crate) struct LimitsView {
    requests_per_min: Option<u64>,
    /// Tokens of prompts and completions.
    tokens_per_min: Option<u64>,
    /// The number of concurrent requests.
    concurrency: Option<u64>,
}

impl From<Limits> for LimitsView {
    fn from(limits: Limits) -> Self {
        let Limits {
            requests_per_min,
            tokens_per_min,
            concurrency,
        } = limits;
        Self {
            requests_per_min: requests_per_min.map(NonZeroU64::get),
            tokens_per_min: tokens_per_min.map(NonZeroU64::get),
            concurrency: concurrency.map(NonZeroU64::get),
        }
    }
}

/// The limits of a subject.
#[derive(Serialize, ToSchema)]
struct SubjectLimits {
    id: i64,
    #[serde(flatten)]
    subject: SubjectView,
    #[serde(flatten)]
    limits: LimitsView,
}

/// The limits to set, at least one. An absent limit is unlimited.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct NewLimits {
    #[schema(minimum = 1, maximum = 1_000_000_000)]
    requests_per_min: Option<i64>,
    /// Tokens of prompts and completions.
    #[schema(minimum = 1, maximum = 1_000_000_000_000_i64)]
    tokens_per_min: Option<i64>,
    /// The number of concurrent requests.
    #[schema(minimum = 1, maximum = 1_000_000)]
    concurrency: Option<i64>,
}

impl NewLimits {
    fn check(self) -> Result<Limits, ApiError> {
        let Self {
            requests_per_min,
            tokens_per_min,
            concurrency,
        } = self;
        let limit = |field, value: Option<i64>, most| {
            let value = value
                .map(|value| checks::between(1, most)(field, value))
                .transpose()?;
            Ok::<_, ApiError>(value.and_then(|value| NonZeroU64::new(value.unsigned_abs())))
        };
        let limits = Limits {
            requests_per_min: limit("requests_per_min", requests_per_min, MAX_REQUESTS)?,
            tokens_per_min: limit("tokens_per_min", tokens_per_min, MAX_TOKENS)?,
            concurrency: limit("concurrency", concurrency, MAX_CONCURRENCY)?,
        };
        if limits == Limits::default() {
            return Err(ApiError::invalid(
                "requests_per_min",
                "give at least one of requests_per_min, tokens_per_min and concurrency",
            ));
        }
        Ok(limits)
    }
}

/// List limits
///
/// Lists the limits of principals, keys and teams, and of principals' use of
/// single models, ordered by ID.
#[utoipa::path(get, path = "/admin/limits", tag = "limits", params(AllowanceParams),
    responses((status = 200, body = Vec<SubjectLimits>, description = "The limits.")))]
async fn list(
    State(app): State<AppState>,
    uri: Uri,
    Query(params): Query<AllowanceParams>,
) -> Result<Response, ApiError> {
    let page = params.page()?;
    let mut connection = app.db.admin.begin().await?;
    let rows = limits::list(&mut connection, params.principal_id, page).await?;
    let view = |row: Allowance<Limits>| {
        let Allowance { id, subject, value } = row;
        let held = SubjectLimits {
            id,
            subject: subject.into(),
            limits: value.into(),
        };
        (id, held)
    };
    Ok(page::respond(
        &uri,
        page,
        "after",
        rows.into_iter().map(view),
    ))
}

/// Responds with a subject's limits.
pub(crate) async fn get_of(
    app: AppState,
    subject: SubjectId,
) -> Result<Json<LimitsView>, ApiError> {
    let mut connection = app.db.admin.begin().await?;
    found(&mut connection, subject).await?;
    let limits = limits::get(&mut connection, subject).await?;
    limits
        .map(|limits| Json(limits.into()))
        .ok_or_else(|| ApiError::not_found("limit: nothing is limited"))
}

/// Sets a subject's limits.
pub(crate) async fn put_of(
    caller: Caller,
    subject: SubjectId,
    Json(new): Json<NewLimits>,
) -> Result<StatusCode, ApiError> {
    let new = new.check()?;
    let mut change = change_of(caller, subject).await?;
    let connection = change.connection();
    let old = limits::get(connection, subject).await?;
    limits::put(connection, subject, &new).await?;
    let detail =
        detail(subject, "limits.set").changed(&old.map(LimitsView::from), &LimitsView::from(new));
    change.commit(detail).await
}

/// Deletes a subject's limits, if there are any.
pub(crate) async fn delete_of(caller: Caller, subject: SubjectId) -> Result<StatusCode, ApiError> {
    let mut change = change_of(caller, subject).await?;
    let connection = change.connection();
    let old = limits::get(connection, subject).await?;
    limits::delete(connection, subject).await?;
    let detail = detail(subject, "limits.delete").deleted(&old.map(LimitsView::from));
    change.commit(detail).await
}
