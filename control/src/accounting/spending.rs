use std::collections::BTreeMap;

use fastllm_contract::Timestamp;
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

/// The amounts that events add to budgets, as columns of equal length. Sorted by
/// budget and window, so that all transactions lock rows in the same order.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Spending {
    pub(crate) budget_ids: Vec<i64>,
    pub(crate) window_starts: Vec<OffsetDateTime>,
    pub(crate) tokens: Vec<i64>,
    pub(crate) cost_micros: Vec<i64>,
}

impl Spending {
    /// Sums the used amounts per budget that applies, and window.
    pub(crate) fn of(budgets: &[AppliedBudget], used: &[UsedAmounts]) -> Self {
        let mut sums: BTreeMap<(i64, OffsetDateTime), (i64, i64)> = BTreeMap::new();
        for budget in budgets {
            for used in used.iter().filter(|used| budget.applies(used)) {
                let Some(start) = moment(budget.window.at(used.at).start) else {
                    continue;
                };
                let (tokens, cost) = sums.entry((budget.id, start)).or_default();
                *tokens = tokens.saturating_add(used.tokens);
                *cost = cost.saturating_add(used.cost_micros);
            }
        }
        let mut columns = Self::default();
        for ((budget, start), (tokens, cost)) in sums {
            columns.budget_ids.push(budget);
            columns.window_starts.push(start);
            columns.tokens.push(tokens);
            columns.cost_micros.push(cost);
        }
        columns
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.budget_ids.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use fastllm_contract::{Budget, BudgetId, WindowLength};

    use super::*;

    /// Midnight, UTC.
    const FIRST: i64 = 20_000 * 86_400;
    const SECOND: i64 = FIRST + 86_400;

    fn at(seconds: i64) -> OffsetDateTime {
        OffsetDateTime::from_unix_timestamp(seconds).unwrap()
    }

    fn daily() -> Window {
        Window::of(&Budget {
            id: BudgetId(1),
            tokens_total: None,
            cost_total_micros: None,
            window: WindowLength::Daily,
            time_zone: Some("UTC".to_owned()),
            window_start: Timestamp(0),
        })
        .unwrap()
    }

    fn budget(id: i64) -> AppliedBudget {
        AppliedBudget {
            id,
            principal_id: None,
            model_id: None,
            key_id: None,
            team_id: None,
            window: daily(),
        }
    }

    fn used(at: OffsetDateTime) -> UsedAmounts {
        UsedAmounts {
            at: super::super::timestamp(at),
            principal_id: 1,
            model_id: 10,
            key_id: Some(100),
            team_id: Some(1000),
            tokens: 7,
            cost_micros: 3,
        }
    }

    #[test]
    fn usage_is_added_to_all_applicable_budgets_by_window() {
        let budgets = [
            AppliedBudget {
                principal_id: Some(1),
                ..budget(5)
            },
            AppliedBudget {
                principal_id: Some(1),
                model_id: Some(10),
                ..budget(4)
            },
            AppliedBudget {
                key_id: Some(100),
                ..budget(3)
            },
            AppliedBudget {
                team_id: Some(1000),
                ..budget(2)
            },
            AppliedBudget {
                principal_id: Some(1),
                model_id: Some(11),
                ..budget(1)
            },
            budget(0),
        ];
        let late = at(SECOND) - time::Duration::MICROSECOND;
        let early = at(SECOND);
        let other = UsedAmounts {
            principal_id: 2,
            model_id: 11,
            key_id: None,
            ..used(early)
        };
        let spending = Spending::of(&budgets, &[used(late), used(early), used(early), other]);
        let (first, second) = (at(FIRST), at(SECOND));
        assert_eq!(spending.budget_ids, [2, 2, 3, 3, 4, 4, 5, 5]);
        assert_eq!(
            spending.window_starts,
            [first, second, first, second, first, second, first, second]
        );
        assert_eq!(spending.tokens, [7, 21, 7, 14, 7, 14, 7, 14]);
        assert_eq!(spending.cost_micros, [3, 9, 3, 6, 3, 6, 3, 6]);
    }

    #[test]
    fn sums_saturate() {
        let all = AppliedBudget {
            principal_id: Some(1),
            ..budget(1)
        };
        let most = UsedAmounts {
            tokens: i64::MAX,
            cost_micros: i64::MAX,
            ..used(at(FIRST))
        };
        let spending = Spending::of(&[all], &[most, most]);
        assert_eq!(
            (spending.tokens, spending.cost_micros),
            (vec![i64::MAX], vec![i64::MAX])
        );
    }
}
