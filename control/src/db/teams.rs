use sqlx::PgConnection;
use time::OffsetDateTime;

use super::{DbError, Page, only};

/// A group of principals that share limits and a budget.
#[derive(Debug, Clone)]
pub(crate) struct TeamRow {
    pub(crate) id: i64,
    pub(crate) name: String,
    pub(crate) description: Option<String>,
    pub(crate) created_at: OffsetDateTime,
    /// The number of principals in the team.
    pub(crate) members: i64,
}

pub(crate) async fn list(
    connection: &mut PgConnection,
    page: Page,
) -> Result<Vec<TeamRow>, DbError> {
    let rows = query_as!(
        TeamRow,
        r#"SELECT t.id, t.name, t.description, t.created_at,
                  (SELECT count(*) FROM principals AS p WHERE p.team_id = t.id) AS "members!"
             FROM teams AS t
            WHERE $1::bigint IS NULL OR t.id > $1
            ORDER BY t.id LIMIT $2"#,
        page.after,
        page.limit,
    )
    .fetch_all(connection)
    .await?;
    Ok(rows)
}

pub(crate) async fn get(connection: &mut PgConnection, id: i64) -> Result<TeamRow, DbError> {
    let rows = list(connection, Page::from_id(id)).await?;
    only(rows, |row| row.id == id)
}

pub(crate) async fn insert(connection: &mut PgConnection, row: &TeamRow) -> Result<i64, DbError> {
    let id = query_scalar!(
        "INSERT INTO teams (name, description) VALUES ($1, $2) RETURNING id",
        row.name,
        row.description.as_deref(),
    )
    .fetch_one(connection)
    .await?;
    Ok(id)
}

pub(crate) async fn update(connection: &mut PgConnection, row: &TeamRow) -> Result<(), DbError> {
    query!(
        "UPDATE teams SET name = $2, description = $3 WHERE id = $1",
        row.id,
        row.name,
        row.description.as_deref(),
    )
    .execute(connection)
    .await?;
    Ok(())
}

/// Fails with a reference error while the team has members.
pub(crate) async fn delete(connection: &mut PgConnection, id: i64) -> Result<(), DbError> {
    query!("DELETE FROM teams WHERE id = $1", id)
        .execute(connection)
        .await?;
    Ok(())
}
