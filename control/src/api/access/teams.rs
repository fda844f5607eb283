use axum::extract::State;
use axum::http::{StatusCode, Uri};
use axum::response::Response;
use serde::{Deserialize, Serialize};
use sqlx::PgConnection;
use time::OffsetDateTime;
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::api::framework::{
    ApiError, Caller, Json, ListParams, Patch, Path, Permission, Query, Resource, checks, patch,
    require_permission, resource,
};
use crate::app::AppState;
use crate::db::teams::TeamRow;
use crate::db::{DbError, teams};

pub(crate) fn routes() -> OpenApiRouter<AppState> {
    OpenApiRouter::new()
        .routes(require_permission(Permission::UsageRead, routes!(list)))
        .routes(require_permission(Permission::ConfigWrite, routes!(create)))
        .routes(require_permission(Permission::UsageRead, routes!(get)))
        .routes(require_permission(
            Permission::ConfigWrite,
            routes!(update, delete),
        ))
}

/// Principals that share limits and a budget.
#[derive(Serialize, ToSchema)]
pub(crate) struct TeamView {
    id: i64,
    name: String,
    description: Option<String>,
    #[serde(with = "time::serde::rfc3339")]
    created_at: OffsetDateTime,
    /// How many principals belong to it.
    members: i64,
}

impl From<TeamRow> for TeamView {
    fn from(row: TeamRow) -> Self {
        let TeamRow {
            id,
            name,
            description,
            created_at,
            members,
        } = row;
        Self {
            id,
            name,
            description,
            created_at,
            members,
        }
    }
}

/// A team to be made. Principals join it by their `team_id`.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct NewTeam {
    name: String,
    description: Option<String>,
}

/// Changes of a team: absent keeps, `null` clears.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct TeamPatch {
    #[schema(nullable = false)]
    #[serde(default, deserialize_with = "patch::present")]
    name: Option<String>,
    #[schema(value_type = Option<String>)]
    #[serde(default)]
    description: Patch<String>,
}

impl Resource for TeamView {
    const KIND: &'static str = "team";

    fn id(&self) -> i64 {
        self.id
    }

    async fn find(connection: &mut PgConnection, id: i64) -> Result<Self, ApiError> {
        let row = teams::get(connection, id).await;
        Ok(row.map_err(ApiError::of_row("team"))?.into())
    }
}

fn taken(error: DbError) -> ApiError {
    ApiError::of_unique("name", "there is a team of this name")(error)
}

/// Lists teams, by id.
#[utoipa::path(get, path = "/admin/teams", tag = "teams", params(ListParams),
    responses((status = 200, body = Vec<TeamView>, description = "Teams")))]
async fn list(
    State(app): State<AppState>,
    uri: Uri,
    Query(params): Query<ListParams>,
) -> Result<Response, ApiError> {
    let page = params.page()?;
    let rows = teams::list(&mut *app.db.acquire().await?, page).await?;
    Ok(resource::list::<TeamView>(&uri, page, rows))
}

/// Shows one team.
#[utoipa::path(get, path = "/admin/teams/{id}", tag = "teams", params(("id" = i64, Path)),
    responses((status = 200, body = TeamView, description = "The team")))]
async fn get(State(app): State<AppState>, Path(id): Path<i64>) -> Result<Json<TeamView>, ApiError> {
    resource::show(&app, id).await
}

/// Makes a team, at first without members.
#[utoipa::path(post, path = "/admin/teams", tag = "teams", request_body = NewTeam,
    responses((status = 201, body = TeamView, description = "Made")))]
async fn create(
    State(app): State<AppState>,
    caller: Caller,
    Json(new): Json<NewTeam>,
) -> Result<(StatusCode, Json<TeamView>), ApiError> {
    let name = checks::name("name", new.name)?;
    let description = new.description.map(checks::description).transpose()?;
    let mut change = caller.begin_change(&app).await?;
    let id = teams::insert(change.connection(), &name, description.as_deref())
        .await
        .map_err(taken)?;
    let made = resource::created(&app, change, id).await?;
    Ok((StatusCode::CREATED, Json(made)))
}

/// Changes a team's name or description.
#[utoipa::path(patch, path = "/admin/teams/{id}", tag = "teams", params(("id" = i64, Path)),
    request_body = TeamPatch, responses((status = 204, description = "Changed")))]
async fn update(
    State(app): State<AppState>,
    caller: Caller,
    Path(id): Path<i64>,
    Json(patch): Json<TeamPatch>,
) -> Result<StatusCode, ApiError> {
    let name = patch
        .name
        .map(|name| checks::name("name", name))
        .transpose()?;
    let description = patch.description.try_map(checks::description)?;
    let mut change = caller.begin_change(&app).await?;
    let connection = change.connection();
    let old = TeamView::find(connection, id).await?;
    let name = name.unwrap_or_else(|| old.name.clone());
    let description = description.apply(old.description.clone());
    teams::update(connection, id, &name, description.as_deref())
        .await
        .map_err(taken)?;
    resource::changed(&app, change, "update", &old).await
}

/// Deletes a team with its limits and budget; refused while somebody belongs to
/// it.
#[utoipa::path(delete, path = "/admin/teams/{id}", tag = "teams", params(("id" = i64, Path)),
    responses((status = 204, description = "Deleted")))]
async fn delete(
    State(app): State<AppState>,
    caller: Caller,
    Path(id): Path<i64>,
) -> Result<StatusCode, ApiError> {
    let mut change = caller.begin_change(&app).await?;
    let connection = change.connection();
    let old = TeamView::find(connection, id).await?;
    let in_use = ApiError::of_reference("a principal belongs to this team");
    teams::delete(connection, id).await.map_err(in_use)?;
    resource::deleted(&app, change, &old).await
}
