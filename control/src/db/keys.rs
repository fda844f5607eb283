use fastllm_contract::KeyHash;
use sqlx::PgConnection;
use time::OffsetDateTime;

use super::{DbError, Page, only};

/// An API key, without its hash.
#[derive(Clone)]
pub(crate) struct KeyRow {
    pub(crate) id: i64,
    pub(crate) prefix: String,
    pub(crate) name: String,
    pub(crate) principal_id: i64,
    pub(crate) principal: String,
    pub(crate) expires_at: Option<OffsetDateTime>,
    pub(crate) disabled: bool,
    pub(crate) created_at: OffsetDateTime,
    pub(crate) last_used_at: Option<OffsetDateTime>,
}

pub(crate) async fn list(
    connection: &mut PgConnection,
    principal_id: Option<i64>,
    page: Page,
) -> Result<Vec<KeyRow>, DbError> {
    let rows = query_as!(
        KeyRow,
        "SELECT k.id, k.prefix, k.name, k.principal_id, p.name AS principal, k.expires_at, \
                k.disabled, k.created_at, k.last_used_at \
           FROM api_keys AS k JOIN principals AS p ON p.id = k.principal_id \
          WHERE ($1::bigint IS NULL OR k.id > $1) AND ($2::bigint IS NULL OR k.principal_id = $2) \
          ORDER BY k.id LIMIT $3",
        page.after,
        principal_id,
        page.limit,
    )
    .fetch_all(connection)
    .await?;
    Ok(rows)
}

pub(crate) async fn get(connection: &mut PgConnection, id: i64) -> Result<KeyRow, DbError> {
    let rows = list(connection, None, Page::from_id(id)).await?;
    only(rows, |row| row.id == id)
}

pub(crate) async fn insert(
    connection: &mut PgConnection,
    hash: &KeyHash,
    row: &KeyRow,
) -> Result<i64, DbError> {
    let id = query_scalar!(
        "INSERT INTO api_keys (hash, prefix, name, principal_id, expires_at) \
         VALUES ($1, $2, $3, $4, $5) RETURNING id",
        &hash.0[..],
        row.prefix,
        row.name,
        row.principal_id,
        row.expires_at,
    )
    .fetch_one(connection)
    .await?;
    Ok(id)
}

/// Writes the fields that can change after creation.
pub(crate) async fn update(connection: &mut PgConnection, row: &KeyRow) -> Result<(), DbError> {
    query!(
        "UPDATE api_keys SET name = $2, expires_at = $3, disabled = $4 WHERE id = $1",
        row.id,
        row.name,
        row.expires_at,
        row.disabled,
    )
    .execute(connection)
    .await?;
    Ok(())
}
