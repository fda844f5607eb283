use sqlx::{Executor, PgConnection, Postgres, Row};

use super::DbError;

/// The state of the configuration: its version and the ID of the last change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ConfigState {
    pub(crate) version: u64,
    /// Differs between two histories with the same version (a restored backup).
    pub(crate) change_id: String,
}

pub(crate) async fn read(connection: &mut PgConnection) -> Result<ConfigState, DbError> {
    let row = query!(r#"SELECT config_version, change_id::text AS "change_id!" FROM config_state"#)
        .fetch_one(connection)
        .await?;
    Ok(ConfigState {
        version: row.config_version.unsigned_abs(),
        change_id: row.change_id,
    })
}

/// The process of the server that runs this statement.
pub(crate) async fn server_process<'c>(
    executor: impl Executor<'c, Database = Postgres>,
) -> Result<i32, DbError> {
    let row = executor.fetch_one("SELECT pg_backend_pid()").await?;
    Ok(row.try_get(0)?)
}

/// Sends `token` on `channel`. A listener uses it to check whether notifications
/// pass through a connection pooler.
pub(crate) async fn notify(
    connection: &mut PgConnection,
    channel: &str,
    token: &str,
) -> Result<(), DbError> {
    query!("SELECT pg_notify($1, $2)", channel, token)
        .execute(connection)
        .await?;
    Ok(())
}
