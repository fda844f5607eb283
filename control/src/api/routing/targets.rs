use std::collections::BTreeSet;

use serde::Deserialize;
use sqlx::PgConnection;
use utoipa::ToSchema;

use crate::api::framework::fields::view;
use crate::api::framework::{ApiError, ErrorCode, checks};
use crate::db::DbError;
use crate::db::targets::{self, NewTargetRow, Owner, TargetRow};

/// The maximum number of targets in one list.
const MAX_TARGETS: usize = 32;
/// The largest weight, and the largest position of a target or rule.
const MAX_NUMBER: i32 = 1_000_000;

view! {
    /// A model to which a rule or virtual model can route.
    pub(crate) struct TargetView from TargetRow {
        id: i64,
        model_id: i64,
        /// The model's name.
        model: String,
        /// Share of the requests relative to the other targets of the list.
        weight: i32,
        position: i32,
    }
}

/// A target to add: a model, never a virtual one.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct NewTarget {
    model_id: i64,
    /// Share of the requests relative to the other targets of the list.
    #[schema(minimum = 1, maximum = 1_000_000, default = 100)]
    #[serde(default = "default_weight")]
    weight: i32,
    /// By default after the previous target.
    #[schema(minimum = 0, maximum = 1_000_000)]
    position: Option<i32>,
}

fn default_weight() -> i32 {
    100
}

/// Checks the position of a target or rule.
pub(crate) fn position(value: i32) -> Result<i32, ApiError> {
    checks::between(0, MAX_NUMBER)("position", value)
}

impl NewTarget {
    fn row(self, default_position: i32) -> Result<NewTargetRow, ApiError> {
        let Self {
            model_id,
            weight,
            position: at,
        } = self;
        Ok(NewTargetRow {
            model_id,
            weight: checks::between(1, MAX_NUMBER)("weight", weight)?,
            position: position(at.unwrap_or(default_position))?,
        })
    }
}

/// Checks a list before it is stored; `field` is the field that contains it.
async fn checked(
    connection: &mut PgConnection,
    field: &str,
    list: Vec<NewTarget>,
) -> Result<Vec<NewTargetRow>, ApiError> {
    let wrong = |reason: &str| Err(ApiError::invalid(field, format!("{field}: {reason}")));
    if list.len() > MAX_TARGETS {
        return wrong(&format!("at most {MAX_TARGETS} targets"));
    }
    let mut rows: Vec<NewTargetRow> = Vec::with_capacity(list.len());
    for target in list {
        let after = rows.last().map_or(0, |last| last.position + 1);
        rows.push(target.row(after).map_err(|error| error.with_field(field))?);
    }
    let models: Vec<i64> = rows.iter().map(|row| row.model_id).collect();
    if models.iter().collect::<BTreeSet<_>>().len() < rows.len() {
        return wrong("a model is listed twice");
    }
    let positions: BTreeSet<i32> = rows.iter().map(|row| row.position).collect();
    if positions.len() < rows.len() {
        return wrong("two targets have the same position");
    }
    if let Some(missing) = targets::missing_models(connection, &models).await?.first() {
        return wrong(&format!("there is no model {missing}"));
    }
    Ok(rows)
}

/// Checks `list` and replaces the owner's targets with it.
pub(crate) async fn replace(
    connection: &mut PgConnection,
    owner: Owner,
    id: i64,
    list: Vec<NewTarget>,
) -> Result<(), ApiError> {
    let field = match owner {
        Owner::Rule => "targets",
        Owner::VirtualModel => "default_targets",
    };
    if owner == Owner::Rule && list.is_empty() {
        return Err(ApiError::invalid(field, "a rule needs a target"));
    }
    let rows = checked(connection, field, list).await?;
    Ok(targets::replace(connection, owner, id, &rows).await?)
}

/// Adds one target, by default at the end.
pub(crate) async fn add(
    connection: &mut PgConnection,
    owner: Owner,
    id: i64,
    target: NewTarget,
) -> Result<TargetView, ApiError> {
    let existing = targets::of(connection, owner, &[id]).await?;
    if existing.len() >= MAX_TARGETS {
        return Err(ApiError::new(
            ErrorCode::TooMany,
            format!("a list has at most {MAX_TARGETS} targets"),
        ));
    }
    let row = target.row(existing.last().map_or(0, |last| last.position + 1))?;
    let missing = targets::missing_models(connection, &[row.model_id]).await?;
    if !missing.is_empty() {
        return Err(ApiError::invalid("model_id", "there is no such model"));
    }
    let added = targets::insert(connection, owner, id, row)
        .await
        .map_err(duplicate)?;
    let rows = targets::of(connection, owner, &[id]).await?;
    let view = rows.into_iter().find(|row| row.id == added);
    view.map(TargetView::from).ok_or_else(ApiError::internal)
}

fn duplicate(error: DbError) -> ApiError {
    match error {
        DbError::Duplicate { constraint } if constraint.ends_with("_model") => {
            ApiError::duplicate("model_id", "this model is already a target")
        }
        DbError::Duplicate { .. } => {
            ApiError::duplicate("position", "another target has this position")
        }
        other => other.into(),
    }
}
