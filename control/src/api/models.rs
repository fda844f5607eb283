//! Models, their backends and prices.

mod backend_options;
mod backends;
mod names;
mod upstream;

use std::collections::BTreeMap;

use axum::extract::State;
use axum::http::{StatusCode, Uri};
use axum::response::Response;
use serde::Serialize;
use sqlx::PgConnection;
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use self::backends::{BackendView, NewBackend};
use crate::api::framework::fields::resource;
use crate::api::framework::{
    ApiError, AuditDetail, Caller, Delete, Json, ListParams, Path, Permission, Query, Resource,
    Update, checks, require_permission, resource,
};
use crate::app::AppState;

pub(super) use names::granted_name;

use crate::db::models::ModelRow;
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

/// A model and its pool of backends.
#[derive(Serialize, ToSchema)]
pub(crate) struct ModelView {
    id: i64,
    #[serde(flatten)]
    fields: ModelFieldsView,
    backends: Vec<BackendView>,
}

/// The created model.
#[derive(Serialize, ToSchema)]
pub(crate) struct CreatedModel {
    id: i64,
    name: String,
}

resource! {
    /// The fields of a model. Prices are in micro-units; `null` is unknown, not free.
    view ModelFieldsView from ModelRow {
        /// The name that clients request.
        name: String,
    }
    /// A model to create, at first without backends.
    new NewModel;
    /// Changes to a model: an absent field keeps its value, `null` clears it.
    patch ModelPatch;
    fields {
        /// The name that clients request; unique among models and virtual models.
        name: create_only String,
        description: nullable String => checks::text,
        /// Price of one million prompt tokens.
        input_price_per_mtok: nullable i64 [minimum = 0] => checks::not_negative,
        /// Price of one million completion tokens.
        output_price_per_mtok: nullable i64 [minimum = 0] => checks::not_negative,
        /// Price of one million prompt tokens that the backend read from its cache; by
        /// default `input_price_per_mtok`.
        cached_input_price_per_mtok: nullable i64 [minimum = 0] => checks::not_negative,
        /// Price of one million prompt tokens that the backend wrote to its cache; by
        /// default `input_price_per_mtok`.
        cache_write_price_per_mtok: nullable i64 [minimum = 0] => checks::not_negative,
        /// Price of one million completion tokens spent on reasoning; by default
        /// `output_price_per_mtok`.
        reasoning_price_per_mtok: nullable i64 [minimum = 0] => checks::not_negative,
        /// Price of one million audio tokens in prompts; by default `input_price_per_mtok`.
        audio_input_price_per_mtok: nullable i64 [minimum = 0] => checks::not_negative,
        /// Price of one million audio tokens in responses; by default
        /// `output_price_per_mtok`.
        audio_output_price_per_mtok: nullable i64 [minimum = 0] => checks::not_negative,
        /// Price of one generated image.
        image_price: nullable i64 [minimum = 0] => checks::not_negative,
        /// Price of one million characters converted to speech.
        input_price_per_mchar: nullable i64 [minimum = 0] => checks::not_negative,
        /// Price of one minute of transcribed audio.
        audio_price_per_minute: nullable i64 [minimum = 0] => checks::not_negative,
        /// How long gateways may serve a cached response, in seconds. `null` or 0
        /// disables caching.
        cache_ttl_seconds: nullable i64 [minimum = 0] => checks::not_negative,
        /// The maximum number of tokens of prompt and completion.
        context_length: nullable i64 [minimum = 1] => checks::positive,
        /// The load balancing policy of the pool; `null` is the gateway's default.
        policy: nullable String => policy,
        /// How long each attempt waits for the head of a response, in milliseconds; `null`
        /// is the gateway's `--upstream-timeout`.
        timeout_ms: nullable i32 [minimum = 1, maximum = 3_600_000]
            => checks::between(1, 3_600_000),
        /// How long each attempt waits for the first event with content of a stream, in
        /// milliseconds; `null` is `timeout_ms`.
        stream_timeout_ms: nullable i32 [minimum = 1, maximum = 3_600_000]
            => checks::between(1, 3_600_000),
        /// The maximum number of retries with its backends; `null` is the gateway's
        /// `--max-retries`.
        max_retries: nullable i32 [minimum = 0, maximum = 16] => checks::between(0, 16),
    }
}

impl NewModel {
    fn into_row(self) -> Result<ModelRow, ApiError> {
        let mut row = ModelRow {
            name: granted_name("name", self.name.clone())?,
            ..ModelRow::default()
        };
        self.into_patch().apply_to(&mut row)?;
        Ok(row)
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
        .map(|row| ModelView {
            id: row.id,
            backends: pools.remove(&row.id).unwrap_or_default(),
            fields: row.into(),
        })
        .collect())
}

impl Resource for ModelView {
    const KIND: &'static str = "model";
    type Row = ModelRow;

    fn id(&self) -> i64 {
        self.id
    }

    async fn row(connection: &mut PgConnection, id: i64) -> Result<ModelRow, ApiError> {
        let row = db::models::get(connection, id).await;
        row.map_err(ApiError::of_row("model"))
    }

    async fn view(connection: &mut PgConnection, row: ModelRow) -> Result<Self, ApiError> {
        let view = views(connection, vec![row]).await?.pop();
        view.ok_or_else(|| ApiError::not_found("model"))
    }
}

impl Update for ModelView {
    type Patch = ModelPatch;

    async fn update(
        connection: &mut PgConnection,
        mut row: ModelRow,
        patch: ModelPatch,
    ) -> Result<(), ApiError> {
        patch.apply_to(&mut row)?;
        Ok(db::models::update(connection, row.id, &row).await?)
    }
}

impl Delete for ModelView {
    async fn delete(connection: &mut PgConnection, id: i64) -> Result<(), ApiError> {
        not_routed_to(connection, id).await?;
        Ok(db::models::delete(connection, id).await?)
    }
}

/// List models
///
/// Models are ordered by ID and include their backends.
#[utoipa::path(get, path = "/admin/models", tag = "models", params(ListParams),
    responses((status = 200, body = Vec<ModelView>, description = "The models.")))]
async fn list(
    State(app): State<AppState>,
    uri: Uri,
    Query(params): Query<ListParams>,
) -> Result<Response, ApiError> {
    let page = params.page()?;
    let mut connection = app.db.admin.begin().await?;
    let rows = db::models::list(&mut connection, page).await?;
    let views = views(&mut connection, rows).await?;
    Ok(resource::list::<ModelView>(&uri, page, views))
}

/// Retrieve a model
#[utoipa::path(get, path = "/admin/models/{id}", tag = "models", params(("id" = i64, Path, description = "ID of the model")),
    responses((status = 200, body = ModelView, description = "The model.")))]
async fn get(
    State(app): State<AppState>,
    Path(id): Path<i64>,
) -> Result<Json<ModelView>, ApiError> {
    resource::show(&app, id).await
}

/// Create a model
///
/// A new model has no backends.
#[utoipa::path(post, path = "/admin/models", tag = "models", request_body = NewModel,
    responses((status = 201, body = CreatedModel, description = "The created model."),
        (status = 409, description = "`duplicate`: Another model or virtual model has the same name.")))]
async fn create(
    caller: Caller,
    Json(new): Json<NewModel>,
) -> Result<(StatusCode, Json<CreatedModel>), ApiError> {
    let row = new.into_row()?;
    let mut change = caller.begin_change().await?;
    let taken = ApiError::of_unique("name", "a model or virtual model with this name exists");
    let id = db::models::insert(change.connection(), &row)
        .await
        .map_err(taken)?;
    let name = row.name.clone();
    let detail = AuditDetail::new("model.create")
        .id(id)
        .created(&ModelFieldsView::from(row));
    change.commit(detail).await?;
    Ok((StatusCode::CREATED, Json(CreatedModel { id, name })))
}

/// Update a model
#[utoipa::path(patch, path = "/admin/models/{id}", tag = "models", params(("id" = i64, Path, description = "ID of the model")),
    request_body = ModelPatch, responses((status = 204, description = "The model has been updated.")))]
async fn update(
    caller: Caller,
    Path(id): Path<i64>,
    Json(patch): Json<ModelPatch>,
) -> Result<StatusCode, ApiError> {
    resource::update::<ModelView>(caller, id, patch).await
}

/// Rejects the deletion of a model to which requests are routed.
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

/// Delete a model
///
/// Deletes its backends, too. Its usage records are kept.
#[utoipa::path(delete, path = "/admin/models/{id}", tag = "models", params(("id" = i64, Path, description = "ID of the model")),
    responses((status = 204, description = "The model has been deleted."),
        (status = 409, description = "`in_use`: The model is a target of a virtual model, or the fallback model.")))]
async fn delete(caller: Caller, Path(id): Path<i64>) -> Result<StatusCode, ApiError> {
    resource::delete::<ModelView>(caller, id).await
}

/// Add a backend to a model
#[utoipa::path(post, path = "/admin/models/{id}/backends", tag = "backends",
    params(("id" = i64, Path, description = "ID of the model")), request_body = NewBackend,
    responses((status = 201, body = BackendView, description = "The created backend.")))]
async fn add_backend(
    State(app): State<AppState>,
    caller: Caller,
    Path(id): Path<i64>,
    Json(new): Json<NewBackend>,
) -> Result<(StatusCode, Json<BackendView>), ApiError> {
    let mut change = caller.begin_change().await?;
    let connection = change.connection();
    let model = ModelView::row(connection, id).await?;
    let backend = db::backends::next_id(connection).await?;
    let row = new.into_row(backend, &model, &app.vault)?;
    db::backends::insert(connection, &row).await?;
    let key = row.upstream_api_key.is_some().then_some(true);
    let headers = row.extra_headers.is_some().then_some(true);
    let view = BackendView::from(row);
    let detail = AuditDetail::new("backend.create")
        .id(backend)
        .with("model_id", id)
        .created(&view)
        .secret("upstream_api_key", key)
        .secret("extra_headers", headers);
    change.commit(detail).await?;
    Ok((StatusCode::CREATED, Json(view)))
}

/// One of the load balancing policies.
fn policy(field: &'static str, value: String) -> Result<String, ApiError> {
    match value.parse::<PolicyKind>() {
        Ok(_) => Ok(value),
        Err(error) => Err(ApiError::invalid(field, format!("{field}: {error}"))),
    }
}
