use sqlx::PgConnection;

use super::DbError;

/// The maximum duration of a report's query, shorter than the timeout of requests.
const REPORT_TIMEOUT: &str = "25s";
/// How often PostgreSQL checks during a report's query whether the control plane has
/// closed the connection.
const CONNECTION_CHECK: &str = "1s";

/// Bounds the queries of the transaction.
pub(super) async fn bound(connection: &mut PgConnection) -> Result<(), DbError> {
    // PostgreSQL before 14 has no check of connections.
    query!(
        "SELECT set_config('statement_timeout', $1, true) AS timeout, \
                (SELECT set_config(name, $2, true) FROM pg_settings \
                  WHERE name = 'client_connection_check_interval') AS check",
        REPORT_TIMEOUT,
        CONNECTION_CHECK,
    )
    .fetch_one(connection)
    .await?;
    Ok(())
}
