use std::collections::BTreeMap;

use sqlx::PgConnection;

use super::{DbError, Page, only};

/// A role and its permissions, sorted by permission and resource.
#[derive(Clone)]
pub(crate) struct RoleRow {
    pub(crate) id: i64,
    pub(crate) name: String,
    pub(crate) description: Option<String>,
    pub(crate) permissions: Vec<(String, String)>,
}

pub(crate) async fn list(
    connection: &mut PgConnection,
    page: Page,
) -> Result<Vec<RoleRow>, DbError> {
    let roles = query!(
        "SELECT id, name, description FROM roles \
          WHERE $1::bigint IS NULL OR id > $1 ORDER BY id LIMIT $2",
        page.after,
        page.limit,
    )
    .fetch_all(&mut *connection)
    .await?;
    let ids: Vec<i64> = roles.iter().map(|role| role.id).collect();
    let mut granted: BTreeMap<i64, Vec<(String, String)>> = BTreeMap::new();
    let rows = query!(
        "SELECT role_id, verb, resource FROM role_permissions WHERE role_id = ANY ($1) \
          ORDER BY verb, resource",
        &ids,
    )
    .fetch_all(connection)
    .await?;
    for row in rows {
        granted
            .entry(row.role_id)
            .or_default()
            .push((row.verb, row.resource));
    }
    Ok(roles
        .into_iter()
        .map(|role| RoleRow {
            permissions: granted.remove(&role.id).unwrap_or_default(),
            id: role.id,
            name: role.name,
            description: role.description,
        })
        .collect())
}

pub(crate) async fn get(connection: &mut PgConnection, id: i64) -> Result<RoleRow, DbError> {
    let rows = list(connection, Page::from_id(id)).await?;
    only(rows, |row| row.id == id)
}

pub(crate) async fn find(connection: &mut PgConnection, name: &str) -> Result<RoleRow, DbError> {
    let id = query_scalar!("SELECT id FROM roles WHERE name = $1", name)
        .fetch_one(&mut *connection)
        .await?;
    get(connection, id).await
}

pub(crate) async fn insert(
    connection: &mut PgConnection,
    name: &str,
    description: Option<&str>,
) -> Result<i64, DbError> {
    let id = query_scalar!(
        "INSERT INTO roles (name, description) VALUES ($1, $2) RETURNING id",
        name,
        description,
    )
    .fetch_one(connection)
    .await?;
    Ok(id)
}

pub(crate) async fn update(
    connection: &mut PgConnection,
    id: i64,
    description: Option<&str>,
) -> Result<(), DbError> {
    query!(
        "UPDATE roles SET description = $2 WHERE id = $1",
        id,
        description
    )
    .execute(connection)
    .await?;
    Ok(())
}

/// Fails with a reference error while a principal has the role.
pub(crate) async fn delete(connection: &mut PgConnection, id: i64) -> Result<(), DbError> {
    query!("DELETE FROM roles WHERE id = $1", id)
        .execute(connection)
        .await?;
    Ok(())
}

/// Idempotent.
pub(crate) async fn grant(
    connection: &mut PgConnection,
    id: i64,
    verb: &str,
    resource: &str,
) -> Result<(), DbError> {
    query!(
        "INSERT INTO role_permissions (role_id, verb, resource) VALUES ($1, $2, $3) \
         ON CONFLICT DO NOTHING",
        id,
        verb,
        resource,
    )
    .execute(connection)
    .await?;
    Ok(())
}

/// Idempotent.
pub(crate) async fn revoke(
    connection: &mut PgConnection,
    id: i64,
    verb: &str,
    resource: &str,
) -> Result<(), DbError> {
    query!(
        "DELETE FROM role_permissions WHERE role_id = $1 AND verb = $2 AND resource = $3",
        id,
        verb,
        resource,
    )
    .execute(connection)
    .await?;
    Ok(())
}
