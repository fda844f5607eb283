use std::cell::LazyCell;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use fastllm_contract::{Micros, ModelName, Prices, Subject, Timestamp, Tokens};
use smallvec::SmallVec;

use super::MOST_SHARED;
use super::account::{Account, LimitTerms};
use super::limited::{LimitKind, LimitScope, RateLimited, RateLimits};
use super::spending::{BudgetExceeded, BudgetKind, BudgetWindow};
use crate::refusal::Refusal;

/// After so long a rate that was debited has flowed in again, microseconds.
const MINUTE: i64 = 60_000_000;

/// What one request takes, by estimate.
pub(super) struct Demand<'a> {
    pub(super) at: Timestamp,
    /// Tokens of the prompt and of the answer.
    pub(super) tokens: u64,
    /// As many as it asks for, where it says so: those of a limit that is lower
    /// can never be had.
    pub(super) requested_tokens: u64,
    /// Micro-units for the dearest candidate, as far as it has a price: reckoned
    /// where a budget counts money.
    pub(super) cost: LazyCell<u64, &'a dyn Fn() -> u64>,
}

/// What a request has taken from limits and budgets.
///
/// Invariant: each part of it ends once. [`Reservation::settle`] and
/// [`Reservation::cancel`] take it; dropping it, in whatever way the request
/// ends, gives back what was set aside of budgets, and its slot, and leaves
/// rates debited.
#[derive(Debug, Default)]
#[must_use = "dropping it gives back what was taken"]
pub struct Reservation {
    holds: AccountHolds,
}

/// Few callers have more: those with limits for some of the models that may
/// answer.
pub(super) type AccountHolds = SmallVec<[AccountHold; MOST_SHARED]>;

/// What was really used.
#[derive(Debug, Clone, Copy)]
pub struct ActualUsage<'a> {
    /// The concrete model that was asked.
    pub model: &'a ModelName,
    /// Tokens of prompt and answer; nothing where nobody counted them: rates stay
    /// debited, then.
    pub tokens: Option<Tokens>,
    /// What it cost; nothing where nobody knows.
    pub cost: Option<Micros>,
    /// When.
    pub at: Timestamp,
}

impl Reservation {
    pub(super) fn of(holds: AccountHolds) -> Self {
        Self { holds }
    }

    /// What a model costs now, where it has a price and a budget counts money.
    pub fn prices(&self, model: &ModelName) -> Option<Prices> {
        let mut holds = self.holds.iter();
        let hold = holds.find(|hold| {
            hold.budget_hold
                .as_ref()
                .is_some_and(|budget_hold| budget_hold.money)
        })?;
        hold.account.prices(model)
    }

    /// Whether there is nothing to settle.
    pub fn is_empty(&self) -> bool {
        self.holds.is_empty()
    }

    /// What was used takes the place of the estimate. What was taken for models
    /// that did not answer is given back whole.
    pub fn settle(self, used: &ActualUsage<'_>) {
        for mut hold in self.holds {
            match hold.account.subject() {
                Subject::Model(_, model) if model != used.model => hold.cancel(used.at),
                _ => hold.settle(used),
            }
        }
    }

    /// A model has begun to answer: what was taken for others is given back, and
    /// is there for whoever asks for them meanwhile.
    pub fn release_other_models(&mut self, model: &ModelName, at: Timestamp) {
        self.holds.retain(|hold| {
            let is_other = matches!(hold.account.subject(), Subject::Model(_, of) if of != model);
            if is_other {
                hold.cancel(at);
            }
            !is_other
        });
    }

    /// The request was refused after all: everything is given back, as far as
    /// it has not flowed in again.
    pub fn cancel(self, at: Timestamp) {
        self.holds.into_iter().for_each(|mut hold| hold.cancel(at));
    }
}

/// What was taken from one account.
#[derive(Debug)]
pub(super) struct AccountHold {
    account: Arc<Account>,
    at: Timestamp,
    /// A request of the limit a minute.
    request: bool,
    /// Tokens of the limit a minute.
    tokens: Option<u64>,
    /// A slot among those at once.
    slot: bool,
    budget_hold: Option<BudgetHold>,
}

/// What is set aside of a budget.
#[derive(Debug)]
struct BudgetHold {
    period: Arc<BudgetWindow>,
    tokens: u64,
    cost: u64,
    /// The budget counts money.
    money: bool,
}

impl AccountHold {
    /// Takes all that is needed from one account, or nothing.
    pub(super) fn take(
        account: &Arc<Account>,
        need: &Demand<'_>,
        rates: &mut RateLimits,
    ) -> Result<Self, Refusal> {
        let terms = account.terms();
        let mut hold = Self {
            account: Arc::clone(account),
            at: need.at,
            request: false,
            tokens: None,
            slot: false,
            budget_hold: None,
        };
        match hold.fill(&terms, need, rates) {
            Ok(()) => Ok(hold),
            Err(refusal) => {
                hold.cancel(need.at);
                Err(refusal)
            }
        }
    }

    fn fill(
        &mut self,
        terms: &LimitTerms,
        need: &Demand<'_>,
        rates: &mut RateLimits,
    ) -> Result<(), Refusal> {
        let account = &self.account;
        let limited = |what| move |wait| limited(account, terms, (what, wait), need);
        fits_at_all(account, terms, need)?;
        if let Some(pace) = terms.requests {
            let taken = account.requests.take(1, pace, need.at);
            rates.include(
                LimitKind::Requests,
                pace,
                taken.map_err(limited(LimitKind::Requests))?,
            );
            self.request = true;
        }
        if let Some(pace) = terms.tokens {
            let tokens = rated(terms, need);
            let taken = account.tokens.take(tokens, pace, need.at);
            rates.include(
                LimitKind::Tokens,
                pace,
                taken.map_err(limited(LimitKind::Tokens))?,
            );
            self.tokens = Some(tokens);
        }
        if let Some(most) = terms.max_concurrent {
            let taken =
                account
                    .concurrent
                    .fetch_update(Ordering::AcqRel, Ordering::Acquire, |count| {
                        (count < most).then_some(count + 1)
                    });
            if taken.is_err() {
                return Err(limited(LimitKind::Concurrency)(0));
            }
            self.slot = true;
        }
        if let Some(budget) = &terms.budget {
            let period = account.period(budget, need.at);
            let money = budget.counts_money();
            let cost = if money { *need.cost } else { 0 };
            period
                .take(budget, need.tokens, cost)
                .map_err(|why| exhausted(account, terms, why, need))?;
            self.budget_hold = Some(BudgetHold {
                period,
                tokens: need.tokens,
                cost,
                money,
            });
        }
        Ok(())
    }

    fn settle(mut self, used: &ActualUsage<'_>) {
        if let (Some(debited), Some(Tokens(tokens))) = (self.tokens, used.tokens)
            && used.at.0.saturating_sub(self.at.0) < MINUTE
        {
            match tokens.checked_sub(debited) {
                Some(more) => self.account.tokens.debit(more),
                None => self.account.tokens.give(debited - tokens),
            }
        }
        if let Some(budget_hold) = self.budget_hold.take() {
            let cost = used.cost.map_or(0, |cost| cost.0);
            budget_hold.period.settle(
                (budget_hold.tokens, budget_hold.cost),
                (used.tokens.unwrap_or_default().0, cost),
            );
        }
    }

    fn cancel(&mut self, at: Timestamp) {
        if at.0.saturating_sub(self.at.0) >= MINUTE {
            return;
        }
        if std::mem::take(&mut self.request) {
            self.account.requests.give(1);
        }
        if let Some(tokens) = self.tokens.take() {
            self.account.tokens.give(tokens);
        }
    }
}

impl Drop for AccountHold {
    fn drop(&mut self) {
        if self.slot {
            self.account.concurrent.fetch_sub(1, Ordering::AcqRel);
        }
        if let Some(budget_hold) = &self.budget_hold {
            budget_hold
                .period
                .give(budget_hold.tokens, budget_hold.cost);
        }
    }
}

/// What is debited of the limit of tokens a minute: an estimate that is larger
/// than it all would never get in.
fn rated(terms: &LimitTerms, need: &Demand<'_>) -> u64 {
    terms
        .tokens_per_min()
        .map_or(need.tokens, |limit| need.tokens.min(limit))
}

/// Refuses what could never be had.
fn fits_at_all(account: &Account, terms: &LimitTerms, need: &Demand<'_>) -> Result<(), Refusal> {
    let limit = terms.tokens_per_min();
    match limit.filter(|limit| need.requested_tokens > *limit) {
        Some(limit) => Err(Refusal::LargerThanLimit {
            scope: LimitScope::of(account.subject()),
            limit,
            need: need.requested_tokens,
        }),
        None => Ok(()),
    }
}

/// Whether an account would refuse, before anything is taken: rates first, the
/// slowest of them, then places, then the budget.
pub(super) fn check(account: &Arc<Account>, need: &Demand<'_>) -> Result<(), Refusal> {
    let terms = account.terms();
    if let Some(limit) = terms
        .tokens_per_min()
        .filter(|limit| need.requested_tokens > *limit)
    {
        return Err(Refusal::LargerThanLimit {
            scope: LimitScope::of(account.subject()),
            limit,
            need: need.requested_tokens,
        });
    }
    let requests = terms
        .requests
        .map_or(0, |pace| account.requests.wait(1, pace, need.at));
    let tokens = terms.tokens.map_or(0, |pace| {
        account.tokens.wait(rated(&terms, need), pace, need.at)
    });
    let slower = if requests >= tokens {
        (LimitKind::Requests, requests)
    } else {
        (LimitKind::Tokens, tokens)
    };
    if slower.1 > 0 {
        return Err(limited(account, &terms, slower, need));
    }
    let taken = account.concurrent.load(Ordering::Acquire);
    if terms.max_concurrent.is_some_and(|most| taken >= most) {
        return Err(limited(account, &terms, (LimitKind::Concurrency, 0), need));
    }
    if let Some(budget) = &terms.budget {
        account
            .period(budget, need.at)
            .check(budget)
            .map_err(|why| exhausted(account, &terms, why, need))?;
    }
    Ok(())
}

fn limited(
    account: &Account,
    terms: &LimitTerms,
    (what, wait): (LimitKind, u64),
    need: &Demand<'_>,
) -> Refusal {
    Refusal::RateLimited(RateLimited::new(account, terms, (what, wait), need.at))
}

fn exhausted(
    account: &Account,
    terms: &LimitTerms,
    why: BudgetExceeded,
    need: &Demand<'_>,
) -> Refusal {
    match why {
        BudgetExceeded::Total(what) => Refusal::BudgetExceeded {
            scope: LimitScope::of(account.subject()),
            what,
        },
        BudgetExceeded::Share(what) => {
            account.record_share_exhausted();
            let what = match what {
                BudgetKind::Tokens => LimitKind::TokenBudget,
                BudgetKind::Cost => LimitKind::CostBudget,
            };
            limited(account, terms, (what, 0), need)
        }
    }
}
