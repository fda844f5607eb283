use axum::extract::State;
use axum::http::{StatusCode, Uri};
use axum::response::Response;
use serde::{Deserialize, Serialize};
use sqlx::PgConnection;
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::grants;
use super::principals::keep_an_administrator;
use crate::api::framework::{
    ApiError, AuditDetail, Caller, Json, ListParams, Patch, Path, Permission, Query, Resource,
    checks, commit, require_permission, resource,
};
use crate::app::AppState;
use crate::db::roles::RoleRow;
use crate::db::{DbError, roles};

pub(crate) fn routes() -> OpenApiRouter<AppState> {
    OpenApiRouter::new()
        .routes(require_permission(Permission::UsageRead, routes!(list)))
        .routes(require_permission(Permission::ConfigWrite, routes!(create)))
        .routes(require_permission(Permission::UsageRead, routes!(get)))
        .routes(require_permission(
            Permission::ConfigWrite,
            routes!(update, delete),
        ))
        .routes(require_permission(
            Permission::ConfigWrite,
            routes!(grant, revoke),
        ))
}

/// A named set of permissions.
#[derive(Serialize, ToSchema)]
pub(crate) struct RoleView {
    id: i64,
    name: String,
    description: Option<String>,
    permissions: Vec<PermissionView>,
}

/// A permission on a resource.
#[derive(Serialize, ToSchema)]
pub(crate) struct PermissionView {
    verb: String,
    resource: String,
}

impl From<RoleRow> for RoleView {
    fn from(row: RoleRow) -> Self {
        let RoleRow {
            id,
            name,
            description,
            permissions,
        } = row;
        let permissions = permissions
            .into_iter()
            .map(|(verb, resource)| PermissionView { verb, resource })
            .collect();
        Self {
            id,
            name,
            description,
            permissions,
        }
    }
}

/// A role to create, at first without permissions.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct NewRole {
    name: String,
    description: Option<String>,
}

/// The created object.
#[derive(Serialize, ToSchema)]
pub(crate) struct CreatedRole {
    id: i64,
    name: String,
}

/// Changes to a role: an absent field keeps its value, `null` clears it.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct RolePatch {
    #[schema(value_type = Option<String>)]
    #[serde(default)]
    description: Patch<String>,
}

/// A permission to add or remove.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = Permission)]
pub(crate) struct PermissionGrant {
    /// `usage:read`, `key:create`, `key:revoke`, `config:write`,
    /// `model:invoke`, `mcp:invoke` or `agent:invoke`.
    verb: String,
    /// `*` for the first four; `model/NAME`, `model/PREFIX*` or `model/*` for
    /// `model:invoke`, and likewise with `mcp/` and `agent/`.
    #[serde(default = "everything")]
    resource: String,
}

fn everything() -> String {
    "*".to_owned()
}

impl Resource for RoleView {
    const KIND: &'static str = "role";

    fn id(&self) -> i64 {
        self.id
    }

    async fn find(connection: &mut PgConnection, id: i64) -> Result<Self, ApiError> {
        let row = roles::get(connection, id).await;
        Ok(row.map_err(ApiError::of_row("role"))?.into())
    }
}

/// The role of that name; 404 if there is none.
async fn named(connection: &mut PgConnection, name: &str) -> Result<RoleView, ApiError> {
    let row = roles::find(connection, name).await;
    Ok(row.map_err(ApiError::of_row("role"))?.into())
}

/// List roles
///
/// Roles are ordered by ID.
#[utoipa::path(get, path = "/admin/roles", tag = "roles", params(ListParams),
    responses((status = 200, body = Vec<RoleView>, description = "The roles and their permissions.")))]
async fn list(
    State(app): State<AppState>,
    uri: Uri,
    Query(params): Query<ListParams>,
) -> Result<Response, ApiError> {
    let page = params.page()?;
    let rows = roles::list(&mut *app.db.acquire().await?, page).await?;
    Ok(resource::list::<RoleView>(&uri, page, rows))
}

/// Retrieve a role
#[utoipa::path(get, path = "/admin/roles/{name}", tag = "roles", params(("name" = String, Path, description = "Name of the role")),
    responses((status = 200, body = RoleView, description = "The role.")))]
async fn get(
    State(app): State<AppState>,
    Path(name): Path<String>,
) -> Result<Json<RoleView>, ApiError> {
    Ok(Json(named(&mut *app.db.acquire().await?, &name).await?))
}

/// Create a role
#[utoipa::path(post, path = "/admin/roles", tag = "roles", request_body = NewRole,
    responses((status = 201, body = CreatedRole, description = "The created role."),
        (status = 409, description = "`duplicate`: Another role has the same name.")))]
async fn create(
    State(app): State<AppState>,
    caller: Caller,
    Json(new): Json<NewRole>,
) -> Result<(StatusCode, Json<CreatedRole>), ApiError> {
    let name = role_name(new.name)?;
    let description = new
        .description
        .map(|text| checks::text("description", text))
        .transpose()?;
    let mut change = caller.begin_change(&app).await?;
    let id = roles::insert(change.connection(), &name, description.as_deref())
        .await
        .map_err(ApiError::of_unique("name", "a role with this name exists"))?;
    let detail = AuditDetail::new("role.create")
        .id(id)
        .with("name", name.as_str())
        .with("description", description);
    app.commit(change, detail.entry()).await?;
    Ok((StatusCode::CREATED, Json(CreatedRole { id, name })))
}

/// Update a role
///
/// Changes the description.
#[utoipa::path(patch, path = "/admin/roles/{name}", tag = "roles",
    params(("name" = String, Path, description = "Name of the role")), request_body = RolePatch,
    responses((status = 204, description = "The role has been updated.")))]
async fn update(
    State(app): State<AppState>,
    caller: Caller,
    Path(name): Path<String>,
    Json(patch): Json<RolePatch>,
) -> Result<StatusCode, ApiError> {
    let description = patch
        .description
        .try_map(|text| checks::text("description", text))?;
    let mut change = caller.begin_change(&app).await?;
    let old = named(change.connection(), &name).await?;
    let description = description.apply(old.description.clone());
    roles::update(change.connection(), old.id, description.as_deref()).await?;
    resource::changed(&app, change, "update", &old).await
}

/// Delete a role
#[utoipa::path(delete, path = "/admin/roles/{name}", tag = "roles",
    params(("name" = String, Path, description = "Name of the role")), responses((status = 204, description = "The role has been deleted."),
        (status = 409, description = "`in_use`: A principal has the role, or a rule of a virtual model names it.")))]
async fn delete(
    State(app): State<AppState>,
    caller: Caller,
    Path(name): Path<String>,
) -> Result<StatusCode, ApiError> {
    let mut change = caller.begin_change(&app).await?;
    let old = named(change.connection(), &name).await?;
    roles::delete(change.connection(), old.id)
        .await
        .map_err(|error| match error {
            DbError::Reference { constraint } if constraint.starts_with("rule_") => {
                ApiError::in_use("a rule of a virtual model names this role")
            }
            DbError::Reference { .. } => ApiError::in_use("a principal has this role"),
            other => other.into(),
        })?;
    resource::deleted(&app, change, &old).await
}

/// Add a permission to a role
///
/// Adding a permission that the role already has changes nothing.
#[utoipa::path(post, path = "/admin/roles/{name}/permissions", tag = "roles",
    params(("name" = String, Path, description = "Name of the role")), request_body = PermissionGrant,
    responses((status = 204, description = "The role has the permission.")))]
async fn grant(
    State(app): State<AppState>,
    caller: Caller,
    Path(name): Path<String>,
    Json(PermissionGrant { verb, resource }): Json<PermissionGrant>,
) -> Result<StatusCode, ApiError> {
    grants::permission(&verb, &resource)?;
    let mut change = caller.begin_change(&app).await?;
    let role = named(change.connection(), &name).await?;
    roles::grant(change.connection(), role.id, &verb, &resource).await?;
    let detail = AuditDetail::new("role.grant")
        .id(role.id)
        .with("verb", verb)
        .with("resource", resource);
    commit(&app, change, detail).await
}

/// Remove a permission from a role
///
/// Removing a permission that the role does not have changes nothing.
#[utoipa::path(delete, path = "/admin/roles/{name}/permissions", tag = "roles",
    params(("name" = String, Path, description = "Name of the role")), request_body = PermissionGrant,
    responses((status = 204, description = "The role no longer has the permission."),
        (status = 409, description = "`last_administrator`: Nobody would be left who can log in and change the configuration.")))]
async fn revoke(
    State(app): State<AppState>,
    caller: Caller,
    Path(name): Path<String>,
    Json(PermissionGrant { verb, resource }): Json<PermissionGrant>,
) -> Result<StatusCode, ApiError> {
    grants::permission(&verb, &resource)?;
    let mut change = caller.begin_change(&app).await?;
    let role = named(change.connection(), &name).await?;
    roles::revoke(change.connection(), role.id, &verb, &resource).await?;
    keep_an_administrator(&mut change).await?;
    let detail = AuditDetail::new("role.revoke")
        .id(role.id)
        .with("verb", verb)
        .with("resource", resource);
    commit(&app, change, detail).await
}

/// Checks the name of a role, which is part of paths.
fn role_name(text: String) -> Result<String, ApiError> {
    if text.contains(['/', '%', '?', '#']) {
        return Err(ApiError::invalid(
            "name",
            "a role's name must not contain / % ? #",
        ));
    }
    checks::name("name", text)
}
