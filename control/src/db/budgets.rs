use fastllm_contract::{Budget, BudgetId, Micros, Subject, Tokens, WindowLength};
use sqlx::PgConnection;
use time::OffsetDateTime;

use super::subject::{self, Allowance, SubjectId, subject_of};
use super::{DbError, Page};
use crate::clock;

/// The settings of a budget.
pub(crate) struct BudgetFields<'a> {
    pub(crate) tokens_total: Option<i64>,
    pub(crate) cost_total_micros: Option<i64>,
    pub(crate) window: WindowLength,
    pub(crate) time_zone: Option<&'a str>,
}

/// The columns of a [`Budget`].
pub(super) struct BudgetColumns {
    pub(super) id: i64,
    pub(super) tokens_total: Option<i64>,
    pub(super) cost_total_micros: Option<i64>,
    pub(super) budget_window: String,
    pub(super) time_zone: Option<String>,
    pub(super) window_start: OffsetDateTime,
}

impl From<BudgetColumns> for Budget {
    fn from(columns: BudgetColumns) -> Self {
        let BudgetColumns {
            id,
            tokens_total,
            cost_total_micros,
            budget_window,
            time_zone,
            window_start,
        } = columns;
        Self {
            id: BudgetId(id.unsigned_abs()),
            tokens_total: tokens_total.map(|total| Tokens(total.unsigned_abs())),
            cost_total_micros: cost_total_micros.map(|total| Micros(total.unsigned_abs())),
            window: match budget_window.as_str() {
                "daily" => WindowLength::Daily,
                "weekly" => WindowLength::Weekly,
                "monthly" => WindowLength::Monthly,
                _ => WindowLength::Unknown,
            },
            time_zone,
            window_start: clock::timestamp(window_start),
        }
    }
}

fn stored(window: WindowLength) -> &'static str {
    match window {
        WindowLength::Daily => "daily",
        WindowLength::Weekly => "weekly",
        WindowLength::Monthly => "monthly",
        // The table's constraint rejects this value.
        WindowLength::Unknown => "unknown",
    }
}

/// Ordered by ID; with `principal_id`, only those of the principal and of its use of
/// single models.
pub(crate) async fn list(
    connection: &mut PgConnection,
    principal_id: Option<i64>,
    page: Page,
) -> Result<Vec<Allowance<Budget>>, DbError> {
    let rows = query!(
        r#"SELECT b.id, b.tokens_total, b.cost_total_micros, b.budget_window, b.time_zone,
                  b.window_start, b.principal_id, p.name AS "principal?", b.model_id,
                  m.name AS "model?", b.key_id, k.name AS "key?", b.team_id, t.name AS "team?"
             FROM budgets AS b
             LEFT JOIN principals AS p ON p.id = b.principal_id
             LEFT JOIN models AS m ON m.id = b.model_id
             LEFT JOIN api_keys AS k ON k.id = b.key_id
             LEFT JOIN teams AS t ON t.id = b.team_id
            WHERE ($1::bigint IS NULL OR b.id > $1)
              AND ($2::bigint IS NULL OR b.principal_id = $2)
            ORDER BY b.id LIMIT $3"#,
        page.after,
        principal_id,
        page.limit,
    )
    .fetch_all(connection)
    .await?;
    Ok(rows
        .into_iter()
        .map(|row| Allowance {
            id: row.id,
            subject: subject_of!(row as SubjectRow),
            value: Budget::from(BudgetColumns {
                id: row.id,
                tokens_total: row.tokens_total,
                cost_total_micros: row.cost_total_micros,
                budget_window: row.budget_window,
                time_zone: row.time_zone,
                window_start: row.window_start,
            }),
        })
        .collect())
}

pub(crate) async fn get(
    connection: &mut PgConnection,
    subject: SubjectId,
) -> Result<Option<Budget>, DbError> {
    let of = subject.columns();
    let row = query_as!(
        BudgetColumns,
        "SELECT id, tokens_total, cost_total_micros, budget_window, time_zone, window_start \
           FROM budgets \
          WHERE (principal_id = $1 OR key_id = $3 OR team_id = $4) \
            AND model_id IS NOT DISTINCT FROM $2",
        of.principal_id,
        of.model_id,
        of.key_id,
        of.team_id,
    )
    .fetch_optional(connection)
    .await?;
    Ok(row.map(Budget::from))
}

/// Replaces the settings. Spending, and the start of fixed-length windows, are kept. At
/// least one total is set.
pub(crate) async fn put(
    connection: &mut PgConnection,
    subject: SubjectId,
    fields: &BudgetFields<'_>,
) -> Result<(), DbError> {
    let of = subject.columns();
    let BudgetFields {
        tokens_total,
        cost_total_micros,
        window,
        time_zone,
    } = *fields;
    query!(
        "INSERT INTO budgets (principal_id, model_id, key_id, team_id, tokens_total, \
                cost_total_micros, budget_window, time_zone) \
         VALUES ($1, $2, $3, $4, $5, $6, $7, $8) \
         ON CONFLICT (principal_id, model_id, key_id, team_id) DO UPDATE \
            SET tokens_total = $5, cost_total_micros = $6, budget_window = $7, time_zone = $8",
        of.principal_id,
        of.model_id,
        of.key_id,
        of.team_id,
        tokens_total,
        cost_total_micros,
        stored(window),
        time_zone,
    )
    .execute(connection)
    .await?;
    Ok(())
}

/// Idempotent. Deletes the recorded spending, too.
pub(crate) async fn delete(
    connection: &mut PgConnection,
    subject: SubjectId,
) -> Result<(), DbError> {
    let of = subject.columns();
    query!(
        "DELETE FROM budgets WHERE (principal_id = $1 OR key_id = $3 OR team_id = $4) \
            AND model_id IS NOT DISTINCT FROM $2",
        of.principal_id,
        of.model_id,
        of.key_id,
        of.team_id,
    )
    .execute(connection)
    .await?;
    Ok(())
}

/// For the snapshot: those of all subjects other than keys, and of the keys of some
/// shards.
pub(crate) async fn published(
    connection: &mut PgConnection,
    shards: &[i16],
) -> Result<Vec<(Subject, Budget)>, DbError> {
    let rows = query!(
        r#"SELECT b.principal_id, b.model_id, b.key_id, b.team_id, m.name AS "model?", b.id,
                  b.tokens_total, b.cost_total_micros, b.budget_window, b.time_zone,
                  b.window_start
             FROM budgets AS b LEFT JOIN models AS m ON m.id = b.model_id
            WHERE b.key_id IS NULL
               OR b.key_id IN (SELECT k.id FROM api_keys AS k WHERE k.shard = ANY ($1))"#,
        shards,
    )
    .fetch_all(connection)
    .await?;
    Ok(rows
        .into_iter()
        .filter_map(|row| {
            let columns = subject_of!(row as SubjectColumns);
            let budget = Budget::from(BudgetColumns {
                id: row.id,
                tokens_total: row.tokens_total,
                cost_total_micros: row.cost_total_micros,
                budget_window: row.budget_window,
                time_zone: row.time_zone,
                window_start: row.window_start,
            });
            Some((subject::published(&columns, row.model.as_deref())?, budget))
        })
        .collect())
}

/// The existing budgets among `ids`, or all, ordered by ID.
pub(crate) async fn find(
    connection: &mut PgConnection,
    ids: Option<&[i64]>,
) -> Result<Vec<Budget>, DbError> {
    let rows = query_as!(
        BudgetColumns,
        "SELECT id, tokens_total, cost_total_micros, budget_window, time_zone, window_start \
           FROM budgets WHERE $1::bigint[] IS NULL OR id = ANY ($1) ORDER BY id",
        ids,
    )
    .fetch_all(connection)
    .await?;
    Ok(rows.into_iter().map(Budget::from).collect())
}
