use axum::extract::State;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::api::framework::{ApiError, AuditDetail, Caller, Json, Permission, require_permission};
use crate::app::AppState;
use crate::db::models;

pub(crate) fn routes() -> OpenApiRouter<AppState> {
    OpenApiRouter::new()
        .routes(require_permission(Permission::UsageRead, routes!(get)))
        .routes(require_permission(Permission::ConfigWrite, routes!(put)))
}

/// The model that is tried after all other candidates; `null` if there is none.
#[derive(Serialize, ToSchema)]
pub(crate) struct FallbackView {
    id: Option<i64>,
    name: Option<String>,
}

/// The fallback model to set.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct NewFallback {
    /// The ID of a model, not of a virtual one; `null` for no fallback model.
    #[serde(deserialize_with = "Option::deserialize")]
    model_id: Option<i64>,
}

/// The current fallback model.
#[derive(Serialize, ToSchema)]
pub(crate) struct ChosenFallback {
    model_id: Option<i64>,
    name: Option<String>,
}

impl From<Option<(i64, String)>> for ChosenFallback {
    fn from(model: Option<(i64, String)>) -> Self {
        let (model_id, name) = model.unzip();
        Self { model_id, name }
    }
}

/// Retrieve the fallback model
#[utoipa::path(get, path = "/admin/fallback-model", tag = "fallback_model",
    responses((status = 200, body = FallbackView, description = "The fallback model.")))]
async fn get(State(app): State<AppState>) -> Result<Json<FallbackView>, ApiError> {
    let model = models::fallback(&mut *app.db.admin.begin().await?).await?;
    let (id, name) = model.unzip();
    Ok(Json(FallbackView { id, name }))
}

/// Set the fallback model
///
/// The fallback model is tried after all other candidates, for callers that may
/// use it.
#[utoipa::path(put, path = "/admin/fallback-model", tag = "fallback_model",
    request_body = NewFallback,
    responses((status = 200, body = ChosenFallback, description = "The fallback model.")))]
async fn put(
    caller: Caller,
    Json(NewFallback { model_id }): Json<NewFallback>,
) -> Result<Json<ChosenFallback>, ApiError> {
    let mut change = caller.begin_change().await?;
    let connection = change.connection();
    let before = models::fallback(connection).await?;
    models::set_fallback(connection, model_id).await?;
    let after = models::fallback(connection).await?;
    if model_id.is_some() && after.is_none() {
        return Err(ApiError::invalid("model_id", "there is no such model"));
    }
    let (before, after) = (ChosenFallback::from(before), ChosenFallback::from(after));
    let detail = AuditDetail::new("fallback_model.update").changed(&before, &after);
    change.commit(detail).await?;
    Ok(Json(after))
}
