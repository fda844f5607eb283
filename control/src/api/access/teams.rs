use axum::extract::State;
use axum::http::{StatusCode, Uri};
use axum::response::Response;
use sqlx::PgConnection;
use time::OffsetDateTime;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::api::framework::fields::resource;
use crate::api::framework::{
    ApiError, Caller, Create, Delete, Json, ListParams, Path, Permission, Query, Resource, Update,
    checks, require_permission, resource,
};
use crate::app::AppState;
use crate::clock;
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

resource! {
    /// A group of principals that share limits and a budget.
    view TeamView from TeamRow {
        id: i64,
        #[serde(with = "time::serde::rfc3339")]
        created_at: OffsetDateTime,
        /// The number of principals in the team.
        members: i64,
    }
    /// A team to create. Principals join it with their `team_id`.
    new NewTeam;
    /// Changes to a team: an absent field keeps its value, `null` clears it.
    patch TeamPatch;
    fields {
        name: required String => checks::name,
        description: nullable String => checks::text,
    }
}

impl Resource for TeamView {
    const KIND: &'static str = "team";
    type Row = TeamRow;

    fn id(&self) -> i64 {
        self.id
    }

    async fn row(connection: &mut PgConnection, id: i64) -> Result<TeamRow, ApiError> {
        let row = teams::get(connection, id).await;
        row.map_err(ApiError::of_row("team"))
    }

    async fn view(_: &mut PgConnection, row: TeamRow) -> Result<Self, ApiError> {
        Ok(row.into())
    }
}

impl Create for TeamView {
    type New = NewTeam;

    async fn insert(connection: &mut PgConnection, new: NewTeam) -> Result<i64, ApiError> {
        let mut row = TeamRow {
            id: 0,
            name: String::new(),
            description: None,
            created_at: clock::now(),
            members: 0,
        };
        new.into_patch().apply_to(&mut row)?;
        teams::insert(connection, &row).await.map_err(taken)
    }
}

impl Update for TeamView {
    type Patch = TeamPatch;

    async fn update(
        connection: &mut PgConnection,
        mut row: TeamRow,
        patch: TeamPatch,
    ) -> Result<(), ApiError> {
        patch.apply_to(&mut row)?;
        teams::update(connection, &row).await.map_err(taken)
    }
}

impl Delete for TeamView {
    async fn delete(connection: &mut PgConnection, id: i64) -> Result<(), ApiError> {
        let in_use = ApiError::of_reference("a principal belongs to this team");
        teams::delete(connection, id).await.map_err(in_use)
    }
}

fn taken(error: DbError) -> ApiError {
    ApiError::of_unique("name", "a team with this name exists")(error)
}

/// List teams
///
/// Teams are ordered by ID.
#[utoipa::path(get, path = "/admin/teams", tag = "teams", params(ListParams),
    responses((status = 200, body = Vec<TeamView>, description = "The teams.")))]
async fn list(
    State(app): State<AppState>,
    uri: Uri,
    Query(params): Query<ListParams>,
) -> Result<Response, ApiError> {
    let page = params.page()?;
    let rows = teams::list(&mut *app.db.admin.begin().await?, page).await?;
    Ok(resource::list::<TeamView>(&uri, page, rows))
}

/// Retrieve a team
#[utoipa::path(get, path = "/admin/teams/{id}", tag = "teams", params(("id" = i64, Path, description = "ID of the team")),
    responses((status = 200, body = TeamView, description = "The team.")))]
async fn get(State(app): State<AppState>, Path(id): Path<i64>) -> Result<Json<TeamView>, ApiError> {
    resource::show(&app, id).await
}

/// Create a team
///
/// A new team has no members.
#[utoipa::path(post, path = "/admin/teams", tag = "teams", request_body = NewTeam,
    responses((status = 201, body = TeamView, description = "The created team."),
        (status = 409, description = "`duplicate`: Another team has the same name.")))]
async fn create(
    caller: Caller,
    Json(new): Json<NewTeam>,
) -> Result<(StatusCode, Json<TeamView>), ApiError> {
    let made = resource::create::<TeamView>(caller, new).await?;
    Ok((StatusCode::CREATED, Json(made)))
}

/// Update a team
#[utoipa::path(patch, path = "/admin/teams/{id}", tag = "teams", params(("id" = i64, Path, description = "ID of the team")),
    request_body = TeamPatch, responses((status = 204, description = "The team has been updated."),
        (status = 409, description = "`duplicate`: Another team has the same name.")))]
async fn update(
    caller: Caller,
    Path(id): Path<i64>,
    Json(patch): Json<TeamPatch>,
) -> Result<StatusCode, ApiError> {
    resource::update::<TeamView>(caller, id, patch).await
}

/// Delete a team
///
/// Deletes its limits and budget, too.
#[utoipa::path(delete, path = "/admin/teams/{id}", tag = "teams", params(("id" = i64, Path, description = "ID of the team")),
    responses((status = 204, description = "The team has been deleted."),
        (status = 409, description = "`in_use`: The team has members.")))]
async fn delete(caller: Caller, Path(id): Path<i64>) -> Result<StatusCode, ApiError> {
    resource::delete::<TeamView>(caller, id).await
}
