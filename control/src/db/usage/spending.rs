use std::collections::BTreeSet;

use fastllm_contract::{Budget, BudgetSettlement};
use fastllm_engine::window::Window;
use sqlx::PgConnection;

use super::Batch;
use crate::accounting::{AppliedBudget, Spending, UsedAmounts, budget_id};
use crate::db::DbError;
use crate::db::budgets::BudgetColumns;

/// Adds usage to every budget that applies, in the window of its time, and what the
/// gateway settled for it to the share of the start that sent the batch.
pub(super) async fn add(
    connection: &mut PgConnection,
    batch: &Batch<'_>,
    used: &[UsedAmounts],
) -> Result<(), DbError> {
    let settled = batch.settled.as_deref();
    let budgets = applied(connection, used, settled.unwrap_or_default()).await?;
    let spending = Spending::of(&budgets, used, settled);
    if spending.is_empty() {
        return Ok(());
    }
    let Spending {
        budget_ids,
        window_starts,
        tokens,
        cost_micros,
        tokens_settled,
        cost_settled_micros,
    } = &spending;
    query!(
        "INSERT INTO budget_spending AS s (budget_id, window_start, tokens_used, cost_used_micros) \
         SELECT * FROM unnest($1::bigint[], $2::timestamptz[], $3::bigint[], $4::bigint[]) \
         ON CONFLICT (budget_id, window_start) DO UPDATE \
            SET tokens_used = least(s.tokens_used::numeric + excluded.tokens_used, \
                                    9223372036854775807)::bigint, \
                cost_used_micros = least(s.cost_used_micros::numeric + excluded.cost_used_micros, \
                                         9223372036854775807)::bigint",
        budget_ids,
        window_starts,
        tokens,
        cost_micros,
    )
    .execute(&mut *connection)
    .await?;
    query!(
        "INSERT INTO budget_shares AS s (budget_id, window_start, replica, boot_id, \
                tokens_stored, cost_stored_micros) \
         SELECT r.budget_id, r.window_start, $5, $6, r.tokens, r.cost \
           FROM unnest($1::bigint[], $2::timestamptz[], $3::bigint[], $4::bigint[]) \
                AS r (budget_id, window_start, tokens, cost) \
         ON CONFLICT (budget_id, window_start, replica, boot_id) DO UPDATE \
            SET tokens_stored = least(s.tokens_stored::numeric + excluded.tokens_stored, \
                                      9223372036854775807)::bigint, \
                cost_stored_micros = least(s.cost_stored_micros::numeric \
                                               + excluded.cost_stored_micros, \
                                           9223372036854775807)::bigint",
        budget_ids,
        window_starts,
        tokens_settled,
        cost_settled_micros,
        batch.id.replica,
        batch.id.boot_id,
    )
    .execute(connection)
    .await?;
    Ok(())
}

/// The budgets that apply to the usage, and those that the gateway settled. They are
/// locked until the transaction ends, in the order of their IDs, so that none is deleted
/// or gets other windows.
async fn applied(
    connection: &mut PgConnection,
    used: &[UsedAmounts],
    settled: &[BudgetSettlement],
) -> Result<Vec<AppliedBudget>, DbError> {
    fn distinct(ids: impl Iterator<Item = i64>) -> Vec<i64> {
        ids.collect::<BTreeSet<_>>().into_iter().collect()
    }
    let rows = query!(
        "SELECT id, principal_id, model_id, key_id, team_id, budget_window, time_zone, \
                window_start \
           FROM budgets \
          WHERE principal_id = ANY ($1) AND (model_id IS NULL OR model_id = ANY ($2)) \
             OR key_id = ANY ($3) OR team_id = ANY ($4) OR id = ANY ($5) \
          ORDER BY id FOR SHARE",
        &distinct(used.iter().map(|used| used.principal_id)),
        &distinct(used.iter().map(|used| used.model_id)),
        &distinct(used.iter().filter_map(|used| used.key_id)),
        &distinct(used.iter().filter_map(|used| used.team_id)),
        &distinct(settled.iter().filter_map(budget_id)),
    )
    .fetch_all(connection)
    .await?;
    let budgets = rows.into_iter().filter_map(|row| {
        let budget = Budget::from(BudgetColumns {
            id: row.id,
            tokens_total: None,
            cost_total_micros: None,
            budget_window: row.budget_window,
            time_zone: row.time_zone,
            window_start: row.window_start,
        });
        let window = Window::of(&budget)
            .inspect_err(|error| tracing::error!(budget = row.id, %error, "usage is not added to a budget with an invalid window"))
            .ok()?;
        Some(AppliedBudget {
            id: row.id,
            principal_id: row.principal_id,
            model_id: row.model_id,
            key_id: row.key_id,
            team_id: row.team_id,
            window,
        })
    });
    Ok(budgets.collect())
}
