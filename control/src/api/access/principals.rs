use axum::extract::State;
use axum::http::{StatusCode, Uri};
use axum::response::Response;
use fastllm_contract::Secret;
use serde::{Deserialize, Serialize};
use sqlx::PgConnection;
use time::OffsetDateTime;
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::api::framework::fields::view;
use crate::api::framework::{
    ApiError, AuditDetail, Caller, Json, ListParams, Patch, Path, Permission, Query, Resource,
    checks, commit, patch, require_permission, resource,
};
use crate::app::AppState;
use crate::crypto::check_policy;
use crate::db::principals::{PrincipalFields, PrincipalRow};
use crate::db::{Change, DbError, principals, roles, sessions};

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
            routes!(add_role),
        ))
        .routes(require_permission(
            Permission::ConfigWrite,
            routes!(remove_role),
        ))
        .routes(require_permission(
            Permission::ConfigWrite,
            routes!(set_password),
        ))
        .routes(require_permission(
            Permission::ConfigWrite,
            routes!(revoke_all),
        ))
}

view! {
    /// A person or service.
    pub(crate) struct PrincipalView from PrincipalRow {
        id: i64,
        /// `user` or `service_account`.
        kind: String,
        name: String,
        email: Option<String>,
        /// A disabled principal cannot log in, and gateways reject its keys.
        disabled: bool,
        #[serde(with = "time::serde::rfc3339")]
        created_at: OffsetDateTime,
        /// The names of its roles.
        roles: Vec<String>,
        has_password: bool,
        /// The ID of the team whose limits and budget it shares.
        team_id: Option<i64>,
    }
}

/// The kind of a principal.
#[derive(Debug, Clone, Copy, Default, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum PrincipalKind {
    User,
    #[default]
    ServiceAccount,
}

/// A principal to create, at first without roles.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct NewPrincipal {
    name: String,
    #[serde(default)]
    kind: PrincipalKind,
    email: Option<String>,
    /// The ID of the team whose limits and budget it shares.
    team_id: Option<i64>,
}

/// Changes to a principal: an absent field keeps its value, `null` clears it.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct PrincipalPatch {
    #[schema(value_type = Option<String>)]
    #[serde(default)]
    email: Patch<String>,
    #[schema(nullable = false)]
    #[serde(default, deserialize_with = "patch::present")]
    disabled: Option<bool>,
    /// `null` removes the principal from its team.
    #[schema(value_type = Option<i64>)]
    #[serde(default)]
    team_id: Patch<i64>,
}

/// A role to assign.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct RoleGrant {
    role: String,
}

/// A new password.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct NewPassword {
    /// At least 8 characters.
    #[schema(value_type = String, format = Password, min_length = 8)]
    password: Secret,
}

/// The number of ended sessions.
#[derive(Serialize, ToSchema)]
pub(crate) struct Revoked {
    revoked: u64,
    /// The caller's session has ended, too.
    includes_caller: bool,
}

/// Rejects a change that would leave no administrator. Call it
/// within the change, after its statements: changes are serialized.
pub(crate) async fn keep_an_administrator(change: &mut Change) -> Result<(), ApiError> {
    if principals::administrators(change.connection()).await? == 0 {
        return Err(ApiError::last_administrator());
    }
    Ok(())
}

/// Maps a reference to a missing team; returns other errors unchanged.
fn of_team(error: DbError) -> Result<ApiError, DbError> {
    match error {
        DbError::Reference { .. } => Ok(ApiError::invalid("team_id", "there is no such team")),
        other => Err(other),
    }
}

impl Resource for PrincipalView {
    const KIND: &'static str = "principal";

    fn id(&self) -> i64 {
        self.id
    }

    async fn find(connection: &mut PgConnection, id: i64) -> Result<Self, ApiError> {
        let row = principals::get(connection, id).await;
        Ok(row.map_err(ApiError::of_row("principal"))?.into())
    }
}

/// List principals
///
/// Principals are ordered by ID.
#[utoipa::path(get, path = "/admin/principals", tag = "principals", params(ListParams),
    responses((status = 200, body = Vec<PrincipalView>, description = "The principals.")))]
async fn list(
    State(app): State<AppState>,
    uri: Uri,
    Query(params): Query<ListParams>,
) -> Result<Response, ApiError> {
    let page = params.page()?;
    let rows = principals::list(&mut *app.db.acquire().await?, page).await?;
    Ok(resource::list::<PrincipalView>(&uri, page, rows))
}

/// Retrieve a principal
#[utoipa::path(get, path = "/admin/principals/{id}", tag = "principals",
    params(("id" = i64, Path, description = "ID of the principal")),
    responses((status = 200, body = PrincipalView, description = "The principal.")))]
async fn get(
    State(app): State<AppState>,
    Path(id): Path<i64>,
) -> Result<Json<PrincipalView>, ApiError> {
    resource::show(&app, id).await
}

/// Create a principal
///
/// A principal has no permissions until it is assigned a role.
#[utoipa::path(post, path = "/admin/principals", tag = "principals", request_body = NewPrincipal,
    responses((status = 201, body = PrincipalView, description = "The created principal."),
        (status = 409, description = "`duplicate`: Another principal has the same name or email.")))]
async fn create(
    State(app): State<AppState>,
    caller: Caller,
    Json(new): Json<NewPrincipal>,
) -> Result<(StatusCode, Json<PrincipalView>), ApiError> {
    let name = checks::name("name", new.name)?;
    let email = new
        .email
        .map(|email| checks::text("email", email))
        .transpose()?;
    let kind = match new.kind {
        PrincipalKind::User => "user",
        PrincipalKind::ServiceAccount => "service_account",
    };
    let mut change = caller.begin_change(&app).await?;
    let taken = ApiError::of_unique("name", "a principal with this name or email exists");
    let (email, team_id) = (email.as_deref(), new.team_id);
    let id = principals::insert(change.connection(), &name, kind, email, team_id)
        .await
        .map_err(|error| of_team(error).unwrap_or_else(taken))?;
    let made = resource::created(&app, change, id).await?;
    Ok((StatusCode::CREATED, Json(made)))
}

/// Update a principal
///
/// Disabling a principal ends its sessions; gateways reject its keys.
#[utoipa::path(patch, path = "/admin/principals/{id}", tag = "principals",
    params(("id" = i64, Path, description = "ID of the principal")), request_body = PrincipalPatch,
    responses((status = 204, description = "The principal has been updated."),
        (status = 409, description = "`duplicate`: Another principal has the same email.\n\n`last_administrator`: Nobody would be left who can log in and change the configuration.")))]
async fn update(
    State(app): State<AppState>,
    caller: Caller,
    Path(id): Path<i64>,
    Json(patch): Json<PrincipalPatch>,
) -> Result<StatusCode, ApiError> {
    let email = patch.email.try_map(|email| checks::text("email", email))?;
    let mut change = caller.begin_change(&app).await?;
    let old = PrincipalView::find(change.connection(), id).await?;
    let email = email.apply(old.email.clone());
    let disabled = patch.disabled.unwrap_or(old.disabled);
    let fields = PrincipalFields {
        email: email.as_deref(),
        disabled,
        team_id: patch.team_id.apply(old.team_id),
    };
    let taken = ApiError::of_unique("email", "a principal with this email exists");
    principals::update(change.connection(), id, &fields)
        .await
        .map_err(|error| of_team(error).unwrap_or_else(taken))?;
    if disabled && !old.disabled {
        sessions::delete_all(change.connection(), Some(id)).await?;
    }
    keep_an_administrator(&mut change).await?;
    resource::changed(&app, change, "update", &old).await
}

/// Delete a principal
///
/// Deletes its keys and sessions, too. Its usage and audit records are kept.
#[utoipa::path(delete, path = "/admin/principals/{id}", tag = "principals",
    params(("id" = i64, Path, description = "ID of the principal")), responses((status = 204, description = "The principal has been deleted."),
        (status = 409, description = "`in_use`: A rule of a virtual model names the principal.\n\n`last_administrator`: Nobody would be left who can log in and change the configuration.")))]
async fn delete(
    State(app): State<AppState>,
    caller: Caller,
    Path(id): Path<i64>,
) -> Result<StatusCode, ApiError> {
    let mut change = caller.begin_change(&app).await?;
    let old = PrincipalView::find(change.connection(), id).await?;
    let in_use = ApiError::of_reference("a rule of a virtual model names this principal");
    principals::delete(change.connection(), id)
        .await
        .map_err(in_use)?;
    keep_an_administrator(&mut change).await?;
    resource::deleted(&app, change, &old).await
}

/// Assign a role to a principal
///
/// Assigning a role that the principal already has changes nothing.
#[utoipa::path(post, path = "/admin/principals/{id}/roles", tag = "principals",
    params(("id" = i64, Path, description = "ID of the principal")), request_body = RoleGrant,
    responses((status = 204, description = "The principal has the role.")))]
async fn add_role(
    State(app): State<AppState>,
    caller: Caller,
    Path(id): Path<i64>,
    Json(grant): Json<RoleGrant>,
) -> Result<StatusCode, ApiError> {
    let mut change = caller.begin_change(&app).await?;
    PrincipalView::find(change.connection(), id).await?;
    let role = roles::find(change.connection(), &grant.role)
        .await
        .map_err(ApiError::of_row("role"))?;
    principals::add_role(change.connection(), id, role.id).await?;
    let detail = AuditDetail::new("principal.role.add")
        .id(id)
        .with("role", role.name);
    commit(&app, change, detail).await
}

/// Remove a role from a principal
#[utoipa::path(delete, path = "/admin/principals/{id}/roles/{role}", tag = "principals",
    params(("id" = i64, Path, description = "ID of the principal"), ("role" = String, Path, description = "Name of the role")),
    responses((status = 204, description = "The role has been removed."),
        (status = 409, description = "`last_administrator`: Nobody would be left who can log in and change the configuration.")))]
async fn remove_role(
    State(app): State<AppState>,
    caller: Caller,
    Path((id, role)): Path<(i64, String)>,
) -> Result<StatusCode, ApiError> {
    let mut change = caller.begin_change(&app).await?;
    PrincipalView::find(change.connection(), id).await?;
    if !principals::remove_role(change.connection(), id, &role).await? {
        return Err(ApiError::not_found("role of this principal"));
    }
    keep_an_administrator(&mut change).await?;
    let detail = AuditDetail::new("principal.role.remove")
        .id(id)
        .with("role", role);
    commit(&app, change, detail).await
}

/// Set the password of a principal
///
/// Makes the principal a user and ends its sessions.
#[utoipa::path(put, path = "/admin/principals/{id}/password", tag = "principals",
    params(("id" = i64, Path, description = "ID of the principal")), request_body = NewPassword,
    responses((status = 204, description = "The password has been set."),
        (status = 503, description = "`busy`: Too many passwords are being checked at the moment.\n\n`database_unavailable`: The database is unavailable; nothing was changed.")))]
async fn set_password(
    State(app): State<AppState>,
    caller: Caller,
    Path(id): Path<i64>,
    Json(NewPassword { password }): Json<NewPassword>,
) -> Result<StatusCode, ApiError> {
    check_policy(&password).map_err(|error| ApiError::invalid("password", error.to_string()))?;
    // Hashed before the change begins, because changes are serialized.
    let slot = app.passwords.slot().await.ok_or_else(ApiError::busy)?;
    let hash = app.passwords.hash(slot, password).await?;
    let mut change = caller.begin_change(&app).await?;
    let ended = principals::set_password(change.connection(), id, &hash)
        .await
        .map_err(ApiError::of_row("principal"))?;
    let detail = AuditDetail::new("principal.password")
        .id(id)
        .with("sessions_ended", ended)
        .secret("password", Some(true));
    commit(&app, change, detail).await
}

/// End all sessions
///
/// Ends the sessions of every principal, including the caller's.
#[utoipa::path(post, path = "/admin/sessions/revoke-all", tag = "session",
    responses((status = 200, body = Revoked, description = "The number of ended sessions.")))]
async fn revoke_all(
    State(app): State<AppState>,
    caller: Caller,
) -> Result<Json<Revoked>, ApiError> {
    let mut change = caller.begin_change(&app).await?;
    let revoked = sessions::delete_all(change.connection(), None).await?;
    let detail = AuditDetail::new("session.revoke_all").with("revoked", revoked);
    app.commit(change, detail.entry()).await?;
    Ok(Json(Revoked {
        revoked,
        includes_caller: true,
    }))
}
