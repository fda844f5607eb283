use serde_json::Value;
use sqlx::PgConnection;
use time::OffsetDateTime;

use super::{Actor, AuditEntry, DbError, Page};

/// A row of the audit log.
pub(crate) struct AuditRow {
    pub(crate) id: i64,
    pub(crate) actor_id: Option<i64>,
    pub(crate) actor_name: String,
    pub(crate) action: String,
    pub(crate) target: String,
    pub(crate) detail: Value,
    pub(crate) source: Option<String>,
    pub(crate) at: OffsetDateTime,
}

/// A filter on the audit log.
#[derive(Debug, Default)]
pub(crate) struct AuditFilter {
    pub(crate) actor_id: Option<i64>,
    /// Text that the target contains.
    pub(crate) target: Option<String>,
    pub(crate) since: Option<OffsetDateTime>,
}

pub(super) async fn insert(
    connection: &mut PgConnection,
    actor: &Actor,
    entry: &AuditEntry,
) -> Result<(), DbError> {
    let Actor {
        id,
        name,
        action,
        target,
        source,
    } = actor;
    query!(
        "INSERT INTO audit_events (actor_id, actor_name, action, target, detail, source) \
         VALUES ($1, $2, $3, $4, $5, $6)",
        *id,
        name,
        action,
        target,
        entry.detail,
        source.as_deref(),
    )
    .execute(connection)
    .await?;
    Ok(())
}

/// Newest first.
pub(crate) async fn list(
    connection: &mut PgConnection,
    filter: &AuditFilter,
    page: Page,
) -> Result<Vec<AuditRow>, DbError> {
    let rows = query_as!(
        AuditRow,
        "SELECT id, actor_id, actor_name, action, target, detail, source, at \
           FROM audit_events \
          WHERE ($1::bigint IS NULL OR id < $1) \
            AND ($2::bigint IS NULL OR actor_id = $2) \
            AND ($3::text IS NULL OR strpos(target, $3) > 0) \
            AND ($4::timestamptz IS NULL OR at >= $4) \
          ORDER BY id DESC LIMIT $5",
        page.after,
        filter.actor_id,
        filter.target,
        filter.since,
        page.limit,
    )
    .fetch_all(connection)
    .await?;
    Ok(rows)
}
