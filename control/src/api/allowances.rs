//! Limits and budgets. Each of the four kinds of subjects has the same six routes.

mod budgets;
mod limits;

use axum::extract::State;
use axum::http::StatusCode;
use serde::Deserialize;
use sqlx::PgConnection;
use utoipa::IntoParams;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use self::budgets::{BudgetView, NewBudget};
use self::limits::{LimitsView, NewLimits};
use crate::api::framework::fields::view;
use crate::api::framework::{
    ApiError, AuditDetail, Caller, Edit, Json, Path, Permission, page, require_permission,
};
use crate::app::AppState;
use crate::db::subject::{SubjectRow, missing};
use crate::db::{Page, SubjectId};

view! {
    /// What the limits or the budget apply to: a principal, a principal's use of
    /// one model, a key or a team.
    pub(crate) struct SubjectView from SubjectRow {
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
}

/// The requested limits or budgets.
#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct AllowanceParams {
    /// The maximum number of results, from 1 to 1000 (the default).
    limit: Option<i64>,
    /// Return only objects with a greater ID.
    after: Option<i64>,
    /// Return only objects of this principal, including its use of single models.
    pub(crate) principal_id: Option<i64>,
}

impl AllowanceParams {
    /// The requested part of the list.
    pub(crate) fn page(&self) -> Result<Page, ApiError> {
        page::whole(self.limit, self.after)
    }
}

/// Begins a change of a subject's limits or budget; 404 if the subject does not exist.
pub(crate) async fn change_of(caller: Caller, subject: SubjectId) -> Result<Edit, ApiError> {
    let mut change = caller.begin_change().await?;
    found(change.connection(), subject).await?;
    Ok(change)
}

/// Returns 404 if the subject does not exist.
pub(crate) async fn found(
    connection: &mut PgConnection,
    subject: SubjectId,
) -> Result<(), ApiError> {
    match missing(connection, subject).await? {
        Some(what) => Err(ApiError::not_found(what)),
        None => Ok(()),
    }
}

/// The audit detail of a change of a subject's limits or budget.
pub(crate) fn detail(subject: SubjectId, what: &str) -> AuditDetail {
    let (kind, id) = match subject {
        SubjectId::Principal(id) => ("principal", id),
        SubjectId::Model { principal, .. } => ("principal.model", principal),
        SubjectId::Key(id) => ("key", id),
        SubjectId::Team(id) => ("team", id),
    };
    let detail = AuditDetail::new(format!("{kind}.{what}")).id(id);
    match subject {
        SubjectId::Model { model, .. } => detail.with("model_id", model),
        SubjectId::Principal(_) | SubjectId::Key(_) | SubjectId::Team(_) => detail,
    }
}

/// Declares the routes of the limits or the budget of one kind of subject, in a module
/// of their own. `$handlers` is the module with their implementation.
macro_rules! routes_of_one {
    (($handlers:ident, $view:ident, $new:ident, $noun:literal),
     $shown:literal,
     [$($show:tt)*], [$($set:tt)*], [$($remove:tt)*],
     $tag:literal, $name:literal, $path:literal, $parameters:tt,
     $ids:pat => $types:ty => $subject:expr) => {
        pub(super) mod $handlers {
            use super::super::*;

            pub(in super::super) fn routes() -> OpenApiRouter<AppState> {
                OpenApiRouter::new()
                    .routes(require_permission(Permission::UsageRead, routes!(get)))
                    .routes(require_permission(Permission::ConfigWrite, routes!(put, delete)))
            }

            #[utoipa::path(get, $($show)*, path = concat!($path, "/", $noun), tag = $tag,
                        operation_id = concat!("get_", $name, $noun), params $parameters,
                        responses((status = 200, body = $view, description = $shown)))]
            async fn get(
                State(app): State<AppState>,
                Path($ids): Path<$types>,
            ) -> Result<Json<$view>, ApiError> {
                crate::api::allowances::$handlers::get_of(app, $subject).await
            }

            #[utoipa::path(put, $($set)*, path = concat!($path, "/", $noun), tag = $tag,
                        operation_id = concat!("put_", $name, $noun), params $parameters,
                        request_body = $new, responses((status = 204, description = "The values have been set.")))]
            async fn put(
                caller: Caller,
                Path($ids): Path<$types>,
                body: Json<$new>,
            ) -> Result<StatusCode, ApiError> {
                crate::api::allowances::$handlers::put_of(caller, $subject, body).await
            }

            #[utoipa::path(delete, $($remove)*, path = concat!($path, "/", $noun), tag = $tag,
                        operation_id = concat!("delete_", $name, $noun), params $parameters,
                        responses((status = 204, description = "Nothing is limited any more.")))]
            async fn delete(
                caller: Caller,
                Path($ids): Path<$types>,
            ) -> Result<StatusCode, ApiError> {
                crate::api::allowances::$handlers::delete_of(caller, $subject).await
            }
        }
    };
}

/// Declares the six routes of one kind of subject: the module, the tag, the infix of
/// the operations' names, the path, its parameters, and the subject.
macro_rules! routes_of {
    ($module:ident, $($subject:tt)*) => {
        mod $module {
            routes_of_one!((limits, LimitsView, NewLimits, "limits"),
                "The limits.",
                [summary = "Retrieve the limits",
                    description = "Returns 404 if nothing is limited."],
                [summary = "Set the limits",
                    description = "Replaces all limits of the subject: one that is absent or \
                        `null` is unlimited from now on."],
                [summary = "Delete the limits",
                    description = "Deleting limits that are not set changes nothing."],
                $($subject)*);
            routes_of_one!((budgets, BudgetView, NewBudget, "budget"),
                "The budget.",
                [summary = "Retrieve the budget",
                    description = "With the amounts used and reserved in the current window."],
                [summary = "Set the budget",
                    description = "Replaces the totals, the window and the time zone. The \
                        amounts already used are kept and count against the new totals."],
                [summary = "Delete the budget",
                    description = "Deletes the record of the amounts already used, too: a \
                        budget that is set later starts from zero. Deleting a budget that \
                        is not set changes nothing."],
                $($subject)*);
        }
    };
}

routes_of!(of_principals, "principals", "", "/admin/principals/{id}",
    (("id" = i64, Path, description = "ID of the principal")), id => i64 => SubjectId::Principal(id));
routes_of!(of_models, "principals", "model_", "/admin/principals/{id}/models/{model_id}",
    (("id" = i64, Path, description = "ID of the principal"),
        ("model_id" = i64, Path, description = "ID of the model")),
    (principal, model) => (i64, i64) => SubjectId::Model { principal, model });
routes_of!(of_keys, "keys", "", "/admin/keys/{id}",
    (("id" = i64, Path, description = "ID of the key")), id => i64 => SubjectId::Key(id));
routes_of!(of_teams, "teams", "", "/admin/teams/{id}",
    (("id" = i64, Path, description = "ID of the team")), id => i64 => SubjectId::Team(id));

pub(crate) fn routes() -> OpenApiRouter<AppState> {
    [
        of_principals::limits::routes(),
        of_principals::budgets::routes(),
        of_models::limits::routes(),
        of_models::budgets::routes(),
        of_keys::limits::routes(),
        of_keys::budgets::routes(),
        of_teams::limits::routes(),
        of_teams::budgets::routes(),
    ]
    .into_iter()
    .chain([limits::routes(), budgets::routes()])
    .fold(OpenApiRouter::new(), OpenApiRouter::merge)
}
