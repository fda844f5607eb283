use std::mem;
use std::time::Duration;

use axum::extract::State;
use axum::http::{StatusCode, Uri};
use axum::response::Response;
use serde::{Deserialize, Serialize};
use sqlx::PgConnection;
use time::OffsetDateTime;
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::api::framework::fields::resource;
use crate::api::framework::{
    ApiError, Caller, Json, Path, Permission, Query, Resource, checks, page, require_permission,
    resource,
};
use crate::app::AppState;
use crate::clock;
use crate::crypto::ApiKey;
use crate::db::keys::KeyRow;
use crate::db::{DbError, keys, principals};

/// The default lifetime of a key.
const DEFAULT_LIFETIME: Duration = Duration::from_hours(90 * 24);

pub(crate) fn routes() -> OpenApiRouter<AppState> {
    OpenApiRouter::new()
        .routes(require_permission(Permission::UsageRead, routes!(list)))
        .routes(require_permission(Permission::KeyCreate, routes!(create)))
        .routes(require_permission(Permission::UsageRead, routes!(get)))
        .routes(require_permission(Permission::ConfigWrite, routes!(update)))
        .routes(require_permission(Permission::KeyRevoke, routes!(revoke)))
}

resource! {
    /// An API key. The secret is returned only when the key is created.
    view KeyView from KeyRow {
        id: i64,
        /// The first 11 characters of the key.
        prefix: String,
        principal_id: i64,
        /// The name of the principal.
        principal: String,
        /// `null` means never.
        #[serde(with = "time::serde::rfc3339::option")]
        expires_at: Option<OffsetDateTime>,
        #[serde(with = "time::serde::rfc3339")]
        created_at: OffsetDateTime,
        /// Accurate to one minute.
        #[serde(with = "time::serde::rfc3339::option")]
        last_used_at: Option<OffsetDateTime>,
    }
    /// A key to create.
    new KeyRequest;
    /// Changes to a key: an absent field keeps its value, `null` clears it.
    patch KeyPatch;
    fields {
        name: required String => checks::name,
        principal_id: create_only i64,
        @new {
            /// By default 90 days from now; `null` means never.
        }
        @patch {
            /// `null` means never.
        }
        expires_at: custom nullable String [format = DateTime],
        disabled: patch_only bool,
    }
}

impl KeyPatch {
    /// Checks the given fields and stores them in the row.
    fn change(mut self, row: &mut KeyRow) -> Result<(), ApiError> {
        let expires_at = mem::take(&mut self.expires_at).try_map(|text| expiry(&text))?;
        row.expires_at = expires_at.apply(row.expires_at);
        self.apply_to(row)
    }
}

/// The created key. The secret cannot be retrieved again.
#[derive(Serialize, ToSchema)]
pub(crate) struct CreatedKey {
    id: i64,
    key: String,
    #[serde(with = "time::serde::rfc3339::option")]
    expires_at: Option<OffsetDateTime>,
}

/// The requested keys.
#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct KeyListParams {
    /// The maximum number of results, from 1 to 1000 (the default).
    limit: Option<i64>,
    /// Return only objects with a greater ID.
    after: Option<i64>,
    /// Return only objects of this principal.
    principal_id: Option<i64>,
}

impl Resource for KeyView {
    const KIND: &'static str = "key";
    type Row = KeyRow;

    fn id(&self) -> i64 {
        self.id
    }

    async fn row(connection: &mut PgConnection, id: i64) -> Result<KeyRow, ApiError> {
        let row = keys::get(connection, id).await;
        row.map_err(ApiError::of_row("key"))
    }

    async fn view(_: &mut PgConnection, row: KeyRow) -> Result<Self, ApiError> {
        Ok(row.into())
    }
}

fn expiry(text: &str) -> Result<OffsetDateTime, ApiError> {
    in_the_future(checks::time("expires_at", text)?)
}

/// List keys
///
/// Keys are ordered by ID.
#[utoipa::path(get, path = "/admin/keys", tag = "keys", params(KeyListParams),
    responses((status = 200, body = Vec<KeyView>, description = "The keys.")))]
async fn list(
    State(app): State<AppState>,
    uri: Uri,
    Query(params): Query<KeyListParams>,
) -> Result<Response, ApiError> {
    let page = page::whole(params.limit, params.after)?;
    let mut connection = app.db.admin.begin().await?;
    let rows = keys::list(&mut connection, params.principal_id, page).await?;
    Ok(resource::list::<KeyView>(&uri, page, rows))
}

/// Retrieve a key
///
/// The secret itself is not returned.
#[utoipa::path(get, path = "/admin/keys/{id}", tag = "keys", params(("id" = i64, Path, description = "ID of the key")),
    responses((status = 200, body = KeyView, description = "The key.")))]
async fn get(State(app): State<AppState>, Path(id): Path<i64>) -> Result<Json<KeyView>, ApiError> {
    resource::show(&app, id).await
}

/// Create a key
///
/// The response is the only place where the secret is ever returned. A key of another
/// principal requires all permissions of that principal.
#[utoipa::path(post, path = "/admin/keys", tag = "keys", request_body = KeyRequest,
    responses((status = 200, body = CreatedKey, description = "The key and its secret.")))]
async fn create(
    caller: Caller,
    Json(request): Json<KeyRequest>,
) -> Result<Json<CreatedKey>, ApiError> {
    let ApiKey {
        plaintext,
        hash,
        prefix,
    } = ApiKey::generate()?;
    let now = clock::now();
    let mut row = KeyRow {
        id: 0,
        prefix,
        name: String::new(),
        principal_id: request.principal_id,
        principal: String::new(),
        expires_at: Some(now + DEFAULT_LIFETIME),
        disabled: false,
        created_at: now,
        last_used_at: None,
    };
    request.into_patch().change(&mut row)?;
    let mut change = caller.begin_change().await?;
    let connection = change.connection();
    principals::get(connection, row.principal_id)
        .await
        .map_err(|error| match error {
            DbError::NotFound => ApiError::invalid("principal_id", "there is no such principal"),
            other => other.into(),
        })?;
    change.require_all_of(row.principal_id).await?;
    let id = keys::insert(change.connection(), &hash, &row).await?;
    resource::created::<KeyView>(change, id).await?;
    Ok(Json(CreatedKey {
        id,
        key: plaintext.expose().to_owned(),
        expires_at: row.expires_at,
    }))
}

/// Update a key
///
/// Changes the name or the expiry, or disables the key. To enable the key of another
/// principal or to postpone its expiry requires all permissions of that principal.
#[utoipa::path(patch, path = "/admin/keys/{id}", tag = "keys", params(("id" = i64, Path, description = "ID of the key")),
    request_body = KeyPatch, responses((status = 204, description = "The key has been updated.")))]
async fn update(
    caller: Caller,
    Path(id): Path<i64>,
    Json(patch): Json<KeyPatch>,
) -> Result<StatusCode, ApiError> {
    let mut change = caller.begin_change().await?;
    let row = KeyView::row(change.connection(), id).await?;
    let mut changed = row.clone();
    patch.change(&mut changed)?;
    if is_longer_valid(&row, &changed) {
        change.require_all_of(row.principal_id).await?;
    }
    keys::update(change.connection(), &changed).await?;
    resource::changed(change, "update", &KeyView::from(row)).await
}

/// Revoke a key
///
/// Gateways reject the key from now on. The key remains listed as disabled.
#[utoipa::path(delete, path = "/admin/keys/{id}", tag = "keys", params(("id" = i64, Path, description = "ID of the key")),
    responses((status = 204, description = "The key has been revoked.")))]
async fn revoke(caller: Caller, Path(id): Path<i64>) -> Result<StatusCode, ApiError> {
    let mut change = caller.begin_change().await?;
    let connection = change.connection();
    let mut row = KeyView::row(connection, id).await?;
    let before = KeyView::from(row.clone());
    row.disabled = true;
    keys::update(connection, &row).await?;
    resource::changed(change, "revoke", &before).await
}

/// Whether a change makes a key valid, or valid for longer.
fn is_longer_valid(before: &KeyRow, after: &KeyRow) -> bool {
    let expires = |row: &KeyRow| row.expires_at.map_or((true, None), |at| (false, Some(at)));
    (before.disabled && !after.disabled) || expires(after) > expires(before)
}

/// Checks that a key expires in the future.
fn in_the_future(at: OffsetDateTime) -> Result<OffsetDateTime, ApiError> {
    if at <= clock::now() {
        return Err(ApiError::invalid(
            "expires_at",
            "expires_at must be in the future",
        ));
    }
    Ok(at)
}
