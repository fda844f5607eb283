use std::collections::BTreeMap;

use fastllm_contract::{BudgetSettlement, Timestamp};
use fastllm_engine::window::Window;
use time::OffsetDateTime;

use super::moment;

/// A budget that may apply to some events.
#[derive(Debug)]
pub(crate) struct AppliedBudget {
    pub(crate) id: i64,
    pub(crate) principal_id: Option<i64>,
    /// Restricts the budget to the principal's use of this model.
    pub(crate) model_id: Option<i64>,
    pub(crate) key_id: Option<i64>,
    pub(crate) team_id: Option<i64>,
    pub(crate) window: Window,
}

/// The amounts of one stored event and the subjects it applies to.
#[derive(Debug, Clone, Copy)]
pub(crate) struct UsedAmounts {
    pub(crate) at: Timestamp,
    pub(crate) principal_id: i64,
    pub(crate) model_id: i64,
    pub(crate) key_id: Option<i64>,
    pub(crate) team_id: Option<i64>,
    /// Prompt and completion tokens.
    pub(crate) tokens: i64,
    /// 0 if the cost is unknown.
    pub(crate) cost_micros: i64,
}

impl AppliedBudget {
    fn applies(&self, used: &UsedAmounts) -> bool {
        let same = |own: Option<i64>, theirs: Option<i64>| own.is_some() && own == theirs;
        let model = self.model_id.is_none_or(|model| model == used.model_id);
        same(self.key_id, used.key_id)
            || same(self.team_id, used.team_id)
            || same(self.principal_id, Some(used.principal_id)) && model
    }
}

/// The amounts that a batch adds to budgets, as columns of equal length. Sorted by
/// budget and window, so that all transactions lock rows in the same order.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Spending {
    pub(crate) budget_ids: Vec<i64>,
    pub(crate) window_starts: Vec<OffsetDateTime>,
    pub(crate) tokens: Vec<i64>,
    pub(crate) cost_micros: Vec<i64>,
    /// Of the amounts that the gateway reports as used, those of these events.
    pub(crate) tokens_settled: Vec<i64>,
    pub(crate) cost_settled_micros: Vec<i64>,
}

/// The sums of one budget and window.
#[derive(Default)]
struct WindowSums {
    tokens: i64,
    cost_micros: i64,
    tokens_settled: i64,
    cost_settled_micros: i64,
}

impl Spending {
    /// Sums the used amounts per budget that applies, and window. Without settled
    /// amounts, the gateway is assumed to have settled the same.
    pub(crate) fn of(
        budgets: &[AppliedBudget],
        used: &[UsedAmounts],
        settled: Option<&[BudgetSettlement]>,
    ) -> Self {
        let mut sums: BTreeMap<(i64, OffsetDateTime), WindowSums> = BTreeMap::new();
        for budget in budgets {
            for used in used.iter().filter(|used| budget.applies(used)) {
                let Some(start) = moment(budget.window.at(used.at).start) else {
                    continue;
                };
                let sum = sums.entry((budget.id, start)).or_default();
                sum.tokens = sum.tokens.saturating_add(used.tokens);
                sum.cost_micros = sum.cost_micros.saturating_add(used.cost_micros);
            }
        }
        match settled {
            Some(settled) => add_settled(&mut sums, budgets, settled),
            None => {
                for sum in sums.values_mut() {
                    sum.tokens_settled = sum.tokens;
                    sum.cost_settled_micros = sum.cost_micros;
                }
            }
        }
        let mut columns = Self::default();
        for ((budget, start), sum) in sums {
            columns.budget_ids.push(budget);
            columns.window_starts.push(start);
            columns.tokens.push(sum.tokens);
            columns.cost_micros.push(sum.cost_micros);
            columns.tokens_settled.push(sum.tokens_settled);
            columns.cost_settled_micros.push(sum.cost_settled_micros);
        }
        columns
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.budget_ids.is_empty()
    }
}

/// Adds settled amounts of existing budgets. Amounts of windows that a budget does not
/// have are of its earlier settings, and no longer counted.
fn add_settled(
    sums: &mut BTreeMap<(i64, OffsetDateTime), WindowSums>,
    budgets: &[AppliedBudget],
    settled: &[BudgetSettlement],
) {
    let windows: BTreeMap<i64, &Window> = budgets
        .iter()
        .map(|budget| (budget.id, &budget.window))
        .collect();
    for amounts in settled {
        let Some((id, window)) = budget_id(amounts).and_then(|id| Some((id, windows.get(&id)?)))
        else {
            continue;
        };
        let begins = window.at(amounts.window_start).start == amounts.window_start;
        let Some(start) = moment(amounts.window_start).filter(|_| begins) else {
            continue;
        };
        let sum = sums.entry((id, start)).or_default();
        sum.tokens_settled = sum.tokens_settled.saturating_add(signed(amounts.tokens.0));
        sum.cost_settled_micros = sum
            .cost_settled_micros
            .saturating_add(signed(amounts.cost_micros.0));
    }
}

/// The budget's ID in the database.
pub(crate) fn budget_id(settled: &BudgetSettlement) -> Option<i64> {
    i64::try_from(settled.budget.0).ok()
}

fn signed(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests;
