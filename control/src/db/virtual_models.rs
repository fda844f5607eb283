use sqlx::PgConnection;

use super::{DbError, Page, only};

/// A virtual model without its rules and targets.
#[derive(Debug, Clone)]
pub(crate) struct VirtualModelRow {
    pub(crate) id: i64,
    pub(crate) name: String,
    pub(crate) description: Option<String>,
    /// `prompt` or `caller`.
    pub(crate) split_by: String,
}

pub(crate) async fn list(
    connection: &mut PgConnection,
    page: Page,
) -> Result<Vec<VirtualModelRow>, DbError> {
    let rows = query_as!(
        VirtualModelRow,
        "SELECT id, name, description, split_by FROM virtual_models \
          WHERE $1::bigint IS NULL OR id > $1 ORDER BY id LIMIT $2",
        page.after,
        page.limit,
    )
    .fetch_all(connection)
    .await?;
    Ok(rows)
}

pub(crate) async fn get(
    connection: &mut PgConnection,
    id: i64,
) -> Result<VirtualModelRow, DbError> {
    let rows = list(connection, Page::from_id(id)).await?;
    only(rows, |row| row.id == id)
}

pub(crate) async fn insert(
    connection: &mut PgConnection,
    row: &VirtualModelRow,
) -> Result<i64, DbError> {
    let id = query_scalar!(
        "INSERT INTO virtual_models (name, description, split_by) VALUES ($1, $2, $3) RETURNING id",
        row.name,
        row.description.as_deref(),
        row.split_by,
    )
    .fetch_one(connection)
    .await?;
    Ok(id)
}

pub(crate) async fn update(
    connection: &mut PgConnection,
    row: &VirtualModelRow,
) -> Result<(), DbError> {
    query!(
        "UPDATE virtual_models SET name = $2, description = $3, split_by = $4 WHERE id = $1",
        row.id,
        row.name,
        row.description.as_deref(),
        row.split_by,
    )
    .execute(connection)
    .await?;
    Ok(())
}

/// Deletes the virtual model with its rules and default targets.
pub(crate) async fn delete(connection: &mut PgConnection, id: i64) -> Result<(), DbError> {
    query!("DELETE FROM virtual_models WHERE id = $1", id)
        .execute(connection)
        .await?;
    Ok(())
}
