use std::collections::BTreeMap;
use std::mem;

use axum::extract::State;
use axum::http::{StatusCode, Uri};
use axum::response::Response;
use serde::{Deserialize, Serialize};
use sqlx::PgConnection;
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::rules::{self, RuleView};
use super::targets::{self, NewTarget, TargetView};
use crate::api::framework::fields::resource;
use crate::api::framework::{
    ApiError, AuditDetail, Caller, Create, Delete, Json, ListParams, Path, Permission, Query,
    Resource, Update, checks, require_permission, resource,
};
use crate::api::models::granted_name;
use crate::app::AppState;
use crate::db::DbError;
use crate::db::targets::{self as stored, Owner};
use crate::db::virtual_models::{self, VirtualModelRow};

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
            routes!(replace_defaults, add_default),
        ))
        .routes(require_permission(
            Permission::ConfigWrite,
            routes!(remove_default),
        ))
}

resource! {
    /// A name that stands for other models; its rules select one of them.
    view VirtualModelView from VirtualModelRow {
        id: i64,
        /// In the order in which they are evaluated.
        rules: Vec<RuleView> [Vec::new()],
        /// Used if no rule yields a candidate.
        default_targets: Vec<TargetView> [Vec::new()],
    }
    /// A virtual model to create, at first without rules.
    new NewVirtualModel;
    /// Changes to a virtual model: an absent field keeps its value, `null` clears it.
    patch VirtualModelPatch;
    fields {
        @view {
            /// The name that clients request.
        }
        @new {
            /// The name that clients request; unique among models and virtual models.
        }
        name: required String => granted_name,
        description: nullable String => checks::text,
        @view {
            /// What is assigned to a target as a whole: `prompt` or `caller`.
        }
        split_by: defaulted Split as String => Split::stored,
        #[serde(default)]
        default_targets: create_only Vec<NewTarget>,
    }
}

/// Which requests go to the same target if several share the traffic.
#[derive(Debug, Clone, Copy, Default, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Split {
    /// Requests with the same beginning of the prompt.
    #[default]
    Prompt,
    /// Requests of the same caller.
    Caller,
}

impl Split {
    fn name(self) -> &'static str {
        match self {
            Self::Prompt => "prompt",
            Self::Caller => "caller",
        }
    }

    #[expect(clippy::unnecessary_wraps, reason = "the signature of all checks")]
    fn stored(_field: &'static str, value: Self) -> Result<String, ApiError> {
        Ok(value.name().to_owned())
    }
}

/// The created object.
#[derive(Serialize, ToSchema)]
pub(crate) struct CreatedVirtualModel {
    id: i64,
    name: String,
}

async fn views(
    connection: &mut PgConnection,
    rows: Vec<VirtualModelRow>,
) -> Result<Vec<VirtualModelView>, DbError> {
    let ids: Vec<i64> = rows.iter().map(|row| row.id).collect();
    let mut rules = rules::views(connection, &ids).await?;
    let mut defaults: BTreeMap<i64, Vec<TargetView>> = BTreeMap::new();
    for row in stored::of(connection, Owner::VirtualModel, &ids).await? {
        defaults.entry(row.owner).or_default().push(row.into());
    }
    Ok(rows
        .into_iter()
        .map(|row| {
            let mut view = VirtualModelView::from(row);
            view.rules = rules.remove(&view.id).unwrap_or_default();
            view.default_targets = defaults.remove(&view.id).unwrap_or_default();
            view
        })
        .collect())
}

impl Resource for VirtualModelView {
    const KIND: &'static str = "virtual_model";
    type Row = VirtualModelRow;

    fn id(&self) -> i64 {
        self.id
    }

    async fn row(connection: &mut PgConnection, id: i64) -> Result<VirtualModelRow, ApiError> {
        let row = virtual_models::get(connection, id).await;
        row.map_err(ApiError::of_row("virtual model"))
    }

    async fn view(connection: &mut PgConnection, row: VirtualModelRow) -> Result<Self, ApiError> {
        let view = views(connection, vec![row]).await?.pop();
        view.ok_or_else(|| ApiError::not_found("virtual model"))
    }
}

impl Create for VirtualModelView {
    type New = NewVirtualModel;

    async fn insert(
        connection: &mut PgConnection,
        mut new: NewVirtualModel,
    ) -> Result<i64, ApiError> {
        let default_targets = mem::take(&mut new.default_targets);
        let mut row = VirtualModelRow {
            id: 0,
            name: String::new(),
            description: None,
            split_by: Split::default().name().to_owned(),
        };
        new.into_patch().apply_to(&mut row)?;
        let id = virtual_models::insert(connection, &row)
            .await
            .map_err(taken)?;
        targets::replace(connection, Owner::VirtualModel, id, default_targets).await?;
        Ok(id)
    }
}

impl Update for VirtualModelView {
    type Patch = VirtualModelPatch;

    async fn update(
        connection: &mut PgConnection,
        mut row: VirtualModelRow,
        patch: VirtualModelPatch,
    ) -> Result<(), ApiError> {
        patch.apply_to(&mut row)?;
        let stored = virtual_models::update(connection, &row).await;
        stored.map_err(taken)
    }
}

impl Delete for VirtualModelView {
    async fn delete(connection: &mut PgConnection, id: i64) -> Result<(), ApiError> {
        Ok(virtual_models::delete(connection, id).await?)
    }
}

fn taken(error: DbError) -> ApiError {
    ApiError::of_unique("name", "a model or virtual model with this name exists")(error)
}

/// List virtual models
///
/// Virtual models are ordered by ID and include their rules and targets.
#[utoipa::path(get, path = "/admin/virtual-models", tag = "virtual_models", params(ListParams),
    responses((status = 200, body = Vec<VirtualModelView>, description = "The virtual models.")))]
async fn list(
    State(app): State<AppState>,
    uri: Uri,
    Query(params): Query<ListParams>,
) -> Result<Response, ApiError> {
    let page = params.page()?;
    let mut connection = app.db.admin.begin().await?;
    let rows = virtual_models::list(&mut connection, page).await?;
    let views = views(&mut connection, rows).await?;
    Ok(resource::list::<VirtualModelView>(&uri, page, views))
}

/// Retrieve a virtual model
#[utoipa::path(get, path = "/admin/virtual-models/{id}", tag = "virtual_models",
    params(("id" = i64, Path, description = "ID of the virtual model")),
    responses((status = 200, body = VirtualModelView, description = "The virtual model.")))]
async fn get(
    State(app): State<AppState>,
    Path(id): Path<i64>,
) -> Result<Json<VirtualModelView>, ApiError> {
    resource::show(&app, id).await
}

/// Create a virtual model
///
/// A new virtual model has no rules.
#[utoipa::path(post, path = "/admin/virtual-models", tag = "virtual_models",
    request_body = NewVirtualModel,
    responses((status = 201, body = CreatedVirtualModel, description = "The created virtual model."),
        (status = 409, description = "`duplicate`: Another model or virtual model has the same name.")))]
async fn create(
    caller: Caller,
    Json(new): Json<NewVirtualModel>,
) -> Result<(StatusCode, Json<CreatedVirtualModel>), ApiError> {
    let VirtualModelView { id, name, .. } = resource::create(caller, new).await?;
    Ok((StatusCode::CREATED, Json(CreatedVirtualModel { id, name })))
}

/// Update a virtual model
///
/// Rules and targets have routes of their own.
#[utoipa::path(patch, path = "/admin/virtual-models/{id}", tag = "virtual_models",
    params(("id" = i64, Path, description = "ID of the virtual model")), request_body = VirtualModelPatch,
    responses((status = 204, description = "The virtual model has been updated."),
        (status = 409, description = "`duplicate`: Another model or virtual model has the same name.")))]
async fn update(
    caller: Caller,
    Path(id): Path<i64>,
    Json(patch): Json<VirtualModelPatch>,
) -> Result<StatusCode, ApiError> {
    resource::update::<VirtualModelView>(caller, id, patch).await
}

/// Delete a virtual model
///
/// Deletes its rules, too; the models that it routes to are kept.
#[utoipa::path(delete, path = "/admin/virtual-models/{id}", tag = "virtual_models",
    params(("id" = i64, Path, description = "ID of the virtual model")), responses((status = 204, description = "The virtual model has been deleted.")))]
async fn delete(caller: Caller, Path(id): Path<i64>) -> Result<StatusCode, ApiError> {
    resource::delete::<VirtualModelView>(caller, id).await
}

/// Replace the default targets of a virtual model
#[utoipa::path(put, path = "/admin/virtual-models/{id}/defaults", tag = "virtual_models",
    params(("id" = i64, Path, description = "ID of the virtual model")), request_body = Vec<NewTarget>,
    responses((status = 204, description = "The default targets have been replaced.")))]
async fn replace_defaults(
    caller: Caller,
    Path(id): Path<i64>,
    Json(list): Json<Vec<NewTarget>>,
) -> Result<StatusCode, ApiError> {
    let mut change = caller.begin_change().await?;
    let connection = change.connection();
    let before = VirtualModelView::find(connection, id).await?;
    targets::replace(connection, Owner::VirtualModel, id, list).await?;
    resource::changed(change, "defaults", &before).await
}

/// Add a default target to a virtual model
#[utoipa::path(post, path = "/admin/virtual-models/{id}/defaults", tag = "virtual_models",
    params(("id" = i64, Path, description = "ID of the virtual model")), request_body = NewTarget,
    responses((status = 201, body = TargetView, description = "The created target."),
        (status = 409, description = "`duplicate`: Another default target has the same model or position.\n\n`too_many`: The virtual model has the maximum number of default targets.")))]
async fn add_default(
    caller: Caller,
    Path(id): Path<i64>,
    Json(target): Json<NewTarget>,
) -> Result<(StatusCode, Json<TargetView>), ApiError> {
    let mut change = caller.begin_change().await?;
    let connection = change.connection();
    VirtualModelView::row(connection, id).await?;
    let added = targets::add(connection, Owner::VirtualModel, id, target).await?;
    let detail = AuditDetail::new("virtual_model.add_default")
        .id(id)
        .created(&added);
    change.commit(detail).await?;
    Ok((StatusCode::CREATED, Json(added)))
}

/// Remove a default target from a virtual model
#[utoipa::path(delete, path = "/admin/virtual-model-defaults/{id}", tag = "virtual_models",
    params(("id" = i64, Path, description = "ID of the target")), responses((status = 204, description = "The target has been removed.")))]
async fn remove_default(caller: Caller, Path(id): Path<i64>) -> Result<StatusCode, ApiError> {
    let mut change = caller.begin_change().await?;
    let connection = change.connection();
    let owner = stored::owner(connection, Owner::VirtualModel, id)
        .await
        .map_err(ApiError::of_row("target"))?;
    let before = VirtualModelView::find(connection, owner).await?;
    stored::delete(connection, Owner::VirtualModel, id).await?;
    resource::changed(change, "remove_default", &before).await
}
