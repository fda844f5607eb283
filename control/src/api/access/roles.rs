use std::mem;

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
use crate::api::framework::fields::resource;
use crate::api::framework::{
    ApiError, AuditDetail, Caller, Delete, Json, ListParams, Path, Permission, Query, Resource,
    Update, checks, require_permission, resource,
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

/// A permission on a resource.
#[derive(Serialize, ToSchema)]
pub(crate) struct PermissionView {
    verb: String,
    resource: String,
}

impl From<(String, String)> for PermissionView {
    fn from((verb, resource): (String, String)) -> Self {
        Self { verb, resource }
    }
}

resource! {
    /// A named set of permissions.
    view RoleView from RoleRow {
        id: i64,
        name: String,
        permissions: Vec<PermissionView>
            = permissions.into_iter().map(PermissionView::from).collect(),
    }
    /// A role to create, at first without permissions.
    new NewRole;
    /// Changes to a role: an absent field keeps its value, `null` clears it.
    patch RolePatch;
    fields {
        name: create_only String,
        description: nullable String => checks::text,
    }
}

/// The created object.
#[derive(Serialize, ToSchema)]
pub(crate) struct CreatedRole {
    id: i64,
    name: String,
}

/// A permission to add or remove.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = Permission)]
pub(crate) struct PermissionGrant {
    /// `usage:read`, `key:create`, `key:revoke`, `config:write`, `password:set`,
    /// `model:invoke`, `mcp:invoke` or `agent:invoke`.
    verb: String,
    /// `*` for the first five; `model/NAME`, `model/PREFIX*` or `model/*` for
    /// `model:invoke`, and likewise with `mcp/` and `agent/`.
    #[serde(default = "everything")]
    resource: String,
}

fn everything() -> String {
    "*".to_owned()
}

impl Resource for RoleView {
    const KIND: &'static str = "role";
    type Row = RoleRow;

    fn id(&self) -> i64 {
        self.id
    }

    async fn row(connection: &mut PgConnection, id: i64) -> Result<RoleRow, ApiError> {
        let row = roles::get(connection, id).await;
        row.map_err(ApiError::of_row("role"))
    }

    async fn view(_: &mut PgConnection, row: RoleRow) -> Result<Self, ApiError> {
        Ok(row.into())
    }
}

impl Update for RoleView {
    type Patch = RolePatch;

    async fn update(
        connection: &mut PgConnection,
        mut row: RoleRow,
        patch: RolePatch,
    ) -> Result<(), ApiError> {
        patch.apply_to(&mut row)?;
        Ok(roles::update(connection, row.id, row.description.as_deref()).await?)
    }
}

impl Delete for RoleView {
    async fn delete(connection: &mut PgConnection, id: i64) -> Result<(), ApiError> {
        let gone = roles::delete(connection, id).await;
        gone.map_err(|error| match error {
            DbError::Reference { constraint } if constraint.starts_with("rule_") => {
                ApiError::in_use("a rule of a virtual model names this role")
            }
            DbError::Reference { .. } => ApiError::in_use("a principal has this role"),
            other => other.into(),
        })
    }
}

/// The role of that name; 404 if there is none.
async fn named(connection: &mut PgConnection, name: &str) -> Result<RoleRow, ApiError> {
    let row = roles::find(connection, name).await;
    row.map_err(ApiError::of_row("role"))
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
    let rows = roles::list(&mut *app.db.admin.begin().await?, page).await?;
    Ok(resource::list::<RoleView>(&uri, page, rows))
}

/// Retrieve a role
#[utoipa::path(get, path = "/admin/roles/{name}", tag = "roles", params(("name" = String, Path, description = "Name of the role")),
    responses((status = 200, body = RoleView, description = "The role.")))]
async fn get(
    State(app): State<AppState>,
    Path(name): Path<String>,
) -> Result<Json<RoleView>, ApiError> {
    let row = named(&mut *app.db.admin.begin().await?, &name).await?;
    Ok(Json(row.into()))
}

/// Create a role
#[utoipa::path(post, path = "/admin/roles", tag = "roles", request_body = NewRole,
    responses((status = 201, body = CreatedRole, description = "The created role."),
        (status = 409, description = "`duplicate`: Another role has the same name.")))]
async fn create(
    caller: Caller,
    Json(mut new): Json<NewRole>,
) -> Result<(StatusCode, Json<CreatedRole>), ApiError> {
    let mut row = RoleRow {
        id: 0,
        name: role_name(mem::take(&mut new.name))?,
        description: None,
        permissions: Vec::new(),
    };
    new.into_patch().apply_to(&mut row)?;
    let RoleRow {
        name, description, ..
    } = row;
    let mut change = caller.begin_change().await?;
    let id = roles::insert(change.connection(), &name, description.as_deref())
        .await
        .map_err(ApiError::of_unique("name", "a role with this name exists"))?;
    let detail = AuditDetail::new("role.create")
        .id(id)
        .with("name", name.as_str())
        .with("description", description);
    change.commit(detail).await?;
    Ok((StatusCode::CREATED, Json(CreatedRole { id, name })))
}

/// Update a role
///
/// Changes the description.
#[utoipa::path(patch, path = "/admin/roles/{name}", tag = "roles",
    params(("name" = String, Path, description = "Name of the role")), request_body = RolePatch,
    responses((status = 204, description = "The role has been updated.")))]
async fn update(
    caller: Caller,
    Path(name): Path<String>,
    Json(patch): Json<RolePatch>,
) -> Result<StatusCode, ApiError> {
    let mut change = caller.begin_change().await?;
    let row = named(change.connection(), &name).await?;
    resource::update_row::<RoleView>(change, row, patch).await
}

/// Delete a role
#[utoipa::path(delete, path = "/admin/roles/{name}", tag = "roles",
    params(("name" = String, Path, description = "Name of the role")), responses((status = 204, description = "The role has been deleted."),
        (status = 409, description = "`in_use`: A principal has the role, or a rule of a virtual model names it.")))]
async fn delete(caller: Caller, Path(name): Path<String>) -> Result<StatusCode, ApiError> {
    let mut change = caller.begin_change().await?;
    let gone = RoleView::from(named(change.connection(), &name).await?);
    resource::delete_found(change, &gone).await
}

/// Add a permission to a role
///
/// Adding a permission that the role already has changes nothing. The caller must have the
/// permission.
#[utoipa::path(post, path = "/admin/roles/{name}/permissions", tag = "roles",
    params(("name" = String, Path, description = "Name of the role")), request_body = PermissionGrant,
    responses((status = 204, description = "The role has the permission.")))]
async fn grant(
    caller: Caller,
    Path(name): Path<String>,
    Json(PermissionGrant { verb, resource }): Json<PermissionGrant>,
) -> Result<StatusCode, ApiError> {
    grants::permission(&verb, &resource)?;
    let mut change = caller.begin_change().await?;
    let role = named(change.connection(), &name).await?;
    change
        .require_held(&[(verb.clone(), resource.clone())])
        .await?;
    roles::grant(change.connection(), role.id, &verb, &resource).await?;
    let detail = AuditDetail::new("role.grant")
        .id(role.id)
        .with("verb", verb)
        .with("resource", resource);
    change.commit(detail).await
}

/// Remove a permission from a role
///
/// Removing a permission that the role does not have changes nothing.
#[utoipa::path(delete, path = "/admin/roles/{name}/permissions", tag = "roles",
    params(("name" = String, Path, description = "Name of the role")), request_body = PermissionGrant,
    responses((status = 204, description = "The role no longer has the permission."),
        (status = 409, description = "`last_administrator`: Nobody would be left who can log in and change the configuration.")))]
async fn revoke(
    caller: Caller,
    Path(name): Path<String>,
    Json(PermissionGrant { verb, resource }): Json<PermissionGrant>,
) -> Result<StatusCode, ApiError> {
    grants::permission(&verb, &resource)?;
    let mut change = caller.begin_change().await?;
    let role = named(change.connection(), &name).await?;
    roles::revoke(change.connection(), role.id, &verb, &resource).await?;
    keep_an_administrator(change.connection()).await?;
    let detail = AuditDetail::new("role.revoke")
        .id(role.id)
        .with("verb", verb)
        .with("resource", resource);
    change.commit(detail).await
}

/// Checks the name of a role, which is part of paths.
fn role_name(text: String) -> Result<String, ApiError> {
    if text.contains(['/', '\\', '%', '?', '#']) || text == "." || text == ".." {
        return Err(ApiError::invalid(
            "name",
            "a role's name must not contain / \\ % ? # or be . or ..",
        ));
    }
    checks::name("name", text)
}
