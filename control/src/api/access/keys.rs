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

use crate::api::framework::fields::view;
use crate::api::framework::{
    ApiError, Caller, Json, Patch, Path, Permission, Query, Resource, checks, page, patch,
    require_permission, resource,
};
use crate::app::AppState;
use crate::clock;
use crate::crypto::ApiKey;
use crate::db::keys::{KeyRow, NewKey};
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

view! {
    /// An API key. The secret is returned only when the key is created.
    pub(crate) struct KeyView from KeyRow {
        id: i64,
        /// The first 11 characters of the key.
        prefix: String,
        name: String,
        principal_id: i64,
        /// The name of the principal.
        principal: String,
        /// `null` means never.
        #[serde(with = "time::serde::rfc3339::option")]
        expires_at: Option<OffsetDateTime>,
        disabled: bool,
        #[serde(with = "time::serde::rfc3339")]
        created_at: OffsetDateTime,
        /// Accurate to one minute.
        #[serde(with = "time::serde::rfc3339::option")]
        last_used_at: Option<OffsetDateTime>,
    }
}

/// A key to create.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct KeyRequest {
    name: String,
    principal_id: i64,
    /// By default 90 days from now; `null` means never.
    #[serde(default)]
    #[schema(value_type = Option<String>, format = DateTime)]
    expires_at: Patch<String>,
}

/// The created key. The secret cannot be retrieved again.
#[derive(Serialize, ToSchema)]
pub(crate) struct CreatedKey {
    id: i64,
    key: String,
    #[serde(with = "time::serde::rfc3339::option")]
    expires_at: Option<OffsetDateTime>,
}

/// Changes to a key: an absent field keeps its value, `null` clears it.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct KeyPatch {
    #[schema(nullable = false)]
    #[serde(default, deserialize_with = "patch::present")]
    name: Option<String>,
    /// `null` means never.
    #[schema(value_type = Option<String>, format = DateTime)]
    #[serde(default)]
    expires_at: Patch<String>,
    #[schema(nullable = false)]
    #[serde(default, deserialize_with = "patch::present")]
    disabled: Option<bool>,
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

    fn id(&self) -> i64 {
        self.id
    }

    async fn find(connection: &mut PgConnection, id: i64) -> Result<Self, ApiError> {
        let row = keys::get(connection, id).await;
        Ok(row.map_err(ApiError::of_row("key"))?.into())
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
    let mut connection = app.db.acquire().await?;
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
/// The response is the only place where the secret is ever returned.
#[utoipa::path(post, path = "/admin/keys", tag = "keys", request_body = KeyRequest,
    responses((status = 200, body = CreatedKey, description = "The key and its secret.")))]
async fn create(
    State(app): State<AppState>,
    caller: Caller,
    Json(request): Json<KeyRequest>,
) -> Result<Json<CreatedKey>, ApiError> {
    let KeyRequest {
        name,
        principal_id,
        expires_at,
    } = request;
    let name = checks::name("name", name)?;
    let expires_at = match expires_at {
        Patch::Keep => Some(clock::now() + DEFAULT_LIFETIME),
        Patch::Clear => None,
        Patch::Set(text) => Some(expiry(&text)?),
    };
    let mut change = caller.begin_change(&app).await?;
    let connection = change.connection();
    principals::get(connection, principal_id)
        .await
        .map_err(|error| match error {
            DbError::NotFound => ApiError::invalid("principal_id", "there is no such principal"),
            other => other.into(),
        })?;
    let ApiKey {
        plaintext,
        hash,
        prefix,
    } = ApiKey::generate()?;
    let new = NewKey {
        hash,
        prefix: &prefix,
        name: &name,
        principal_id,
        expires_at,
    };
    let id = keys::insert(connection, &new).await?;
    resource::created::<KeyView>(&app, change, id).await?;
    Ok(Json(CreatedKey {
        id,
        key: plaintext.expose().to_owned(),
        expires_at,
    }))
}

/// Update a key
///
/// Changes the name or the expiry, or disables the key.
#[utoipa::path(patch, path = "/admin/keys/{id}", tag = "keys", params(("id" = i64, Path, description = "ID of the key")),
    request_body = KeyPatch, responses((status = 204, description = "The key has been updated.")))]
async fn update(
    State(app): State<AppState>,
    caller: Caller,
    Path(id): Path<i64>,
    Json(patch): Json<KeyPatch>,
) -> Result<StatusCode, ApiError> {
    let KeyPatch {
        name,
        expires_at,
        disabled,
    } = patch;
    let name = name.map(|name| checks::name("name", name)).transpose()?;
    let expires_at = expires_at.try_map(|text| expiry(&text))?;
    let mut change = caller.begin_change(&app).await?;
    let connection = change.connection();
    let old = KeyView::find(connection, id).await?;
    let name = name.unwrap_or_else(|| old.name.clone());
    let expires_at = expires_at.apply(old.expires_at);
    let disabled = disabled.unwrap_or(old.disabled);
    keys::update(connection, id, &name, expires_at, disabled).await?;
    resource::changed(&app, change, "update", &old).await
}

/// Revoke a key
///
/// Gateways reject the key from now on. The key remains listed as disabled.
#[utoipa::path(delete, path = "/admin/keys/{id}", tag = "keys", params(("id" = i64, Path, description = "ID of the key")),
    responses((status = 204, description = "The key has been revoked.")))]
async fn revoke(
    State(app): State<AppState>,
    caller: Caller,
    Path(id): Path<i64>,
) -> Result<StatusCode, ApiError> {
    let mut change = caller.begin_change(&app).await?;
    let connection = change.connection();
    let old = KeyView::find(connection, id).await?;
    keys::update(connection, id, &old.name, old.expires_at, true).await?;
    resource::changed(&app, change, "revoke", &old).await
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
