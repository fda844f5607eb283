use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};
use sqlx::PgConnection;
use utoipa::ToSchema;

use crate::api::framework::{ApiError, ErrorCode, checks};
use crate::db::DbError;
use crate::db::targets::{self, NewTargetRow, Owner, TargetRow};

/// Most targets of one list.
const MOST: usize = 32;
/// Largest weight, and largest position of a target or rule.
const MOST_NUMBER: i32 = 1_000_000;

/// A concrete model that may answer for a virtual one.
#[derive(Serialize, ToSchema)]
pub(crate) struct TargetView {
    id: i64,
    model_id: i64,
    model: String,
    /// Its share beside the other targets of the list.
    weight: i32,
    position: i32,
}

impl From<TargetRow> for TargetView {
    fn from(row: TargetRow) -> Self {
        let TargetRow {
            id,
            owner: _,
            model_id,
            model,
            weight,
            position,
        } = row;
        Self {
            id,
            model_id,
            model,
            weight,
            position,
        }
    }
}

/// A concrete model, never a virtual one, that shall answer.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct NewTarget {
    model_id: i64,
    /// Its share beside the other targets of the list.
    #[schema(minimum = 1, maximum = 1_000_000, default = 100)]
    #[serde(default = "usual_weight")]
    weight: i32,
    /// By default after those before it.
    #[schema(minimum = 0, maximum = 1_000_000)]
    position: Option<i32>,
}

fn usual_weight() -> i32 {
    100
}

/// The position of a target or rule.
pub(crate) fn position(value: i32) -> Result<i32, ApiError> {
    checks::between("position", 0, MOST_NUMBER)(value)
}

impl NewTarget {
    fn row(self, usual_position: i32) -> Result<NewTargetRow, ApiError> {
        let Self {
            model_id,
            weight,
            position: at,
        } = self;
        Ok(NewTargetRow {
            model_id,
            weight: checks::between("weight", 1, MOST_NUMBER)(weight)?,
            position: position(at.unwrap_or(usual_position))?,
        })
    }
}

/// Checks a whole list that is to be stored; `field` is where it was given.
async fn checked(
    connection: &mut PgConnection,
    field: &str,
    list: Vec<NewTarget>,
) -> Result<Vec<NewTargetRow>, ApiError> {
    let wrong = |reason: &str| Err(ApiError::invalid(field, format!("{field}: {reason}")));
    if list.len() > MOST {
        return wrong(&format!("{MOST} targets at most"));
    }
    let mut rows: Vec<NewTargetRow> = Vec::with_capacity(list.len());
    for target in list {
        let after = rows.last().map_or(0, |last| last.position + 1);
        rows.push(target.row(after).map_err(|error| error.with_field(field))?);
    }
    let models: Vec<i64> = rows.iter().map(|row| row.model_id).collect();
    if models.iter().collect::<BTreeSet<_>>().len() < rows.len() {
        return wrong("a model is there twice");
    }
    let positions: BTreeSet<i32> = rows.iter().map(|row| row.position).collect();
    if positions.len() < rows.len() {
        return wrong("two targets have one position");
    }
    if let Some(missing) = targets::missing_models(connection, &models).await?.first() {
        return wrong(&format!("there is no model {missing}"));
    }
    Ok(rows)
}

/// Checks `list` and puts it in place of all that the owner has.
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
    let held = targets::of(connection, owner, &[id]).await?;
    if held.len() >= MOST {
        return Err(ApiError::new(
            ErrorCode::TooMany,
            format!("a list has {MOST} targets at most"),
        ));
    }
    let row = target.row(held.last().map_or(0, |last| last.position + 1))?;
    let missing = targets::missing_models(connection, &[row.model_id]).await?;
    if !missing.is_empty() {
        return Err(ApiError::invalid("model_id", "there is no such model"));
    }
    let added = targets::insert(connection, owner, id, row)
        .await
        .map_err(taken)?;
    let rows = targets::of(connection, owner, &[id]).await?;
    let view = rows.into_iter().find(|row| row.id == added);
    view.map(TargetView::from).ok_or_else(ApiError::internal)
}

fn taken(error: DbError) -> ApiError {
    match error {
        DbError::Duplicate { constraint } if constraint.ends_with("_model") => {
            ApiError::duplicate("model_id", "this model is a target already")
        }
        DbError::Duplicate { .. } => {
            ApiError::duplicate("position", "another target has this position")
        }
        other => other.into(),
    }
}
