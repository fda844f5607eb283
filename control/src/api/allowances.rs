//! The routes of limits and budgets of the four kinds of holders: the same six
//! for each, which are written once.

mod budgets;
mod limits;

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use serde::{Deserialize, Serialize};
use sqlx::PgConnection;
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use self::budgets::{BudgetView, NewBudget};
use self::limits::{LimitsView, NewLimits};
use crate::api::framework::{ApiError, Body, Caller, Detail, PathOf, Verb, guarded, page};
use crate::app::App;
use crate::db::holder::{HolderRow, missing};
use crate::db::{Change, HolderId, Page};

/// Whose it is: a principal's, its use of one model's, a key's or a team's.
#[derive(Serialize, ToSchema)]
pub(crate) struct HolderView {
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

/// Whose limits or budgets, and which part of the list.
#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct HeldParams {
    /// At most so many, from 1 to 1000 (the default).
    limit: Option<i64>,
    /// Only ids above this one.
    after: Option<i64>,
    /// Only this principal's, and those of its use of single models.
    pub(crate) principal_id: Option<i64>,
}

impl HeldParams {
    /// Everything where nothing else is asked for.
    pub(crate) fn page(&self) -> Result<Page, ApiError> {
        page::whole(self.limit, self.after)
    }
}

/// Begins a change of what a holder has; 404 where the holder is not there.
pub(crate) async fn change_of(
    app: &App,
    caller: Caller,
    holder: HolderId,
) -> Result<Change, ApiError> {
    let mut change = caller.begin_change(&app).await?;
    found(change.connection(), holder).await?;
    Ok(change)
}

/// 404 where the holder is not there.
pub(crate) async fn found(connection: &mut PgConnection, holder: HolderId) -> Result<(), ApiError> {
    match missing(connection, holder).await? {
        Some(what) => Err(ApiError::not_found(what)),
        None => Ok(()),
    }
}

/// The audit detail of a change of a holder's limits or budget.
pub(crate) fn detail(holder: HolderId, what: &str) -> Detail {
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

/// Three routes of one kind of holder, in a module of their own: for what
/// `$handlers` has the handlers of.
macro_rules! routes_of_one {
    (($handlers:ident, $view:ident, $new:ident, $noun:literal),
     [$show:literal, $set:literal, $remove:literal, $shown:literal],
     $tag:literal, $name:literal, $path:literal, $parameters:tt,
     $ids:pat => $types:ty => $holder:expr) => {
        pub(super) mod $handlers {
            use super::super::*;

            pub(in super::super) fn routes() -> OpenApiRouter<App> {
                OpenApiRouter::new()
                    .routes(guarded(Verb::UsageRead, routes!(get)))
                    .routes(guarded(Verb::ConfigWrite, routes!(put, delete)))
            }

            #[doc = $show]
            #[utoipa::path(get, path = concat!($path, "/", $noun), tag = $tag,
                        operation_id = concat!("get_", $name, $noun), params $parameters,
                        responses((status = 200, body = $view, description = $shown)))]
            async fn get(
                State(app): State<App>,
                PathOf($ids): PathOf<$types>,
            ) -> Result<Json<$view>, ApiError> {
                crate::api::allowances::$handlers::get_of(app, $holder).await
            }

            #[doc = $set]
            #[utoipa::path(put, path = concat!($path, "/", $noun), tag = $tag,
                        operation_id = concat!("put_", $name, $noun), params $parameters,
                        request_body = $new, responses((status = 204, description = "Set")))]
            async fn put(
                State(app): State<App>,
                caller: Caller,
                PathOf($ids): PathOf<$types>,
                body: Body<$new>,
            ) -> Result<StatusCode, ApiError> {
                crate::api::allowances::$handlers::put_of(app, caller, $holder, body).await
            }

            #[doc = $remove]
            #[utoipa::path(delete, path = concat!($path, "/", $noun), tag = $tag,
                        operation_id = concat!("delete_", $name, $noun), params $parameters,
                        responses((status = 204, description = "Unlimited")))]
            async fn delete(
                State(app): State<App>,
                caller: Caller,
                PathOf($ids): PathOf<$types>,
            ) -> Result<StatusCode, ApiError> {
                crate::api::allowances::$handlers::delete_of(app, caller, $holder).await
            }
        }
    };
}

/// The six routes of one kind of holder, in a module of their own: its tag, how the
/// operations' names go on, its path and parameters, and what it holds.
macro_rules! routes_of {
    ($module:ident, $($holder:tt)*) => {
        mod $module {
            routes_of_one!((limits, LimitsView, NewLimits, "limits"),
                ["Shows the limits.", "Sets the limits in place of those before.",
                 "Takes the limits away.", "The limits"],
                $($holder)*);
            routes_of_one!((budgets, BudgetView, NewBudget, "budget"),
                ["Shows the budget, and what is spent of it in its present window.",
                 "Sets the budget in place of the one before; what is spent stays spent.",
                 "Takes the budget away, and forgets what was spent of it.", "The budget"],
                $($holder)*);
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
