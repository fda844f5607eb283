//! Models, their backends and prices.

mod backend_options;
mod backends;
mod names;
mod prices;
mod upstream;

use std::collections::BTreeMap;

use axum::extract::State;
use axum::http::{StatusCode, Uri};
use axum::response::Response;
use serde::{Deserialize, Serialize};
use sqlx::PgConnection;
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use self::backends::{BackendView, NewBackend};
use self::prices::PricesView;
use crate::api::framework::{
    ApiError, AuditDetail, Caller, Json, ListParams, Patch, Path, Permission, Query, Resource,
    checks, require_permission, resource,
};
use crate::app::AppState;

pub(super) use names::granted_name;

use crate::db::models::{ModelFields, ModelRow};
use crate::db::prices::PriceFields;
use crate::db::targets::{self, TargetUse};
use crate::db::{self, DbError};
use fastllm_contract::PolicyKind;

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
            routes!(add_backend),
        ))
        .merge(backends::routes())
}

/// A name that requests are routed to, and its pool.
#[derive(Serialize, ToSchema)]
pub(crate) struct ModelView {
    id: i64,
    /// What clients ask for.
    name: String,
    #[serde(flatten)]
    fields: ModelFieldsView,
    backends: Vec<BackendView>,
}

/// The fields of a model that can change.
#[derive(Serialize, ToSchema)]
pub(crate) struct ModelFieldsView {
    description: Option<String>,
    #[serde(flatten)]
    prices: PricesView,
    /// For so long gateways may give an answer again to the same request; not
    /// at all with `null` or 0.
    cache_ttl_seconds: Option<i64>,
    /// Tokens.
    context_length: Option<i64>,
    /// How the pool is balanced; `null`: as the gateway is configured.
    policy: Option<String>,
}

impl From<ModelFields> for ModelFieldsView {
    fn from(fields: ModelFields) -> Self {
        let ModelFields {
            description,
            prices,
            cache_ttl_seconds,
            context_length,
            policy,
        } = fields;
        Self {
            description,
            prices: prices.into(),
            cache_ttl_seconds,
            context_length,
            policy,
        }
    }
}

/// A model to be made.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct NewModel {
    name: String,
    description: Option<String>,
    #[schema(minimum = 0)]
    input_price_per_mtok: Option<i64>,
    #[schema(minimum = 0)]
    output_price_per_mtok: Option<i64>,
    #[schema(minimum = 0)]
    cached_input_price_per_mtok: Option<i64>,
    #[schema(minimum = 0)]
    cache_write_price_per_mtok: Option<i64>,
    #[schema(minimum = 0)]
    reasoning_price_per_mtok: Option<i64>,
    #[schema(minimum = 0)]
    audio_input_price_per_mtok: Option<i64>,
    #[schema(minimum = 0)]
    audio_output_price_per_mtok: Option<i64>,
    #[schema(minimum = 0)]
    image_price: Option<i64>,
    #[schema(minimum = 0)]
    input_price_per_mchar: Option<i64>,
    #[schema(minimum = 0)]
    audio_price_per_minute: Option<i64>,
    #[schema(minimum = 0)]
    cache_ttl_seconds: Option<i64>,
    #[schema(minimum = 1)]
    context_length: Option<i64>,
    policy: Option<String>,
}

/// What was made.
#[derive(Serialize, ToSchema)]
pub(crate) struct CreatedModel {
    id: i64,
    name: String,
}

/// Changes of a model: absent keeps, `null` clears.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct ModelPatch {
    #[schema(value_type = Option<String>)]
    #[serde(default)]
    description: Patch<String>,
    #[schema(value_type = Option<i64>, minimum = 0)]
    #[serde(default)]
    input_price_per_mtok: Patch<i64>,
    #[schema(value_type = Option<i64>, minimum = 0)]
    #[serde(default)]
    output_price_per_mtok: Patch<i64>,
    #[schema(value_type = Option<i64>, minimum = 0)]
    #[serde(default)]
    cached_input_price_per_mtok: Patch<i64>,
    #[schema(value_type = Option<i64>, minimum = 0)]
    #[serde(default)]
    cache_write_price_per_mtok: Patch<i64>,
    #[schema(value_type = Option<i64>, minimum = 0)]
    #[serde(default)]
    reasoning_price_per_mtok: Patch<i64>,
    #[schema(value_type = Option<i64>, minimum = 0)]
    #[serde(default)]
    audio_input_price_per_mtok: Patch<i64>,
    #[schema(value_type = Option<i64>, minimum = 0)]
    #[serde(default)]
    audio_output_price_per_mtok: Patch<i64>,
    #[schema(value_type = Option<i64>, minimum = 0)]
    #[serde(default)]
    image_price: Patch<i64>,
    #[schema(value_type = Option<i64>, minimum = 0)]
    #[serde(default)]
    input_price_per_mchar: Patch<i64>,
    #[schema(value_type = Option<i64>, minimum = 0)]
    #[serde(default)]
    audio_price_per_minute: Patch<i64>,
    #[schema(value_type = Option<i64>, minimum = 0)]
    #[serde(default)]
    cache_ttl_seconds: Patch<i64>,
    #[schema(value_type = Option<i64>, minimum = 1)]
    #[serde(default)]
    context_length: Patch<i64>,
    #[schema(value_type = Option<String>)]
    #[serde(default)]
    policy: Patch<String>,
}

impl ModelPatch {
    fn apply(self, old: ModelFields) -> Result<ModelFields, ApiError> {
        use checks::{not_negative, positive};
        let prices = old.prices;
        let description = self.description.try_map(checks::description)?;
        let ttl = self
            .cache_ttl_seconds
            .try_map(not_negative("cache_ttl_seconds"))?;
        let context = self.context_length.try_map(positive("context_length"))?;
        let prices = PriceFields {
            input_price_per_mtok: self.input_price_per_mtok.apply(prices.input_price_per_mtok),
            output_price_per_mtok: self
                .output_price_per_mtok
                .apply(prices.output_price_per_mtok),
            cached_input_price_per_mtok: self
                .cached_input_price_per_mtok
                .apply(prices.cached_input_price_per_mtok),
            cache_write_price_per_mtok: self
                .cache_write_price_per_mtok
                .apply(prices.cache_write_price_per_mtok),
            reasoning_price_per_mtok: self
                .reasoning_price_per_mtok
                .apply(prices.reasoning_price_per_mtok),
            audio_input_price_per_mtok: self
                .audio_input_price_per_mtok
                .apply(prices.audio_input_price_per_mtok),
            audio_output_price_per_mtok: self
                .audio_output_price_per_mtok
                .apply(prices.audio_output_price_per_mtok),
            image_price: self.image_price.apply(prices.image_price),
            input_price_per_mchar: self
                .input_price_per_mchar
                .apply(prices.input_price_per_mchar),
            audio_price_per_minute: self
                .audio_price_per_minute
                .apply(prices.audio_price_per_minute),
        };
        Ok(ModelFields {
            description: description.apply(old.description),
            prices: prices::checked(prices)?,
            cache_ttl_seconds: ttl.apply(old.cache_ttl_seconds),
            context_length: context.apply(old.context_length),
            policy: self.policy.try_map(policy)?.apply(old.policy),
        })
    }
}

impl NewModel {
    fn fields(self) -> Result<(String, ModelFields), ApiError> {
        granted_name(&self.name)?;
        let patch = ModelPatch {
            description: self.description.into(),
            input_price_per_mtok: self.input_price_per_mtok.into(),
            output_price_per_mtok: self.output_price_per_mtok.into(),
            cached_input_price_per_mtok: self.cached_input_price_per_mtok.into(),
            cache_write_price_per_mtok: self.cache_write_price_per_mtok.into(),
            reasoning_price_per_mtok: self.reasoning_price_per_mtok.into(),
            audio_input_price_per_mtok: self.audio_input_price_per_mtok.into(),
            audio_output_price_per_mtok: self.audio_output_price_per_mtok.into(),
            image_price: self.image_price.into(),
            input_price_per_mchar: self.input_price_per_mchar.into(),
            audio_price_per_minute: self.audio_price_per_minute.into(),
            cache_ttl_seconds: self.cache_ttl_seconds.into(),
            context_length: self.context_length.into(),
            policy: self.policy.into(),
        };
        Ok((self.name, patch.apply(ModelFields::default())?))
    }
}

async fn views(
    connection: &mut PgConnection,
    rows: Vec<ModelRow>,
) -> Result<Vec<ModelView>, DbError> {
    let ids: Vec<i64> = rows.iter().map(|row| row.id).collect();
    let mut pools: BTreeMap<i64, Vec<BackendView>> = BTreeMap::new();
    for backend in db::backends::of_models(connection, &ids).await? {
        pools
            .entry(backend.model_id)
            .or_default()
            .push(backend.into());
    }
    Ok(rows
        .into_iter()
        .map(|ModelRow { id, name, fields }| ModelView {
            backends: pools.remove(&id).unwrap_or_default(),
            fields: fields.into(),
            id,
            name,
        })
        .collect())
}

async fn find(connection: &mut PgConnection, id: i64) -> Result<ModelRow, ApiError> {
    db::models::get(connection, id)
        .await
        .map_err(ApiError::of_row("model"))
}

impl Resource for ModelView {
    const KIND: &'static str = "model";

    fn id(&self) -> i64 {
        self.id
    }

    async fn find(connection: &mut PgConnection, id: i64) -> Result<Self, ApiError> {
        let row = find(connection, id).await?;
        let view = views(connection, vec![row]).await?.pop();
        view.ok_or_else(|| ApiError::not_found("model"))
    }
}

/// Lists models with their backends, by id.
#[utoipa::path(get, path = "/admin/models", tag = "models", params(ListParams),
    responses((status = 200, body = Vec<ModelView>, description = "Models")))]
async fn list(
    State(app): State<AppState>,
    uri: Uri,
    Query(params): Query<ListParams>,
) -> Result<Response, ApiError> {
    let page = params.page()?;
    let mut connection = app.db.acquire().await?;
    let rows = db::models::list(&mut connection, page).await?;
    let views = views(&mut connection, rows).await?;
    Ok(resource::list::<ModelView>(&uri, page, views))
}

/// Shows one model.
#[utoipa::path(get, path = "/admin/models/{id}", tag = "models", params(("id" = i64, Path)),
    responses((status = 200, body = ModelView, description = "The model")))]
async fn get(
    State(app): State<AppState>,
    Path(id): Path<i64>,
) -> Result<Json<ModelView>, ApiError> {
    resource::show(&app, id).await
}

/// Makes a model, at first without backends.
#[utoipa::path(post, path = "/admin/models", tag = "models", request_body = NewModel,
    responses((status = 201, body = CreatedModel, description = "Made")))]
async fn create(
    State(app): State<AppState>,
    caller: Caller,
    Json(new): Json<NewModel>,
) -> Result<(StatusCode, Json<CreatedModel>), ApiError> {
    let (name, fields) = new.fields()?;
    let mut change = caller.begin_change(&app).await?;
    let taken = ApiError::of_unique("name", "there is a model or virtual model of this name");
    let id = db::models::insert(change.connection(), &name, &fields)
        .await
        .map_err(taken)?;
    let detail = AuditDetail::new("model.create")
        .id(id)
        .with("name", name.as_str());
    let detail = detail.created(&ModelFieldsView::from(fields));
    app.commit(change, detail.entry()).await?;
    Ok((StatusCode::CREATED, Json(CreatedModel { id, name })))
}

/// Changes a model.
#[utoipa::path(patch, path = "/admin/models/{id}", tag = "models", params(("id" = i64, Path)),
    request_body = ModelPatch, responses((status = 204, description = "Changed")))]
async fn update(
    State(app): State<AppState>,
    caller: Caller,
    Path(id): Path<i64>,
    Json(patch): Json<ModelPatch>,
) -> Result<StatusCode, ApiError> {
    let mut change = caller.begin_change(&app).await?;
    let old = find(change.connection(), id).await?.fields;
    let fields = patch.apply(old.clone())?;
    db::models::update(change.connection(), id, &fields).await?;
    let (before, after) = (ModelFieldsView::from(old), ModelFieldsView::from(fields));
    let detail = AuditDetail::new("model.update")
        .id(id)
        .changed(&before, &after);
    resource::commit(&app, change, detail).await
}

/// A model that requests are routed to cannot be deleted.
async fn not_routed_to(connection: &mut PgConnection, id: i64) -> Result<(), ApiError> {
    let places: Vec<String> = targets::uses(connection, id)
        .await?
        .into_iter()
        .map(
            |TargetUse {
                 virtual_model,
                 rule,
             }| match rule {
                Some((rule, position)) => {
                    format!("rule {rule} (position {position}) of {virtual_model}")
                }
                None => format!("the defaults of {virtual_model}"),
            },
        )
        .collect();
    if !places.is_empty() {
        let places = places.join(", ");
        return Err(ApiError::in_use(&format!("it is a target of {places}")));
    }
    match db::models::fallback(connection).await? {
        Some((fallback, _)) if fallback == id => Err(ApiError::in_use("it is the fallback model")),
        _ => Ok(()),
    }
}

/// Deletes a model with its backends; refused while it is a target of a virtual
/// model, or the fallback. Its usage stays.
#[utoipa::path(delete, path = "/admin/models/{id}", tag = "models", params(("id" = i64, Path)),
    responses((status = 204, description = "Deleted")))]
async fn delete(
    State(app): State<AppState>,
    caller: Caller,
    Path(id): Path<i64>,
) -> Result<StatusCode, ApiError> {
    let mut change = caller.begin_change(&app).await?;
    let connection = change.connection();
    let old = ModelView::find(connection, id).await?;
    not_routed_to(connection, id).await?;
    db::models::delete(connection, id).await?;
    resource::deleted(&app, change, &old).await
}

/// Adds an upstream address to a model's pool.
#[utoipa::path(post, path = "/admin/models/{id}/backends", tag = "backends",
    params(("id" = i64, Path)), request_body = NewBackend,
    responses((status = 201, body = BackendView, description = "Added")))]
async fn add_backend(
    State(app): State<AppState>,
    caller: Caller,
    Path(id): Path<i64>,
    Json(new): Json<NewBackend>,
) -> Result<(StatusCode, Json<BackendView>), ApiError> {
    let mut change = caller.begin_change(&app).await?;
    let connection = change.connection();
    let model = find(connection, id).await?;
    let backend = db::backends::next_id(connection).await?;
    let row = new.row(backend, &model, &app.vault)?;
    db::backends::insert(connection, &row).await?;
    let key = row.fields.upstream_api_key.is_some().then_some(true);
    let headers = row.fields.handling.extra_headers.is_some().then_some(true);
    let view = BackendView::from(row);
    let detail = AuditDetail::new("backend.create")
        .id(backend)
        .with("model_id", id)
        .created(&view)
        .secret("upstream_api_key", key)
        .secret("extra_headers", headers);
    app.commit(change, detail.entry()).await?;
    Ok((StatusCode::CREATED, Json(view)))
}

/// One of the four balancing policies.
fn policy(value: String) -> Result<String, ApiError> {
    match value.parse::<PolicyKind>() {
        Ok(_) => Ok(value),
        Err(error) => Err(ApiError::invalid("policy", format!("policy: {error}"))),
    }
}
