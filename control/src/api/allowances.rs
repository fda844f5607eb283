//! The routes of limits and budgets of the four kinds of holders: the same six
//! for each, which are written once.

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use serde::Serialize;
use sqlx::PgConnection;
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::access::{Caller, Verb, guarded};
use super::budgets::{self, BudgetView, NewBudget};
use super::detail::Detail;
use super::error::ApiError;
use super::extract::{Body, PathOf};
use super::limits::{self, LimitsView, NewLimits};
use crate::app::App;
use crate::db::HolderId;
use crate::db::holder::{HolderRow, missing};

/// Whose it is: a principal's, its use of one model's, a key's or a team's.
#[derive(Serialize, ToSchema)]
pub(super) struct HolderView {
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    principal_id: Option<i64>,
    /// The principal's name.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    principal: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    model_id: Option<i64>,
    /// The model's name.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    model: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    key_id: Option<i64>,
    /// The key's name.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    key: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    team_id: Option<i64>,
    /// The team's name.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    team: Option<String>,
}

impl From<HolderRow> for HolderView {
    fn from(row: HolderRow) -> Self {
        let HolderRow {
            principal_id,
            principal,
            model_id,
            model,
            key_id,
            key,
            team_id,
            team,
        } = row;
        Self {
            principal_id,
            principal,
            model_id,
            model,
            key_id,
            key,
            team_id,
            team,
        }
    }
}

/// 404 where the holder is not there.
pub(super) async fn found(connection: &mut PgConnection, holder: HolderId) -> Result<(), ApiError> {
    match missing(connection, holder).await? {
        Some(what) => Err(ApiError::not_found(what)),
        None => Ok(()),
    }
}

/// The audit detail of a change of a holder's limits or budget.
pub(super) fn detail(holder: HolderId, what: &str) -> Detail {
    let (kind, id) = match holder {
        HolderId::Principal(id) => ("principal", id),
        HolderId::Model { principal, .. } => ("principal.model", principal),
        HolderId::Key(id) => ("key", id),
        HolderId::Team(id) => ("team", id),
    };
    let detail = Detail::new(format!("{kind}.{what}")).id(id);
    match holder {
        HolderId::Model { model, .. } => detail.with("model_id", model),
        HolderId::Principal(_) | HolderId::Key(_) | HolderId::Team(_) => detail,
    }
}

/// The six routes of one kind of holder, in a module of their own: `path` is the
/// holder's, `ids` what it holds, `name` begins the operations' names.
macro_rules! routes_of {
    ($module:ident, $tag:literal, $name:literal, $path:literal, $parameters:tt,
     $ids:pat => $types:ty => $holder:expr) => {
        mod $module {
            use super::*;

            pub(super) fn routes() -> OpenApiRouter<App> {
                OpenApiRouter::new()
                    .routes(guarded(Verb::UsageRead, routes!(get_limits)))
                    .routes(guarded(
                        Verb::ConfigWrite,
                        routes!(put_limits, delete_limits),
                    ))
                    .routes(guarded(Verb::UsageRead, routes!(get_budget)))
                    .routes(guarded(
                        Verb::ConfigWrite,
                        routes!(put_budget, delete_budget),
                    ))
            }

            /// Shows the limits.
            #[utoipa::path(get, path = concat!($path, "/limits"), tag = $tag,
                        operation_id = concat!("get_", $name, "limits"), params $parameters,
                        responses((status = 200, body = LimitsView, description = "The limits")))]
            async fn get_limits(
                State(app): State<App>,
                PathOf($ids): PathOf<$types>,
            ) -> Result<Json<LimitsView>, ApiError> {
                limits::get_of(app, $holder).await
            }

            /// Sets the limits in place of those before.
            #[utoipa::path(put, path = concat!($path, "/limits"), tag = $tag,
                        operation_id = concat!("put_", $name, "limits"), params $parameters,
                        request_body = NewLimits, responses((status = 204, description = "Set")))]
            async fn put_limits(
                State(app): State<App>,
                caller: Caller,
                PathOf($ids): PathOf<$types>,
                body: Body<NewLimits>,
            ) -> Result<StatusCode, ApiError> {
                limits::put_of(app, caller, $holder, body).await
            }

            /// Takes the limits away.
            #[utoipa::path(delete, path = concat!($path, "/limits"), tag = $tag,
                        operation_id = concat!("delete_", $name, "limits"), params $parameters,
                        responses((status = 204, description = "Unlimited")))]
            async fn delete_limits(
                State(app): State<App>,
                caller: Caller,
                PathOf($ids): PathOf<$types>,
            ) -> Result<StatusCode, ApiError> {
                limits::delete_of(app, caller, $holder).await
            }

            /// Shows the budget, and what is spent of it in its present window.
            #[utoipa::path(get, path = concat!($path, "/budget"), tag = $tag,
                        operation_id = concat!("get_", $name, "budget"), params $parameters,
                        responses((status = 200, body = BudgetView, description = "The budget")))]
            async fn get_budget(
                State(app): State<App>,
                PathOf($ids): PathOf<$types>,
            ) -> Result<Json<BudgetView>, ApiError> {
                budgets::get_of(app, $holder).await
            }

            /// Sets the budget in place of the one before; what is spent stays spent.
            #[utoipa::path(put, path = concat!($path, "/budget"), tag = $tag,
                        operation_id = concat!("put_", $name, "budget"), params $parameters,
                        request_body = NewBudget, responses((status = 204, description = "Set")))]
            async fn put_budget(
                State(app): State<App>,
                caller: Caller,
                PathOf($ids): PathOf<$types>,
                body: Body<NewBudget>,
            ) -> Result<StatusCode, ApiError> {
                budgets::put_of(app, caller, $holder, body).await
            }

            /// Takes the budget away, and forgets what was spent of it.
            #[utoipa::path(delete, path = concat!($path, "/budget"), tag = $tag,
                        operation_id = concat!("delete_", $name, "budget"), params $parameters,
                        responses((status = 204, description = "Unlimited")))]
            async fn delete_budget(
                State(app): State<App>,
                caller: Caller,
                PathOf($ids): PathOf<$types>,
            ) -> Result<StatusCode, ApiError> {
                budgets::delete_of(app, caller, $holder).await
            }
        }
    };
}

routes_of!(of_principals, "principals", "", "/admin/principals/{id}",
    (("id" = i64, Path)), id => i64 => HolderId::Principal(id));
routes_of!(of_models, "principals", "model_", "/admin/principals/{id}/models/{model_id}",
    (("id" = i64, Path), ("model_id" = i64, Path)),
    (principal, model) => (i64, i64) => HolderId::Model { principal, model });
routes_of!(of_keys, "keys", "", "/admin/keys/{id}",
    (("id" = i64, Path)), id => i64 => HolderId::Key(id));
routes_of!(of_teams, "teams", "", "/admin/teams/{id}",
    (("id" = i64, Path)), id => i64 => HolderId::Team(id));

pub(crate) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new()
        .merge(of_principals::routes())
        .merge(of_models::routes())
        .merge(of_keys::routes())
        .merge(of_teams::routes())
}
