use fastllm_contract::{BudgetId, BudgetState, Micros, Timestamp, Tokens};
use sqlx::PgConnection;
use time::OffsetDateTime;

use super::{DbError, reconcile, shares};
use crate::clock;

/// A budget and the start of one of its windows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct WindowId {
    pub(crate) budget: i64,
    pub(crate) start: OffsetDateTime,
}

impl WindowId {
    /// `None` if the database cannot store the values.
    pub(crate) fn new(budget: BudgetId, start: Timestamp) -> Option<Self> {
        Some(Self {
            budget: i64::try_from(budget.0).ok()?,
            start: clock::moment(start)?,
        })
    }
}

/// The columns of many windows, as arrays.
pub(super) fn columns(windows: &[WindowId]) -> (Vec<i64>, Vec<OffsetDateTime>) {
    windows
        .iter()
        .map(|window| (window.budget, window.start))
        .unzip()
}

/// Stored usage of these windows, sorted by ID. Windows without usage are omitted.
pub(crate) async fn stored(
    connection: &mut PgConnection,
    windows: &[WindowId],
) -> Result<Vec<BudgetState>, DbError> {
    let (budgets, starts) = columns(windows);
    let rows = query!(
        "SELECT s.budget_id, s.window_start, s.tokens_used, s.cost_used_micros \
           FROM unnest($1::bigint[], $2::timestamptz[]) AS w (budget_id, window_start) \
           JOIN budget_spending AS s USING (budget_id, window_start) \
          WHERE s.tokens_used > 0 OR s.cost_used_micros > 0 \
          ORDER BY s.budget_id",
        &budgets,
        &starts,
    )
    .fetch_all(connection)
    .await?;
    Ok(rows
        .into_iter()
        .map(|row| BudgetState {
            budget: BudgetId(row.budget_id.unsigned_abs()),
            window_start: clock::timestamp(row.window_start),
            tokens_used: Tokens(row.tokens_used.unsigned_abs()),
            cost_used_micros: Micros(row.cost_used_micros.unsigned_abs()),
        })
        .collect())
}

/// Merges the windows of a budget that start from `window.start` (inclusive) to
/// `end` (exclusive) into one, after a change of the budget's window length.
pub(crate) async fn merge(
    connection: &mut PgConnection,
    window: WindowId,
    end: OffsetDateTime,
) -> Result<(), DbError> {
    let WindowId { budget, start } = window;
    let gone = query!(
        r#"WITH gone AS (DELETE FROM budget_spending
                          WHERE budget_id = $1 AND window_start >= $2 AND window_start < $3
                          RETURNING tokens_used, cost_used_micros)
           SELECT least(sum(tokens_used), 9223372036854775807)::bigint AS tokens,
                  least(sum(cost_used_micros), 9223372036854775807)::bigint AS cost FROM gone
           HAVING count(*) > 0"#,
        budget,
        start,
        end,
    )
    .fetch_optional(&mut *connection)
    .await?;
    let Some((tokens, cost)) = gone.and_then(|gone| gone.tokens.zip(gone.cost)) else {
        return Ok(());
    };
    query!(
        "INSERT INTO budget_spending (budget_id, window_start, tokens_used, cost_used_micros) \
         VALUES ($1, $2, $3, $4)",
        budget,
        start,
        tokens,
        cost,
    )
    .execute(connection)
    .await?;
    Ok(())
}

/// Amounts of a budget that gateways have used or reserved and that are not stored
/// yet.
pub(crate) struct InFlight {
    pub(crate) budget: i64,
    pub(crate) tokens: i64,
    pub(crate) cost_micros: i64,
}

/// Stored usage of these windows, and the amounts in flight. Within a transaction that
/// reads one state of the database, usage that is stored meanwhile is in exactly one of
/// them.
pub(crate) async fn amounts(
    connection: &mut PgConnection,
    windows: &[WindowId],
) -> Result<(Vec<BudgetState>, Vec<InFlight>), DbError> {
    let stored = stored(connection, windows).await?;
    let in_flight = in_flight(connection, windows).await?;
    Ok((stored, in_flight))
}

async fn in_flight(
    connection: &mut PgConnection,
    windows: &[WindowId],
) -> Result<Vec<InFlight>, DbError> {
    let (budgets, starts) = columns(windows);
    let rows = query_as!(
        InFlight,
        r#"SELECT s.budget_id AS budget,
                  least(sum(greatest(s.tokens_used - s.tokens_stored, 0)::numeric
                            + CASE WHEN s.reported_at > now() - make_interval(secs => $4)
                                   THEN s.tokens_reserved ELSE 0 END),
                        9223372036854775807)::bigint AS "tokens!",
                  least(sum(greatest(s.cost_used_micros - s.cost_stored_micros, 0)::numeric
                            + CASE WHEN s.reported_at > now() - make_interval(secs => $4)
                                   THEN s.cost_reserved_micros ELSE 0 END),
                        9223372036854775807)::bigint AS "cost_micros!"
             FROM unnest($1::bigint[], $2::timestamptz[]) AS w (budget_id, window_start)
             JOIN budget_shares AS s USING (budget_id, window_start)
            WHERE s.reported_at > now() - make_interval(secs => $3)
            GROUP BY s.budget_id"#,
        &budgets,
        &starts,
        shares::ENDED_SECONDS,
        reconcile::LIVE_SECONDS,
    )
    .fetch_all(connection)
    .await?;
    Ok(rows)
}

/// How long a window is kept, from its start. A window lasts at most 31 days, and
/// one hour more if clocks are set back.
const KEPT_DAYS: i32 = 40 + 32;

pub(crate) async fn prune(connection: &mut PgConnection) -> Result<u64, DbError> {
    let done = query!(
        "DELETE FROM budget_spending WHERE window_start < now() - make_interval(days => $1)",
        KEPT_DAYS,
    )
    .execute(connection)
    .await?;
    Ok(done.rows_affected())
}
