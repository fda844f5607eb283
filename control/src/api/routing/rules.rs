use std::collections::{BTreeMap, BTreeSet};

use axum::extract::State;
use axum::http::StatusCode;
use serde::{Deserialize, Serialize};
use sqlx::PgConnection;
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::conditions::{ConditionsView, NewRule, RulePatch};
use super::targets::{self, NewTarget, TargetView};
use crate::api::framework::{
    ApiError, AuditDetail, Caller, Delete, ErrorCode, Json, Path, Permission, Resource, Update,
    require_permission, resource,
};
use crate::app::AppState;
use crate::db::rules::RuleRow;
use crate::db::targets::{self as stored, Owner};
use crate::db::{DbError, rules, virtual_models};

/// The maximum number of rules of one virtual model; each may be evaluated for each
/// request.
const MAX_RULES: usize = 256;

pub(crate) fn routes() -> OpenApiRouter<AppState> {
    OpenApiRouter::new()
        .routes(require_permission(Permission::ConfigWrite, routes!(create)))
        .routes(require_permission(
            Permission::ConfigWrite,
            routes!(reorder),
        ))
        .routes(require_permission(Permission::UsageRead, routes!(get)))
        .routes(require_permission(
            Permission::ConfigWrite,
            routes!(update, delete),
        ))
        .routes(require_permission(
            Permission::ConfigWrite,
            routes!(replace_targets, add_target),
        ))
        .routes(require_permission(
            Permission::ConfigWrite,
            routes!(remove_target),
        ))
}

/// A rule of a virtual model. The first rule that holds and has a usable target applies.
#[derive(Serialize, ToSchema)]
pub(crate) struct RuleView {
    id: i64,
    virtual_model_id: i64,
    position: i32,
    /// IDs of principals, one of which is the caller; none means any caller.
    principals: Vec<i64>,
    /// Names of roles, one of which the caller has; none means any roles.
    roles: Vec<String>,
    #[serde(flatten)]
    conditions: ConditionsView,
    /// A later release wrote conditions that this one does not know: the rule is not
    /// published and cannot be changed.
    unreadable: bool,
    targets: Vec<TargetView>,
}

impl RuleView {
    pub(crate) fn new(row: RuleRow, targets: Vec<TargetView>) -> Self {
        let RuleRow {
            id,
            virtual_model_id,
            position,
            principals,
            roles,
            conditions,
        } = row;
        Self {
            id,
            virtual_model_id,
            position,
            principals,
            roles,
            unreadable: conditions.is_none(),
            conditions: conditions.unwrap_or_default().into(),
            targets,
        }
    }
}

/// The created rule.
#[derive(Serialize, ToSchema)]
pub(crate) struct CreatedRule {
    id: i64,
    virtual_model_id: i64,
    position: i32,
}

/// The order in which rules are tried.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct RuleOrder {
    /// The IDs of all rules of the virtual model.
    rules: Vec<i64>,
}

/// The rules of the given virtual models, by virtual model.
pub(crate) async fn views(
    connection: &mut PgConnection,
    virtual_models: &[i64],
) -> Result<BTreeMap<i64, Vec<RuleView>>, DbError> {
    let rows = rules::of_virtual_models(connection, virtual_models).await?;
    let ids: Vec<i64> = rows.iter().map(|row| row.id).collect();
    let mut targets: BTreeMap<i64, Vec<TargetView>> = BTreeMap::new();
    for row in stored::of(connection, Owner::Rule, &ids).await? {
        targets.entry(row.owner).or_default().push(row.into());
    }
    let mut views: BTreeMap<i64, Vec<RuleView>> = BTreeMap::new();
    for row in rows {
        let targets = targets.remove(&row.id).unwrap_or_default();
        views
            .entry(row.virtual_model_id)
            .or_default()
            .push(RuleView::new(row, targets));
    }
    Ok(views)
}

impl Resource for RuleView {
    const KIND: &'static str = "rule";
    type Row = RuleRow;

    fn id(&self) -> i64 {
        self.id
    }

    async fn row(connection: &mut PgConnection, id: i64) -> Result<RuleRow, ApiError> {
        let row = rules::get(connection, id).await;
        row.map_err(ApiError::of_row("rule"))
    }

    async fn view(connection: &mut PgConnection, row: RuleRow) -> Result<Self, ApiError> {
        let targets = stored::of(connection, Owner::Rule, &[row.id]).await?;
        let targets = targets.into_iter().map(TargetView::from);
        Ok(Self::new(row, targets.collect()))
    }
}

impl Update for RuleView {
    type Patch = RulePatch;

    async fn update(
        connection: &mut PgConnection,
        old: RuleRow,
        mut patch: RulePatch,
    ) -> Result<(), ApiError> {
        let position = old.position;
        let targets = patch.take_targets();
        let row = patch.change(old)?;
        names_exist(connection, &row).await?;
        let (id, virtual_model) = (row.id, row.virtual_model_id);
        if row.position != position {
            rules::place(connection, virtual_model, id, row.position).await?;
        }
        rules::update(connection, &row).await?;
        if let Some(targets) = targets {
            targets::replace(connection, Owner::Rule, id, targets).await?;
        }
        all_can_be_tried(connection, virtual_model, "position").await
    }
}

impl Delete for RuleView {
    async fn delete(connection: &mut PgConnection, id: i64) -> Result<(), ApiError> {
        Ok(rules::delete(connection, id).await?)
    }
}

/// Checks that the principals and roles of a rule exist.
async fn names_exist(connection: &mut PgConnection, row: &RuleRow) -> Result<(), ApiError> {
    let missing = rules::missing_principals(connection, &row.principals).await?;
    if let Some(id) = missing.first() {
        return Err(ApiError::invalid(
            "principals",
            format!("there is no principal {id}"),
        ));
    }
    let missing = rules::missing_roles(connection, &row.roles).await?;
    if !missing.is_empty() {
        return Err(ApiError::invalid(
            "roles",
            "one of these roles does not exist",
        ));
    }
    Ok(())
}

/// Checks that no rule follows one that always holds, where it would never be tried.
async fn all_can_be_tried(
    connection: &mut PgConnection,
    virtual_model: i64,
    field: &str,
) -> Result<(), ApiError> {
    let rows = rules::of_virtual_models(connection, &[virtual_model]).await?;
    let before_the_last = rows.iter().rev().skip(1);
    let mut shadowing = before_the_last.filter(|row| row.always_holds());
    match shadowing.next() {
        Some(row) => Err(ApiError::invalid(
            field,
            format!(
                "rule {} (position {}) would always hold, so that no rule after it would ever be tried",
                row.id, row.position
            ),
        )),
        None => Ok(()),
    }
}

/// Retrieve a rule
#[utoipa::path(get, path = "/admin/rules/{id}", tag = "rules", params(("id" = i64, Path, description = "ID of the rule")),
    responses((status = 200, body = RuleView, description = "The rule.")))]
async fn get(State(app): State<AppState>, Path(id): Path<i64>) -> Result<Json<RuleView>, ApiError> {
    resource::show(&app, id).await
}

/// Create a rule
///
/// Creates the rule together with its targets. A rule that always holds is
/// rejected unless it is the last one.
#[utoipa::path(post, path = "/admin/virtual-models/{id}/rules", tag = "rules",
    params(("id" = i64, Path, description = "ID of the virtual model")), request_body = NewRule,
    responses((status = 201, body = CreatedRule, description = "The created rule."),
        (status = 409, description = "`duplicate`: Another rule has the same position.\n\n`too_many`: The virtual model has the maximum number of rules.")))]
async fn create(
    caller: Caller,
    Path(virtual_model_id): Path<i64>,
    Json(new): Json<NewRule>,
) -> Result<(StatusCode, Json<CreatedRule>), ApiError> {
    let mut change = caller.begin_change().await?;
    let connection = change.connection();
    virtual_models::get(connection, virtual_model_id)
        .await
        .map_err(ApiError::of_row("virtual model"))?;
    let others = rules::of_virtual_models(connection, &[virtual_model_id]).await?;
    if others.len() >= MAX_RULES {
        return Err(ApiError::new(
            ErrorCode::TooMany,
            format!("a virtual model has at most {MAX_RULES} rules"),
        ));
    }
    let last = others.last().map_or(0, |rule| rule.position + 1);
    let (row, targets) = new.into_row(virtual_model_id, last)?;
    names_exist(connection, &row).await?;
    let position = row.position;
    let taken = ApiError::of_unique("position", "another rule has this position");
    let id = rules::insert(connection, row).await.map_err(taken)?;
    targets::replace(connection, Owner::Rule, id, targets).await?;
    all_can_be_tried(connection, virtual_model_id, "position").await?;
    resource::created::<RuleView>(change, id).await?;
    let made = CreatedRule {
        id,
        virtual_model_id,
        position,
    };
    Ok((StatusCode::CREATED, Json(made)))
}

/// Update a rule
///
/// The targets, if given, are replaced in the same transaction.
#[utoipa::path(patch, path = "/admin/rules/{id}", tag = "rules", params(("id" = i64, Path, description = "ID of the rule")),
    request_body = RulePatch, responses((status = 204, description = "The rule has been updated."),
        (status = 409, description = "`unreadable`: A later release wrote the rule; it can only be deleted.")))]
async fn update(
    caller: Caller,
    Path(id): Path<i64>,
    Json(patch): Json<RulePatch>,
) -> Result<StatusCode, ApiError> {
    resource::update::<RuleView>(caller, id, patch).await
}

/// Reorder the rules of a virtual model
///
/// Numbers the rules from 0 in the given order.
#[utoipa::path(put, path = "/admin/virtual-models/{id}/rules/order", tag = "rules",
    params(("id" = i64, Path, description = "ID of the virtual model")), request_body = RuleOrder,
    responses((status = 204, description = "The rules have been reordered.")))]
async fn reorder(
    caller: Caller,
    Path(id): Path<i64>,
    Json(RuleOrder { rules: order }): Json<RuleOrder>,
) -> Result<StatusCode, ApiError> {
    let mut change = caller.begin_change().await?;
    let connection = change.connection();
    virtual_models::get(connection, id)
        .await
        .map_err(ApiError::of_row("virtual model"))?;
    let held = rules::of_virtual_models(connection, &[id]).await?;
    let before: Vec<i64> = held.iter().map(|row| row.id).collect();
    let all: BTreeSet<i64> = before.iter().copied().collect();
    if order.len() != all.len() || order.iter().copied().collect::<BTreeSet<_>>() != all {
        return Err(ApiError::invalid(
            "rules",
            "rules must name every rule of the virtual model once",
        ));
    }
    rules::reorder(connection, &order).await?;
    all_can_be_tried(connection, id, "rules").await?;
    let (before, after) = (
        serde_json::json!({ "rules": before }),
        serde_json::json!({ "rules": order }),
    );
    let detail = AuditDetail::new("rule.reorder")
        .id(id)
        .changed(&before, &after);
    change.commit(detail).await
}

/// Delete a rule
///
/// Deletes its targets, too.
#[utoipa::path(delete, path = "/admin/rules/{id}", tag = "rules", params(("id" = i64, Path, description = "ID of the rule")),
    responses((status = 204, description = "The rule has been deleted.")))]
async fn delete(caller: Caller, Path(id): Path<i64>) -> Result<StatusCode, ApiError> {
    resource::delete::<RuleView>(caller, id).await
}

/// Replace the targets of a rule
///
/// A rule needs at least one target.
#[utoipa::path(put, path = "/admin/rules/{id}/targets", tag = "rules",
    params(("id" = i64, Path, description = "ID of the rule")), request_body = Vec<NewTarget>,
    responses((status = 204, description = "The targets have been replaced.")))]
async fn replace_targets(
    caller: Caller,
    Path(id): Path<i64>,
    Json(list): Json<Vec<NewTarget>>,
) -> Result<StatusCode, ApiError> {
    let mut change = caller.begin_change().await?;
    let connection = change.connection();
    let before = RuleView::find(connection, id).await?;
    targets::replace(connection, Owner::Rule, id, list).await?;
    resource::changed(change, "targets", &before).await
}

/// Add a target to a rule
#[utoipa::path(post, path = "/admin/rules/{id}/targets", tag = "rules",
    params(("id" = i64, Path, description = "ID of the rule")), request_body = NewTarget,
    responses((status = 201, body = TargetView, description = "The created target."),
        (status = 409, description = "`duplicate`: Another target of the rule has the same model or position.\n\n`too_many`: The rule has the maximum number of targets.")))]
async fn add_target(
    caller: Caller,
    Path(id): Path<i64>,
    Json(target): Json<NewTarget>,
) -> Result<(StatusCode, Json<TargetView>), ApiError> {
    let mut change = caller.begin_change().await?;
    let connection = change.connection();
    RuleView::row(connection, id).await?;
    let added = targets::add(connection, Owner::Rule, id, target).await?;
    let detail = AuditDetail::new("rule.add_target").id(id).created(&added);
    change.commit(detail).await?;
    Ok((StatusCode::CREATED, Json(added)))
}

/// Remove a target from a rule
#[utoipa::path(delete, path = "/admin/rule-targets/{id}", tag = "rules",
    params(("id" = i64, Path, description = "ID of the target")), responses((status = 204, description = "The target has been removed."),
        (status = 409, description = "`last_target`: A rule needs at least one target.")))]
async fn remove_target(caller: Caller, Path(id): Path<i64>) -> Result<StatusCode, ApiError> {
    let mut change = caller.begin_change().await?;
    let connection = change.connection();
    let rule = stored::owner(connection, Owner::Rule, id)
        .await
        .map_err(ApiError::of_row("target"))?;
    let before = RuleView::find(connection, rule).await?;
    if before.targets.len() == 1 {
        return Err(ApiError::new(
            ErrorCode::LastTarget,
            "a rule needs a target; replace it or delete the rule",
        ));
    }
    stored::delete(connection, Owner::Rule, id).await?;
    resource::changed(change, "remove_target", &before).await
}
