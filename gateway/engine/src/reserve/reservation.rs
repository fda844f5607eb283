use fastllm_contract::{
    BudgetId, BudgetSettlement, Micros, ModelName, Prices, Subject, Timestamp, Tokens,
};
use smallvec::SmallVec;

use super::MAX_SHARED_ACCOUNTS;
use super::account_hold::AccountHold;
use crate::accounts::BudgetAmounts;

/// What a request has taken from limits and budgets.
///
/// Invariant: each hold ends once. [`Reservation::settle`] and
/// [`Reservation::cancel`] consume it. Dropping it, however the request ends,
/// releases reserved budget and the concurrency slot, and leaves rate limits
/// debited.
#[derive(Debug, Default)]
#[must_use = "dropping it releases what was reserved"]
pub struct Reservation {
    holds: AccountHolds,
}

/// More than the inline capacity is rare: only callers with limits for several
/// of the candidate models have more accounts.
pub(super) type AccountHolds = SmallVec<[AccountHold; MAX_SHARED_ACCOUNTS]>;

/// What a request really used.
#[derive(Debug, Clone, Copy)]
pub struct ActualUsage<'a> {
    /// The concrete model that served the request.
    pub model: &'a ModelName,
    /// Tokens of prompt and response; `None` when unknown: rate limits stay
    /// debited by the estimate.
    pub tokens: Option<Tokens>,
    /// The cost; `None` when unknown.
    pub cost: Option<Micros>,
    /// The time of settlement.
    pub at: Timestamp,
}

impl ActualUsage<'_> {
    /// What counts for budgets: unknown amounts are 0.
    pub(super) fn budget_amounts(&self) -> BudgetAmounts {
        BudgetAmounts {
            tokens: self.tokens.unwrap_or_default().0,
            cost: self.cost.unwrap_or_default().0,
        }
    }
}

/// The amounts that a settled request added to its budgets.
#[derive(Debug, Clone, Default)]
pub struct Settlement {
    tokens: Tokens,
    cost: Micros,
    windows: SmallVec<[SettledWindow; MAX_SHARED_ACCOUNTS]>,
}

#[derive(Debug, Clone, Copy)]
struct SettledWindow {
    budget: BudgetId,
    start: Timestamp,
}

impl Settlement {
    /// The amounts by budget and window; both are the same for all of them.
    pub fn budgets(&self) -> impl Iterator<Item = BudgetSettlement> {
        self.windows.iter().map(|window| BudgetSettlement {
            budget: window.budget,
            window_start: window.start,
            tokens: self.tokens,
            cost_micros: self.cost,
        })
    }
}

impl Reservation {
    pub(super) fn of(holds: AccountHolds) -> Self {
        Self { holds }
    }

    /// The present prices of a model, if it has any and a reserved budget limits
    /// cost.
    pub fn prices(&self, model: &ModelName) -> Option<Prices> {
        let hold = self.holds.iter().find(|hold| hold.limits_cost())?;
        hold.account().prices(model)
    }

    /// Whether there is nothing to settle.
    pub fn is_empty(&self) -> bool {
        self.holds.is_empty()
    }

    /// Replaces the estimate by the actual usage. What was reserved for other
    /// models is released. Returns what was added to budgets.
    pub fn settle(self, used: &ActualUsage<'_>) -> Settlement {
        let BudgetAmounts { tokens, cost } = used.budget_amounts();
        let mut settlement = Settlement {
            tokens: Tokens(tokens),
            cost: Micros(cost),
            windows: SmallVec::new(),
        };
        for mut hold in self.holds {
            match hold.account().subject() {
                Subject::Model(_, model) if model != used.model => hold.cancel(used.at),
                _ => {
                    let window = hold.settle(used).map(|window| SettledWindow {
                        budget: window.budget(),
                        start: window.start(),
                    });
                    settlement.windows.extend(window);
                }
            }
        }
        settlement
    }

    /// Releases what was reserved for other models, once `model` has begun to
    /// respond.
    pub fn release_other_models(&mut self, model: &ModelName, at: Timestamp) {
        self.holds.retain(|hold| {
            let is_other = matches!(hold.account().subject(), Subject::Model(_, of) if of != model);
            if is_other {
                hold.cancel(at);
            }
            !is_other
        });
    }

    /// Releases everything, for a request that was refused after all. Rate limits
    /// are refunded only while the debit has not been refilled by time.
    pub fn cancel(self, at: Timestamp) {
        self.holds.into_iter().for_each(|mut hold| hold.cancel(at));
    }
}
