use sqlx::PgConnection;
use time::OffsetDateTime;

use super::DbError;

/// The maximum number of sessions of one principal; a further login ends the oldest.
const MAX_SESSIONS: i64 = 50;

/// The principal of a valid session.
pub(crate) struct SessionRow {
    pub(crate) principal_id: i64,
    pub(crate) name: String,
    /// The admin permissions that its roles grant.
    pub(crate) verbs: Vec<String>,
}

/// The data to verify a login.
pub(crate) struct LoginRow {
    pub(crate) principal_id: i64,
    pub(crate) name: String,
    pub(crate) password_hash: Option<String>,
}

/// The principal of that name, unless it is disabled.
pub(crate) async fn login(
    connection: &mut PgConnection,
    name: &str,
) -> Result<Option<LoginRow>, DbError> {
    let row = query_as!(
        LoginRow,
        "SELECT id AS principal_id, name, password_hash FROM principals \
          WHERE name = $1 AND NOT disabled",
        name,
    )
    .fetch_optional(connection)
    .await?;
    Ok(row)
}

/// Starts a session unless the password was replaced or the principal disabled while
/// the password was verified. The row lock orders such a change wholly before or after.
/// Returns whether the session was started.
pub(crate) async fn insert(
    connection: &mut PgConnection,
    token_hash: &[u8],
    checked: &LoginRow,
    expires_at: OffsetDateTime,
) -> Result<bool, DbError> {
    let LoginRow {
        principal_id,
        name: _,
        password_hash,
    } = checked;
    let done = query!(
        "INSERT INTO sessions (token_hash, principal_id, expires_at) \
         SELECT $1, id, $3 FROM principals \
          WHERE id = $2 AND password_hash = $4 AND NOT disabled FOR SHARE",
        token_hash,
        *principal_id,
        expires_at,
        password_hash.as_deref(),
    )
    .execute(&mut *connection)
    .await?;
    if done.rows_affected() == 0 {
        return Ok(false);
    }
    query!(
        "DELETE FROM sessions WHERE principal_id = $1 AND token_hash NOT IN \
         (SELECT token_hash FROM sessions WHERE principal_id = $1 \
           ORDER BY created_at DESC LIMIT $2)",
        *principal_id,
        MAX_SESSIONS,
    )
    .execute(connection)
    .await?;
    Ok(true)
}

/// The session of the token, unless it has expired or its principal is disabled.
pub(crate) async fn find(
    connection: &mut PgConnection,
    token_hash: &[u8],
) -> Result<Option<SessionRow>, DbError> {
    let row = query_as!(
        SessionRow,
        r#"SELECT p.id AS principal_id, p.name,
                  ARRAY(SELECT DISTINCT g.verb FROM principal_roles AS h
                          JOIN role_permissions AS g ON g.role_id = h.role_id
                         WHERE h.principal_id = p.id AND g.resource = '*') AS "verbs!"
             FROM sessions AS s JOIN principals AS p ON p.id = s.principal_id
            WHERE s.token_hash = $1 AND s.expires_at > now() AND NOT p.disabled"#,
        token_hash,
    )
    .fetch_optional(connection)
    .await?;
    Ok(row)
}

pub(crate) async fn delete(
    connection: &mut PgConnection,
    token_hash: &[u8],
) -> Result<(), DbError> {
    query!("DELETE FROM sessions WHERE token_hash = $1", token_hash)
        .execute(connection)
        .await?;
    Ok(())
}

/// Ends all sessions, or all of one principal. Returns their number.
pub(crate) async fn delete_all(
    connection: &mut PgConnection,
    principal_id: Option<i64>,
) -> Result<u64, DbError> {
    let done = query!(
        "DELETE FROM sessions WHERE $1::bigint IS NULL OR principal_id = $1",
        principal_id,
    )
    .execute(connection)
    .await?;
    Ok(done.rows_affected())
}

pub(crate) async fn prune(connection: &mut PgConnection) -> Result<u64, DbError> {
    let done = query!("DELETE FROM sessions WHERE expires_at <= now()")
        .execute(connection)
        .await?;
    Ok(done.rows_affected())
}
