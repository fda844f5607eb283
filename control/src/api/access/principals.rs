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

use crate::api::framework::fields::resource;
use crate::api::framework::{
    ApiError, AuditDetail, Caller, Create, Delete, Json, ListParams, Path, Permission, Query,
    Resource, Update, checks, require_permission, resource,
};
use crate::app::AppState;
use crate::clock;
use crate::crypto::check_policy;
use crate::db::principals::PrincipalRow;
use crate::db::{DbError, principals, roles, sessions};

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

resource! {
    /// A person or service.
    view PrincipalView from PrincipalRow {
        id: i64,
        /// `user` or `service_account`.
        kind: String,
        name: String,
        #[serde(with = "time::serde::rfc3339")]
        created_at: OffsetDateTime,
        /// The names of its roles.
        roles: Vec<String>,
        has_password: bool,
    }
    /// A principal to create, at first without roles.
    new NewPrincipal;
    /// Changes to a principal: an absent field keeps its value, `null` clears it.
    patch PrincipalPatch;
    fields {
        name: create_only String,
        #[serde(default)]
        kind: create_only PrincipalKind,
        email: nullable String => checks::email,
        @view {
            /// A disabled principal cannot log in, and gateways reject its keys.
        }
        disabled: patch_only bool,
        @view {
            /// The ID of the team whose limits and budget it shares.
        }
        @new {
            /// The ID of the team whose limits and budget it shares.
        }
        @patch {
            /// `null` removes the principal from its team.
        }
        team_id: nullable i64,
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

impl PrincipalKind {
    fn as_str(self) -> &'static str {
        match self {
            Self::User => "user",
            Self::ServiceAccount => "service_account",
        }
    }
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
pub(crate) async fn keep_an_administrator(connection: &mut PgConnection) -> Result<(), ApiError> {
    if principals::administrators(connection).await? == 0 {
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
    type Row = PrincipalRow;

    fn id(&self) -> i64 {
        self.id
    }

    async fn row(connection: &mut PgConnection, id: i64) -> Result<PrincipalRow, ApiError> {
        let row = principals::get(connection, id).await;
        row.map_err(ApiError::of_row("principal"))
    }

    async fn view(_: &mut PgConnection, row: PrincipalRow) -> Result<Self, ApiError> {
        Ok(row.into())
    }
}

impl Create for PrincipalView {
    type New = NewPrincipal;

    async fn insert(connection: &mut PgConnection, new: NewPrincipal) -> Result<i64, ApiError> {
        let mut row = PrincipalRow {
            id: 0,
            kind: new.kind.as_str().to_owned(),
            name: checks::name("name", new.name.clone())?,
            email: None,
            disabled: false,
            created_at: clock::now(),
            roles: Vec::new(),
            has_password: false,
            team_id: None,
        };
        new.into_patch().apply_to(&mut row)?;
        let taken = ApiError::of_unique("name", "a principal with this name or email exists");
        principals::insert(
            connection,
            &row.name,
            &row.kind,
            row.email.as_deref(),
            row.team_id,
        )
        .await
        .map_err(|error| of_team(error).unwrap_or_else(taken))
    }
}

impl Update for PrincipalView {
    type Patch = PrincipalPatch;

    async fn update(
        connection: &mut PgConnection,
        mut row: PrincipalRow,
        patch: PrincipalPatch,
    ) -> Result<(), ApiError> {
        let was_disabled = row.disabled;
        patch.apply_to(&mut row)?;
        let taken = ApiError::of_unique("email", "a principal with this email exists");
        principals::update(connection, &row)
            .await
            .map_err(|error| of_team(error).unwrap_or_else(taken))?;
        if row.disabled && !was_disabled {
            sessions::delete_all(connection, Some(row.id)).await?;
        }
        keep_an_administrator(connection).await
    }
}

impl Delete for PrincipalView {
    async fn delete(connection: &mut PgConnection, id: i64) -> Result<(), ApiError> {
        let in_use = ApiError::of_reference("a rule of a virtual model names this principal");
        principals::delete(connection, id).await.map_err(in_use)?;
        keep_an_administrator(connection).await
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
    let rows = principals::list(&mut *app.db.admin.begin().await?, page).await?;
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
    caller: Caller,
    Json(new): Json<NewPrincipal>,
) -> Result<(StatusCode, Json<PrincipalView>), ApiError> {
    let made = resource::create::<PrincipalView>(caller, new).await?;
    Ok((StatusCode::CREATED, Json(made)))
}

/// Update a principal
///
/// Disabling a principal ends its sessions; gateways reject its keys. Enabling it
/// requires all permissions that its roles grant.
#[utoipa::path(patch, path = "/admin/principals/{id}", tag = "principals",
    params(("id" = i64, Path, description = "ID of the principal")), request_body = PrincipalPatch,
    responses((status = 204, description = "The principal has been updated."),
        (status = 409, description = "`duplicate`: Another principal has the same email.\n\n`last_administrator`: Nobody would be left who can log in and change the configuration.")))]
async fn update(
    caller: Caller,
    Path(id): Path<i64>,
    Json(patch): Json<PrincipalPatch>,
) -> Result<StatusCode, ApiError> {
    let mut change = caller.begin_change().await?;
    let row = PrincipalView::row(change.connection(), id).await?;
    if row.disabled && patch.disabled == Some(false) {
        change.require_all_of(id).await?;
    }
    resource::update_row::<PrincipalView>(change, row, patch).await
}

/// Delete a principal
///
/// Deletes its keys and sessions, too. Its usage and audit records are kept.
#[utoipa::path(delete, path = "/admin/principals/{id}", tag = "principals",
    params(("id" = i64, Path, description = "ID of the principal")), responses((status = 204, description = "The principal has been deleted."),
        (status = 409, description = "`in_use`: A rule of a virtual model names the principal.\n\n`last_administrator`: Nobody would be left who can log in and change the configuration.")))]
async fn delete(caller: Caller, Path(id): Path<i64>) -> Result<StatusCode, ApiError> {
    resource::delete::<PrincipalView>(caller, id).await
}

/// Assign a role to a principal
///
/// Assigning a role that the principal already has changes nothing. The caller must have
/// all permissions of the role.
#[utoipa::path(post, path = "/admin/principals/{id}/roles", tag = "principals",
    params(("id" = i64, Path, description = "ID of the principal")), request_body = RoleGrant,
    responses((status = 204, description = "The principal has the role.")))]
async fn add_role(
    caller: Caller,
    Path(id): Path<i64>,
    Json(grant): Json<RoleGrant>,
) -> Result<StatusCode, ApiError> {
    let mut change = caller.begin_change().await?;
    PrincipalView::find(change.connection(), id).await?;
    let role = roles::find(change.connection(), &grant.role)
        .await
        .map_err(ApiError::of_row("role"))?;
    change.require_held(&role.permissions).await?;
    principals::add_role(change.connection(), id, role.id).await?;
    let detail = AuditDetail::new("principal.role.add")
        .id(id)
        .with("role", role.name);
    change.commit(detail).await
}

/// Remove a role from a principal
#[utoipa::path(delete, path = "/admin/principals/{id}/roles/{role}", tag = "principals",
    params(("id" = i64, Path, description = "ID of the principal"), ("role" = String, Path, description = "Name of the role")),
    responses((status = 204, description = "The role has been removed."),
        (status = 409, description = "`last_administrator`: Nobody would be left who can log in and change the configuration.")))]
async fn remove_role(
    caller: Caller,
    Path((id, role)): Path<(i64, String)>,
) -> Result<StatusCode, ApiError> {
    let mut change = caller.begin_change().await?;
    PrincipalView::find(change.connection(), id).await?;
    if !principals::remove_role(change.connection(), id, &role).await? {
        return Err(ApiError::not_found("role of this principal"));
    }
    keep_an_administrator(change.connection()).await?;
    let detail = AuditDetail::new("principal.role.remove")
        .id(id)
        .with("role", role);
    change.commit(detail).await
}

/// Set the password of a principal
///
/// Makes the principal a user and ends its sessions. The password of another principal
/// requires `password:set` as well, and all permissions of that principal.
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
    let mut change = caller.begin_change().await?;
    if id != change.caller() {
        change.require(Permission::PasswordSet)?;
    }
    change.require_all_of(id).await?;
    let ended = principals::set_password(change.connection(), id, &hash)
        .await
        .map_err(ApiError::of_row("principal"))?;
    let detail = AuditDetail::new("principal.password")
        .id(id)
        .with("sessions_ended", ended)
        .secret("password", Some(true));
    change.commit(detail).await
}

/// End all sessions
///
/// Ends the sessions of every principal, including the caller's.
#[utoipa::path(post, path = "/admin/sessions/revoke-all", tag = "session",
    responses((status = 200, body = Revoked, description = "The number of ended sessions.")))]
async fn revoke_all(caller: Caller) -> Result<Json<Revoked>, ApiError> {
    let mut change = caller.begin_change().await?;
    let revoked = sessions::delete_all(change.connection(), None).await?;
    let detail = AuditDetail::new("session.revoke_all").with("revoked", revoked);
    change.commit(detail).await?;
    Ok(Json(Revoked {
        revoked,
        includes_caller: true,
    }))
}
