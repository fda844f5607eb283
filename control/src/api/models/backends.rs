use std::collections::BTreeMap;

use axum::extract::State;
use axum::http::StatusCode;
use fastllm_contract::Secret;
use serde::{Deserialize, Serialize};
use sqlx::PgConnection;
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::backend_options::{HandlingPatch, HandlingView};
use super::{names, upstream};
use crate::api::framework::{
    ApiError, AuditDetail, Caller, Json, Patch, Path, Permission, Resource, checks, patch,
    require_permission, resource,
};
use crate::app::AppState;
use crate::crypto::{Sealed, Vault};
use crate::db::backends;
use crate::db::backends::{BackendFields, BackendRow, Handling};
use crate::db::models::ModelRow;

pub(crate) fn routes() -> OpenApiRouter<AppState> {
    OpenApiRouter::new()
        .routes(require_permission(Permission::UsageRead, routes!(get)))
        .routes(require_permission(
            Permission::ConfigWrite,
            routes!(update, delete),
        ))
}

/// One upstream address of a model. Its credential is never shown.
#[derive(Serialize, ToSchema)]
pub(crate) struct BackendView {
    id: i64,
    /// Without trailing slash.
    api_base: String,
    /// What the upstream calls the model.
    upstream_model: String,
    has_upstream_api_key: bool,
    protocol: String,
    auth_header: String,
    /// The word before the credential; `null` sends the credential alone.
    auth_scheme: Option<String>,
    /// The answer's token ceiling where the client sends none.
    default_max_tokens: Option<i32>,
    /// Its share beside the other backends of the model.
    weight: i32,
    /// Otherwise it is kept, and no gateway knows it.
    enabled: bool,
    #[serde(flatten)]
    handling: HandlingView,
}

impl From<BackendRow> for BackendView {
    fn from(row: BackendRow) -> Self {
        let BackendRow {
            id,
            model_id: _,
            fields,
        } = row;
        let BackendFields {
            api_base,
            upstream_model,
            upstream_api_key,
            protocol,
            auth_header,
            auth_scheme,
            default_max_tokens,
            weight,
            enabled,
            handling,
        } = fields;
        Self {
            id,
            api_base,
            upstream_model,
            has_upstream_api_key: upstream_api_key.is_some(),
            protocol,
            auth_header,
            auth_scheme,
            default_max_tokens,
            weight,
            enabled,
            handling: handling.into(),
        }
    }
}

/// The wire format of a backend.
#[derive(Debug, Clone, Copy, Default, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Wire {
    #[default]
    Openai,
    Anthropic,
    Gemini,
}

impl Wire {
    fn name(self) -> &'static str {
        match self {
            Self::Openai => "openai",
            Self::Anthropic => "anthropic",
            Self::Gemini => "gemini",
        }
    }

    /// The header and the word before the credential that its vendor expects.
    fn auth(self) -> (&'static str, Option<&'static str>) {
        match self {
            Self::Openai => ("authorization", Some("Bearer")),
            Self::Anthropic => ("x-api-key", None),
            Self::Gemini => ("x-goog-api-key", None),
        }
    }
}

/// An upstream address to be added.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct NewBackend {
    /// Absolute http or https URL, `/v1` included where the upstream has it;
    /// no credentials, query or fragment.
    #[schema(example = "http://vllm:8000/v1")]
    api_base: String,
    /// By default the model's own name.
    upstream_model: Option<String>,
    #[schema(value_type = Option<String>, format = Password)]
    upstream_api_key: Option<Secret>,
    #[serde(default)]
    protocol: Wire,
    /// By default as the protocol has it.
    auth_header: Option<String>,
    /// By default as the protocol has it; `null` sends the credential alone.
    #[serde(default)]
    #[schema(value_type = Option<String>)]
    auth_scheme: Patch<String>,
    #[schema(minimum = 1)]
    default_max_tokens: Option<i32>,
    /// By default 1.
    #[schema(minimum = 1, maximum = 1000)]
    weight: Option<i32>,
    /// By default it is.
    enabled: Option<bool>,
    /// It gets no new request; those under way are finished.
    #[schema(nullable = false)]
    #[serde(default, deserialize_with = "patch::present")]
    draining: Option<bool>,
    /// The most requests at once from each gateway; `null` is unlimited.
    #[schema(value_type = Option<i32>, minimum = 1, maximum = 100_000)]
    #[serde(default)]
    max_concurrency: Patch<i32>,
    /// The most requests that wait at each gateway while it is full.
    #[schema(nullable = false, minimum = 0, maximum = 10_000)]
    #[serde(default, deserialize_with = "patch::present")]
    max_queue: Option<i32>,
    /// How long one of them waits, in milliseconds.
    #[schema(nullable = false, minimum = 1, maximum = 600_000)]
    #[serde(default, deserialize_with = "patch::present")]
    queue_timeout_ms: Option<i32>,
    /// Headers beside the usual ones, by name: all of them. Only their names are
    /// ever shown.
    #[schema(value_type = Option<BTreeMap<String, String>>)]
    #[serde(default)]
    extra_headers: Patch<BTreeMap<String, Secret>>,
    /// Members of the query, by name: all of them.
    #[schema(value_type = Option<BTreeMap<String, String>>)]
    #[serde(default)]
    extra_query: Patch<BTreeMap<String, String>>,
    /// What follows the path of `api_base`; `null` is `{sub_path}`.
    #[schema(value_type = Option<String>, example = "/openai/deployments/{upstream_model}{sub_path}")]
    #[serde(default)]
    path_template: Patch<String>,
    /// Otherwise it is taken for healthy without being asked.
    #[schema(nullable = false)]
    #[serde(default, deserialize_with = "patch::present")]
    health_check: Option<bool>,
    /// What follows the path of `api_base` in a probe; `//health` starts at the
    /// host's root instead.
    #[schema(nullable = false)]
    #[serde(default, deserialize_with = "patch::present")]
    health_path: Option<String>,
    /// `GET`, `HEAD`, or `POST` with an empty body.
    #[schema(nullable = false)]
    #[serde(default, deserialize_with = "patch::present")]
    health_method: Option<String>,
    /// The statuses of a healthy backend: numbers and classes.
    #[schema(nullable = false, example = "2xx,401")]
    #[serde(default, deserialize_with = "patch::present")]
    health_expect: Option<String>,
}

/// Changes of a backend: absent keeps, `null` clears.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct BackendPatch {
    #[schema(nullable = false)]
    #[serde(default, deserialize_with = "patch::present")]
    api_base: Option<String>,
    #[schema(nullable = false)]
    #[serde(default, deserialize_with = "patch::present")]
    upstream_model: Option<String>,
    #[schema(value_type = Option<String>, format = Password)]
    #[serde(default)]
    upstream_api_key: Patch<Secret>,
    #[schema(nullable = false)]
    #[serde(default, deserialize_with = "patch::present")]
    protocol: Option<Wire>,
    #[schema(nullable = false)]
    #[serde(default, deserialize_with = "patch::present")]
    auth_header: Option<String>,
    #[schema(value_type = Option<String>)]
    #[serde(default)]
    auth_scheme: Patch<String>,
    #[schema(value_type = Option<i32>, minimum = 1)]
    #[serde(default)]
    default_max_tokens: Patch<i32>,
    #[schema(nullable = false, minimum = 1, maximum = 1000)]
    #[serde(default, deserialize_with = "patch::present")]
    weight: Option<i32>,
    #[schema(nullable = false)]
    #[serde(default, deserialize_with = "patch::present")]
    enabled: Option<bool>,
    /// It gets no new request; those under way are finished.
    #[schema(nullable = false)]
    #[serde(default, deserialize_with = "patch::present")]
    draining: Option<bool>,
    /// The most requests at once from each gateway; `null` is unlimited.
    #[schema(value_type = Option<i32>, minimum = 1, maximum = 100_000)]
    #[serde(default)]
    max_concurrency: Patch<i32>,
    /// The most requests that wait at each gateway while it is full.
    #[schema(nullable = false, minimum = 0, maximum = 10_000)]
    #[serde(default, deserialize_with = "patch::present")]
    max_queue: Option<i32>,
    /// How long one of them waits, in milliseconds.
    #[schema(nullable = false, minimum = 1, maximum = 600_000)]
    #[serde(default, deserialize_with = "patch::present")]
    queue_timeout_ms: Option<i32>,
    /// Headers beside the usual ones, by name: all of them. Only their names are
    /// ever shown.
    #[schema(value_type = Option<BTreeMap<String, String>>)]
    #[serde(default)]
    extra_headers: Patch<BTreeMap<String, Secret>>,
    /// Members of the query, by name: all of them.
    #[schema(value_type = Option<BTreeMap<String, String>>)]
    #[serde(default)]
    extra_query: Patch<BTreeMap<String, String>>,
    /// What follows the path of `api_base`; `null` is `{sub_path}`.
    #[schema(value_type = Option<String>, example = "/openai/deployments/{upstream_model}{sub_path}")]
    #[serde(default)]
    path_template: Patch<String>,
    /// Otherwise it is taken for healthy without being asked.
    #[schema(nullable = false)]
    #[serde(default, deserialize_with = "patch::present")]
    health_check: Option<bool>,
    /// What follows the path of `api_base` in a probe; `//health` starts at the
    /// host's root instead.
    #[schema(nullable = false)]
    #[serde(default, deserialize_with = "patch::present")]
    health_path: Option<String>,
    /// `GET`, `HEAD`, or `POST` with an empty body.
    #[schema(nullable = false)]
    #[serde(default, deserialize_with = "patch::present")]
    health_method: Option<String>,
    /// The statuses of a healthy backend: numbers and classes.
    #[schema(nullable = false, example = "2xx,401")]
    #[serde(default, deserialize_with = "patch::present")]
    health_expect: Option<String>,
}

impl NewBackend {
    pub(crate) fn row(
        self,
        id: i64,
        model: &ModelRow,
        vault: &Vault,
    ) -> Result<BackendRow, ApiError> {
        let (header, scheme) = self.protocol.auth();
        let scheme = match self.auth_scheme {
            Patch::Keep => scheme.map(str::to_owned),
            Patch::Clear => None,
            Patch::Set(scheme) => Some(upstream::auth_scheme(scheme)?),
        };
        let header = self
            .auth_header
            .as_deref()
            .map_or(Ok(header.to_owned()), upstream::auth_header);
        let key = self
            .upstream_api_key
            .map(|key| seal(vault, id, &key))
            .transpose()?;
        let upstream = self.upstream_model.unwrap_or_else(|| model.name.clone());
        names::model_name(&upstream).map_err(|error| error.with_field("upstream_model"))?;
        let auth_header = header?;
        let handling = HandlingPatch {
            draining: self.draining,
            max_concurrency: self.max_concurrency,
            max_queue: self.max_queue,
            queue_timeout_ms: self.queue_timeout_ms,
            extra_headers: self.extra_headers,
            extra_query: self.extra_query,
            path_template: self.path_template,
            health_check: self.health_check,
            health_path: self.health_path,
            health_method: self.health_method,
            health_expect: self.health_expect,
        };
        let fields = BackendFields {
            api_base: upstream::api_base(&self.api_base)?,
            upstream_model: upstream,
            upstream_api_key: key,
            protocol: self.protocol.name().to_owned(),
            handling: handling.apply(Handling::default(), id, &auth_header, vault)?,
            auth_header,
            auth_scheme: scheme,
            default_max_tokens: self.default_max_tokens.map(max_tokens).transpose()?,
            weight: self.weight.map_or(Ok(1), weight)?,
            enabled: self.enabled.unwrap_or(true),
        };
        Ok(BackendRow {
            id,
            model_id: model.id,
            fields,
        })
    }
}

impl BackendPatch {
    fn apply(self, old: BackendFields, id: i64, vault: &Vault) -> Result<BackendFields, ApiError> {
        let key = self.upstream_api_key.try_map(|key| seal(vault, id, &key))?;
        let scheme = self.auth_scheme.try_map(upstream::auth_scheme)?;
        let ceiling = self.default_max_tokens.try_map(max_tokens)?;
        let base = self
            .api_base
            .as_deref()
            .map(upstream::api_base)
            .transpose()?;
        let header = self
            .auth_header
            .as_deref()
            .map(upstream::auth_header)
            .transpose()?;
        if let (Some(base), Patch::Keep, Some(_)) = (&base, &key, &old.upstream_api_key) {
            upstream::same_machine("upstream_api_key", &old.api_base, base)?;
        }
        let moved = base.as_deref().unwrap_or(&old.api_base);
        if let (Patch::Keep, Some(_)) = (&self.extra_headers, &old.handling.extra_headers) {
            upstream::same_machine("extra_headers", &old.api_base, moved)?;
        }
        if let Some(upstream) = &self.upstream_model {
            names::model_name(upstream).map_err(|error| error.with_field("upstream_model"))?;
        }
        let auth_header = header.unwrap_or(old.auth_header);
        let handling = HandlingPatch {
            draining: self.draining,
            max_concurrency: self.max_concurrency,
            max_queue: self.max_queue,
            queue_timeout_ms: self.queue_timeout_ms,
            extra_headers: self.extra_headers,
            extra_query: self.extra_query,
            path_template: self.path_template,
            health_check: self.health_check,
            health_path: self.health_path,
            health_method: self.health_method,
            health_expect: self.health_expect,
        };
        Ok(BackendFields {
            handling: handling.apply(old.handling, id, &auth_header, vault)?,
            api_base: base.unwrap_or(old.api_base),
            upstream_model: self.upstream_model.unwrap_or(old.upstream_model),
            upstream_api_key: key.apply(old.upstream_api_key),
            protocol: self
                .protocol
                .map_or(old.protocol, |protocol| protocol.name().to_owned()),
            auth_header,
            auth_scheme: scheme.apply(old.auth_scheme),
            default_max_tokens: ceiling.apply(old.default_max_tokens),
            weight: self.weight.map_or(Ok(old.weight), weight)?,
            enabled: self.enabled.unwrap_or(old.enabled),
        })
    }
}

fn seal(vault: &Vault, id: i64, key: &Secret) -> Result<Sealed, ApiError> {
    let key = Secret::new(upstream::credential(key.expose().to_owned())?);
    Ok(vault.seal(&backends::identity(id), &key)?)
}

/// What the audit says of a secret: whether it was set or cleared.
fn told<T>(patch: &Patch<T>) -> Option<bool> {
    match patch {
        Patch::Keep => None,
        Patch::Clear => Some(false),
        Patch::Set(_) => Some(true),
    }
}

fn max_tokens(value: i32) -> Result<i32, ApiError> {
    checks::positive("default_max_tokens")(i64::from(value)).map(|_| value)
}

fn weight(value: i32) -> Result<i32, ApiError> {
    checks::between("weight", 1, 1000)(value)
}

async fn find(connection: &mut PgConnection, id: i64) -> Result<BackendRow, ApiError> {
    backends::get(connection, id)
        .await
        .map_err(ApiError::of_row("backend"))
}

impl Resource for BackendView {
    const KIND: &'static str = "backend";

    fn id(&self) -> i64 {
        self.id
    }

    async fn find(connection: &mut PgConnection, id: i64) -> Result<Self, ApiError> {
        Ok(find(connection, id).await?.into())
    }
}

/// Shows one backend.
#[utoipa::path(get, path = "/admin/backends/{id}", tag = "backends", params(("id" = i64, Path)),
    responses((status = 200, body = BackendView, description = "The backend")))]
async fn get(
    State(app): State<AppState>,
    Path(id): Path<i64>,
) -> Result<Json<BackendView>, ApiError> {
    resource::show(&app, id).await
}

/// Changes a backend. An absent `upstream_api_key` keeps the credential, `null`
/// removes it, and so with `extra_headers`. They are given for one scheme, host
/// and port: with others, they have to be given again, or removed.
#[utoipa::path(patch, path = "/admin/backends/{id}", tag = "backends", params(("id" = i64, Path)),
    request_body = BackendPatch, responses((status = 204, description = "Changed")))]
async fn update(
    State(app): State<AppState>,
    caller: Caller,
    Path(id): Path<i64>,
    Json(patch): Json<BackendPatch>,
) -> Result<StatusCode, ApiError> {
    let mut change = caller.begin_change(&app).await?;
    let connection = change.connection();
    let old = find(connection, id).await?;
    let (key, headers) = (told(&patch.upstream_api_key), told(&patch.extra_headers));
    let fields = patch.apply(old.fields.clone(), id, &app.vault)?;
    let new = BackendRow {
        id,
        model_id: old.model_id,
        fields,
    };
    backends::update(connection, id, &new.fields).await?;
    let detail = AuditDetail::new("backend.update")
        .id(id)
        .changed(&BackendView::from(old), &BackendView::from(new))
        .secret("upstream_api_key", key)
        .secret("extra_headers", headers);
    resource::commit(&app, change, detail).await
}

/// Takes a backend out of its model's pool.
#[utoipa::path(delete, path = "/admin/backends/{id}", tag = "backends", params(("id" = i64, Path)),
    responses((status = 204, description = "Deleted")))]
async fn delete(
    State(app): State<AppState>,
    caller: Caller,
    Path(id): Path<i64>,
) -> Result<StatusCode, ApiError> {
    let mut change = caller.begin_change(&app).await?;
    let connection = change.connection();
    let old = BackendView::find(connection, id).await?;
    backends::delete(connection, id).await?;
    resource::deleted(&app, change, &old).await
}
