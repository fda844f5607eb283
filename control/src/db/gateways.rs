use serde_json::Value;
use sqlx::PgConnection;

use super::DbError;

/// A gateway that has not reported for this long is not listed.
pub(crate) const SHOWN_SECONDS: i32 = 30;
/// How long the last report of a gateway is kept.
const KEPT_HOURS: i32 = 1;
/// The maximum number of listed gateways: every client with the token can report.
const MAX_LISTED: i64 = 1000;

/// The latest report of one gateway.
pub(crate) struct ReportRow {
    pub(crate) report: Value,
    /// Time since it was received.
    pub(crate) age_seconds: f64,
}

pub(crate) async fn put(
    connection: &mut PgConnection,
    replica: &str,
    report: &Value,
) -> Result<(), DbError> {
    query!(
        "INSERT INTO gateway_reports (replica, report) VALUES ($1, $2) \
         ON CONFLICT (replica) DO UPDATE SET report = $2, received_at = clock_timestamp()",
        replica,
        report,
    )
    .execute(connection)
    .await?;
    Ok(())
}

/// The gateways that reported recently, sorted by name.
pub(crate) async fn list(connection: &mut PgConnection) -> Result<Vec<ReportRow>, DbError> {
    let rows = query_as!(
        ReportRow,
        r#"SELECT report, extract(epoch FROM now() - received_at)::float8 AS "age_seconds!"
             FROM gateway_reports
            WHERE received_at > now() - make_interval(secs => $1)
            ORDER BY replica LIMIT $2"#,
        f64::from(SHOWN_SECONDS),
        MAX_LISTED,
    )
    .fetch_all(connection)
    .await?;
    Ok(rows)
}

pub(crate) async fn prune(connection: &mut PgConnection) -> Result<u64, DbError> {
    let done = query!(
        "DELETE FROM gateway_reports WHERE received_at < now() - make_interval(hours => $1)",
        KEPT_HOURS,
    )
    .execute(connection)
    .await?;
    Ok(done.rows_affected())
}
