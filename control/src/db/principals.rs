use sqlx::PgConnection;
use time::OffsetDateTime;

use super::{DbError, Page, only};

/// A principal and its roles.
#[derive(Clone)]
pub(crate) struct PrincipalRow {
    pub(crate) id: i64,
    pub(crate) kind: String,
    pub(crate) name: String,
    pub(crate) email: Option<String>,
    pub(crate) disabled: bool,
    pub(crate) created_at: OffsetDateTime,
    pub(crate) roles: Vec<String>,
    pub(crate) has_password: bool,
    pub(crate) team_id: Option<i64>,
}

pub(crate) async fn list(
    connection: &mut PgConnection,
    page: Page,
) -> Result<Vec<PrincipalRow>, DbError> {
    let rows = query_as!(
        PrincipalRow,
        r#"SELECT p.id, p.kind, p.name, p.email, p.disabled, p.created_at,
                  ARRAY(SELECT r.name FROM principal_roles AS h JOIN roles AS r ON r.id = h.role_id
                         WHERE h.principal_id = p.id ORDER BY r.name) AS "roles!",
                  p.password_hash IS NOT NULL AS "has_password!", p.team_id
             FROM principals AS p
            WHERE $1::bigint IS NULL OR p.id > $1
            ORDER BY p.id LIMIT $2"#,
        page.after,
        page.limit,
    )
    .fetch_all(connection)
    .await?;
    Ok(rows)
}

pub(crate) async fn get(connection: &mut PgConnection, id: i64) -> Result<PrincipalRow, DbError> {
    let rows = list(connection, Page::from_id(id)).await?;
    only(rows, |row| row.id == id)
}

pub(crate) async fn find_by_name(
    connection: &mut PgConnection,
    name: &str,
) -> Result<PrincipalRow, DbError> {
    let id = query_scalar!("SELECT id FROM principals WHERE name = $1", name)
        .fetch_one(&mut *connection)
        .await?;
    get(connection, id).await
}

pub(crate) async fn insert(
    connection: &mut PgConnection,
    name: &str,
    kind: &str,
    email: Option<&str>,
    team_id: Option<i64>,
) -> Result<i64, DbError> {
    let id = query_scalar!(
        "INSERT INTO principals (name, kind, email, team_id) VALUES ($1, $2, $3, $4) RETURNING id",
        name,
        kind,
        email,
        team_id,
    )
    .fetch_one(connection)
    .await?;
    Ok(id)
}

/// Writes the fields that can change after creation.
pub(crate) async fn update(
    connection: &mut PgConnection,
    row: &PrincipalRow,
) -> Result<(), DbError> {
    query!(
        "UPDATE principals SET email = $2, disabled = $3, team_id = $4 WHERE id = $1",
        row.id,
        row.email.as_deref(),
        row.disabled,
        row.team_id,
    )
    .execute(connection)
    .await?;
    Ok(())
}

/// Sets the password, makes the principal a user and ends its sessions.
pub(crate) async fn set_password(
    connection: &mut PgConnection,
    id: i64,
    password_hash: &str,
) -> Result<u64, DbError> {
    let done = query!(
        "UPDATE principals SET password_hash = $2, kind = 'user' WHERE id = $1",
        id,
        password_hash,
    )
    .execute(&mut *connection)
    .await?;
    if done.rows_affected() == 0 {
        return Err(DbError::NotFound);
    }
    super::sessions::delete_all(connection, Some(id)).await
}

pub(crate) async fn delete(connection: &mut PgConnection, id: i64) -> Result<(), DbError> {
    query!("DELETE FROM principals WHERE id = $1", id)
        .execute(connection)
        .await?;
    Ok(())
}

/// Idempotent.
pub(crate) async fn add_role(
    connection: &mut PgConnection,
    id: i64,
    role_id: i64,
) -> Result<(), DbError> {
    query!(
        "INSERT INTO principal_roles (principal_id, role_id) VALUES ($1, $2) ON CONFLICT DO NOTHING",
        id,
        role_id,
    )
    .execute(connection)
    .await?;
    Ok(())
}

/// Returns whether the principal had the role.
pub(crate) async fn remove_role(
    connection: &mut PgConnection,
    id: i64,
    role: &str,
) -> Result<bool, DbError> {
    let done = query!(
        "DELETE FROM principal_roles AS h USING roles AS r \
          WHERE h.role_id = r.id AND h.principal_id = $1 AND r.name = $2",
        id,
        role,
    )
    .execute(connection)
    .await?;
    Ok(done.rows_affected() > 0)
}

/// The permissions that its roles grant, with their resources.
pub(crate) async fn permissions(
    connection: &mut PgConnection,
    id: i64,
) -> Result<Vec<(String, String)>, DbError> {
    let rows = query!(
        "SELECT DISTINCT g.verb, g.resource FROM principal_roles AS h \
           JOIN role_permissions AS g ON g.role_id = h.role_id \
          WHERE h.principal_id = $1 ORDER BY g.verb, g.resource",
        id,
    )
    .fetch_all(connection)
    .await?;
    Ok(rows
        .into_iter()
        .map(|row| (row.verb, row.resource))
        .collect())
}

/// Whether one of its roles grants `config:write`.
pub(crate) async fn can_configure(connection: &mut PgConnection, id: i64) -> Result<bool, DbError> {
    let found = query_scalar!(
        r#"SELECT EXISTS(SELECT FROM principal_roles AS h
                           JOIN role_permissions AS g ON g.role_id = h.role_id
                          WHERE h.principal_id = $1 AND g.verb = 'config:write') AS "found!""#,
        id,
    )
    .fetch_one(connection)
    .await?;
    Ok(found)
}

/// The number of principals that can log in and change the configuration.
pub(crate) async fn administrators(connection: &mut PgConnection) -> Result<i64, DbError> {
    let count = query_scalar!(
        r#"SELECT count(*) AS "count!" FROM principals AS p
            WHERE NOT p.disabled AND p.password_hash IS NOT NULL
              AND EXISTS(SELECT FROM principal_roles AS h
                           JOIN role_permissions AS g ON g.role_id = h.role_id
                          WHERE h.principal_id = p.id AND g.verb = 'config:write')"#
    )
    .fetch_one(connection)
    .await?;
    Ok(count)
}
