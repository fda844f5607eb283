use std::collections::BTreeMap;
use std::mem;

use axum::extract::State;
use axum::http::StatusCode;
use fastllm_contract::Secret;
use serde::Deserialize;
use sqlx::PgConnection;
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::{backend_options, names, upstream};
use crate::api::framework::fields::resource;
use crate::api::framework::{
    ApiError, AuditDetail, Caller, Delete, Json, Patch, Path, Permission, Resource, checks,
    require_permission, resource,
};
use crate::app::AppState;
use crate::crypto::{SealedCredential, Vault};
use crate::db::backends;
use crate::db::backends::BackendRow;
use crate::db::models::ModelRow;

pub(crate) fn routes() -> OpenApiRouter<AppState> {
    OpenApiRouter::new()
        .routes(require_permission(Permission::UsageRead, routes!(get)))
        .routes(require_permission(
            Permission::ConfigWrite,
            routes!(update, delete),
        ))
}

/// The API that a backend implements.
#[derive(Debug, Clone, Copy, Default, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub(crate) enum BackendProtocol {
    #[default]
    Openai,
    Anthropic,
    Gemini,
}

impl BackendProtocol {
    fn as_str(self) -> &'static str {
        match self {
            Self::Openai => "openai",
            Self::Anthropic => "anthropic",
            Self::Gemini => "gemini",
        }
    }

    #[expect(clippy::unnecessary_wraps, reason = "the signature of all checks")]
    fn stored(_field: &'static str, value: Self) -> Result<String, ApiError> {
        Ok(value.as_str().to_owned())
    }

    /// The header and the scheme of the credential that the vendor expects.
    fn auth(self) -> (&'static str, Option<&'static str>) {
        match self {
            Self::Openai => ("authorization", Some("Bearer")),
            Self::Anthropic => ("x-api-key", None),
            Self::Gemini => ("x-goog-api-key", None),
        }
    }
}

resource! {
    /// One upstream address of a model. The credential and the values of extra
    /// headers are never returned.
    view BackendView from BackendRow {
        id: i64,
        has_upstream_api_key: bool = upstream_api_key.is_some(),
        /// The names of the extra headers.
        extra_header_names: Vec<String>,
        extra_query: BTreeMap<String, String> = extra_query.into_inner(),
    }
    /// A backend to add.
    new NewBackend;
    /// Changes to a backend: an absent field keeps its value, `null` clears it.
    patch BackendPatch;
    fields {
        /// Absolute http or https URL, including `/v1` if the upstream has it, without
        /// trailing slash, credentials, query or fragment.
        api_base: required String [example = "http://vllm:8000/v1"] => upstream::api_base,
        /// The upstream's name of the model; by default the model's own name.
        upstream_model: optional String => names::upstream_model,
        /// The credential for the upstream.
        upstream_api_key: custom nullable Secret as String [format = Password],
        /// The API that the backend implements.
        protocol: defaulted BackendProtocol as String => BackendProtocol::stored,
        /// The header that carries the credential; by default that of the protocol.
        auth_header: optional String => upstream::auth_header,
        /// The scheme before the credential, by default that of the protocol; `null`
        /// sends the credential alone.
        auth_scheme: nullable String => upstream::auth_scheme,
        /// The maximum number of completion tokens if the client sets none.
        default_max_tokens: nullable i32 [minimum = 1] => checks::positive,
        /// Share of the model's requests relative to its other backends; by default 1.
        weight: optional i32 [minimum = 1, maximum = 1000] => checks::between(1, 1000),
        /// Whether gateways use the backend; by default they do.
        enabled: optional bool,
        /// A draining backend gets no new requests; those in flight are finished.
        draining: defaulted bool,
        /// The maximum number of concurrent requests of each gateway; `null` is unlimited.
        max_concurrency: nullable i32 [minimum = 1, maximum = 100_000]
            => checks::between(1, 100_000),
        /// The maximum number of requests that each gateway queues while the backend is
        /// at its concurrency limit.
        max_queue: defaulted i32 [minimum = 0, maximum = 10_000] => checks::between(0, 10_000),
        /// How long a request waits in the queue, in milliseconds.
        queue_timeout_ms: defaulted i32 [minimum = 1, maximum = 600_000]
            => checks::between(1, 600_000),
        /// Additional request headers by name; replaces all of them. Responses only
        /// contain the names.
        extra_headers: custom nullable BTreeMap<String, Secret> as BTreeMap<String, String>,
        /// Additional query parameters by name; replaces all of them.
        extra_query: custom nullable BTreeMap<String, String>,
        /// The path below that of `api_base`; `null` is `{sub_path}`.
        path_template: nullable String
            [example = "/openai/deployments/{upstream_model}{sub_path}"]
            => backend_options::path_template,
        /// Whether gateways probe the backend. A backend that is not probed counts as
        /// healthy.
        health_check: defaulted bool,
        /// The path of a probe, below that of `api_base`; `//health` is relative to the
        /// host's root instead.
        health_path: defaulted String,
        /// `GET`, `HEAD`, or `POST` with an empty body.
        health_method: defaulted String,
        /// The status codes and classes of a healthy backend.
        health_expect: defaulted String [example = "2xx,401"],
    }
}

impl NewBackend {
    pub(crate) fn into_row(
        self,
        id: i64,
        model: &ModelRow,
        vault: &Vault,
    ) -> Result<BackendRow, ApiError> {
        let protocol = self.protocol.unwrap_or_default();
        let (header, scheme) = protocol.auth();
        let defaults = BackendRow {
            id,
            model_id: model.id,
            upstream_model: model.name.clone(),
            protocol: protocol.as_str().to_owned(),
            auth_header: header.to_owned(),
            auth_scheme: scheme.map(str::to_owned),
            ..BackendRow::default()
        };
        self.into_patch().change(&defaults, vault)
    }
}

impl BackendPatch {
    /// The row after the change.
    fn change(mut self, old: &BackendRow, vault: &Vault) -> Result<BackendRow, ApiError> {
        let mut row = old.clone();
        let key = mem::take(&mut self.upstream_api_key);
        let headers = mem::take(&mut self.extra_headers);
        let query = mem::take(&mut self.extra_query);
        self.apply_to(&mut row)?;
        if key == Patch::Keep && row.upstream_api_key.is_some() {
            upstream::same_origin("upstream_api_key", &old.api_base, &row.api_base)?;
        }
        if headers == Patch::Keep && row.extra_headers.is_some() {
            upstream::same_origin("extra_headers", &old.api_base, &row.api_base)?;
        }
        let key = key.try_map(|key| seal(vault, row.id, &key))?;
        row.upstream_api_key = key.apply(row.upstream_api_key.take());
        backend_options::set_extra_headers(&mut row, headers, vault)?;
        backend_options::set_extra_query(&mut row, query)?;
        backend_options::check(&row)?;
        Ok(row)
    }
}

fn seal(vault: &Vault, id: i64, key: &Secret) -> Result<SealedCredential, ApiError> {
    let key = Secret::new(upstream::credential(key.expose().to_owned())?);
    Ok(vault.seal(&backends::identity(id), &key)?)
}

/// Whether the change sets or clears a secret, for the audit log.
fn secret_change<T>(patch: &Patch<T>) -> Option<bool> {
    match patch {
        Patch::Keep => None,
        Patch::Clear => Some(false),
        Patch::Set(_) => Some(true),
    }
}

impl Resource for BackendView {
    const KIND: &'static str = "backend";
    type Row = BackendRow;

    fn id(&self) -> i64 {
        self.id
    }

    async fn row(connection: &mut PgConnection, id: i64) -> Result<BackendRow, ApiError> {
        let row = backends::get(connection, id).await;
        row.map_err(ApiError::of_row("backend"))
    }

    async fn view(_: &mut PgConnection, row: BackendRow) -> Result<Self, ApiError> {
        Ok(row.into())
    }
}

impl Delete for BackendView {
    async fn delete(connection: &mut PgConnection, id: i64) -> Result<(), ApiError> {
        Ok(backends::delete(connection, id).await?)
    }
}

/// Retrieve a backend
#[utoipa::path(get, path = "/admin/backends/{id}", tag = "backends", params(("id" = i64, Path, description = "ID of the backend")),
    responses((status = 200, body = BackendView, description = "The backend.")))]
async fn get(
    State(app): State<AppState>,
    Path(id): Path<i64>,
) -> Result<Json<BackendView>, ApiError> {
    resource::show(&app, id).await
}

/// Update a backend
///
/// Omit `upstream_api_key` and `extra_headers` to keep them; `null` removes them.
/// They are bound to the scheme, host and port of `api_base`: if any of these
/// changes, provide them again or remove them.
#[utoipa::path(patch, path = "/admin/backends/{id}", tag = "backends", params(("id" = i64, Path, description = "ID of the backend")),
    request_body = BackendPatch, responses((status = 204, description = "The backend has been updated.")))]
async fn update(
    State(app): State<AppState>,
    caller: Caller,
    Path(id): Path<i64>,
    Json(patch): Json<BackendPatch>,
) -> Result<StatusCode, ApiError> {
    let mut change = caller.begin_change().await?;
    let connection = change.connection();
    let old = BackendView::row(connection, id).await?;
    let (key, headers) = (
        secret_change(&patch.upstream_api_key),
        secret_change(&patch.extra_headers),
    );
    let new = patch.change(&old, &app.vault)?;
    backends::update(connection, &new).await?;
    let detail = AuditDetail::new("backend.update")
        .id(id)
        .changed(&BackendView::from(old), &BackendView::from(new))
        .secret("upstream_api_key", key)
        .secret("extra_headers", headers);
    change.commit(detail).await
}

/// Delete a backend
///
/// Removes the backend from its model's pool.
#[utoipa::path(delete, path = "/admin/backends/{id}", tag = "backends", params(("id" = i64, Path, description = "ID of the backend")),
    responses((status = 204, description = "The backend has been deleted.")))]
async fn delete(caller: Caller, Path(id): Path<i64>) -> Result<StatusCode, ApiError> {
    resource::delete::<BackendView>(caller, id).await
}
