use sqlx::PgConnection;

use super::DbError;

/// The check value of the database's encryption key, if one was stored. Locks the table,
/// so that one control plane at a time decides about it.
pub(crate) async fn lock(connection: &mut PgConnection) -> Result<Option<Vec<u8>>, DbError> {
    query!("LOCK TABLE encryption_key IN EXCLUSIVE MODE")
        .execute(&mut *connection)
        .await?;
    let stored = query_scalar!("SELECT check_value FROM encryption_key")
        .fetch_optional(connection)
        .await?;
    Ok(stored)
}

/// Stores the check value of the key that credentials are encrypted with from now on.
pub(crate) async fn store(
    connection: &mut PgConnection,
    check_value: &[u8],
) -> Result<(), DbError> {
    query!(
        "INSERT INTO encryption_key (check_value) VALUES ($1) \
         ON CONFLICT (only_row) DO UPDATE SET check_value = EXCLUDED.check_value",
        check_value,
    )
    .execute(connection)
    .await?;
    Ok(())
}

/// The beginnings of all encrypted credentials, which name their keys, each once.
pub(crate) async fn headers(connection: &mut PgConnection) -> Result<Vec<Vec<u8>>, DbError> {
    let rows = query_scalar!(
        r#"SELECT DISTINCT substring(sealed FROM 1 FOR 5) AS "header!" FROM (
               SELECT upstream_api_key FROM model_backends
               UNION ALL SELECT extra_headers FROM model_backends) AS stored (sealed)
            WHERE sealed IS NOT NULL"#
    )
    .fetch_all(connection)
    .await?;
    Ok(rows)
}
