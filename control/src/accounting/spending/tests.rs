use fastllm_contract::{Budget, BudgetId, Micros, Tokens, WindowLength};

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
        at: crate::clock::timestamp(at),
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
    let spending = Spending::of(
        &budgets,
        &[used(late), used(early), used(early), other],
        None,
    );
    let (first, second) = (at(FIRST), at(SECOND));
    assert_eq!(spending.budget_ids, [2, 2, 3, 3, 4, 4, 5, 5]);
    assert_eq!(
        spending.window_starts,
        [first, second, first, second, first, second, first, second]
    );
    assert_eq!(spending.tokens, [7, 21, 7, 14, 7, 14, 7, 14]);
    assert_eq!(spending.cost_micros, [3, 9, 3, 6, 3, 6, 3, 6]);
    // The same by a gateway that does not report it.
    assert_eq!(spending.tokens_settled, spending.tokens);
    assert_eq!(spending.cost_settled_micros, spending.cost_micros);
}

#[test]
fn settled_amounts_are_those_of_the_gateway() {
    let of = |id| AppliedBudget {
        principal_id: Some(1),
        ..budget(id)
    };
    let settled = |budget, start, tokens, cost| BudgetSettlement {
        budget: BudgetId(budget),
        window_start: Timestamp(start * 1_000_000),
        tokens: Tokens(tokens),
        cost_micros: Micros(cost),
    };
    let spending = Spending::of(
        &[of(1), of(2), budget(3)],
        &[used(at(FIRST))],
        Some(&[
            settled(1, FIRST, 7, 4),
            settled(1, FIRST, 1, u64::MAX),
            // The gateway counted it in the next window.
            settled(2, SECOND, 7, 4),
            // A budget that no longer applies.
            settled(3, FIRST, 5, 6),
            // Not a window of the budget, and no budget.
            settled(1, FIRST + 1, 8, 8),
            settled(4, FIRST, 8, 8),
            settled(u64::MAX, FIRST, 8, 8),
        ]),
    );
    let (first, second) = (at(FIRST), at(SECOND));
    assert_eq!(spending.budget_ids, [1, 2, 2, 3]);
    assert_eq!(spending.window_starts, [first, first, second, first]);
    assert_eq!(spending.tokens, [7, 7, 0, 0]);
    assert_eq!(spending.cost_micros, [3, 3, 0, 0]);
    assert_eq!(spending.tokens_settled, [8, 0, 7, 5]);
    assert_eq!(spending.cost_settled_micros, [i64::MAX, 0, 4, 6]);
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
    let spending = Spending::of(&[all], &[most, most], None);
    assert_eq!(
        (spending.tokens, spending.cost_micros),
        (vec![i64::MAX], vec![i64::MAX])
    );
}
