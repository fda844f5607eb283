use std::cell::LazyCell;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use fastllm_contract::{Timestamp, Tokens};

use super::ActualUsage;
use crate::accounts::{
    Account, BucketLevel, BudgetAmounts, BudgetExceeded, BudgetWindow, LimitTerms, RefillRate,
};
use crate::refusal::{
    BudgetKind, LimitKind, LimitScope, RateLimit, RateLimited, RateLimits, Refusal,
};

/// The time after which a debited rate limit has refilled, microseconds.
const MINUTE: i64 = 60_000_000;

/// What one request needs, by estimate.
pub(super) struct Demand<'a> {
    pub(super) at: Timestamp,
    /// Tokens of the prompt and of the response.
    pub(super) tokens: u64,
    /// Tokens that the request explicitly asks for. If a limit is lower, the
    /// request can never be admitted.
    pub(super) requested_tokens: u64,
    /// Micro-units for the most expensive candidate with prices; computed only if
    /// a budget limits cost.
    pub(super) cost: LazyCell<u64, &'a dyn Fn() -> u64>,
}

/// What was taken from one account.
#[derive(Debug)]
pub(super) struct AccountHold {
    account: Arc<Account>,
    at: Timestamp,
    /// Whether a request was taken from the limit per minute.
    request: bool,
    /// Tokens taken from the limit per minute.
    tokens: Option<u64>,
    /// Whether a concurrency slot was taken.
    slot: bool,
    budget: Option<BudgetHold>,
}

/// What is reserved of a budget.
#[derive(Debug)]
struct BudgetHold {
    window: Arc<BudgetWindow>,
    reserved: BudgetAmounts,
    limits_cost: bool,
}

impl AccountHold {
    /// Takes everything that is needed from one account, or nothing.
    pub(super) fn take(
        account: &Arc<Account>,
        demand: &Demand<'_>,
        rate_limits: &mut RateLimits,
    ) -> Result<Self, Refusal> {
        let terms = account.terms();
        let mut hold = Self {
            account: Arc::clone(account),
            at: demand.at,
            request: false,
            tokens: None,
            slot: false,
            budget: None,
        };
        match hold.fill(&terms, demand, rate_limits) {
            Ok(()) => Ok(hold),
            Err(refusal) => {
                hold.cancel(demand.at);
                Err(refusal)
            }
        }
    }

    pub(super) fn account(&self) -> &Arc<Account> {
        &self.account
    }

    /// Whether it has a reservation of a budget that limits cost.
    pub(super) fn limits_cost(&self) -> bool {
        self.budget.as_ref().is_some_and(|hold| hold.limits_cost)
    }

    fn fill(
        &mut self,
        terms: &LimitTerms,
        demand: &Demand<'_>,
        rate_limits: &mut RateLimits,
    ) -> Result<(), Refusal> {
        let account = &self.account;
        let refuse = |kind| move |wait| rate_limited(account, terms, kind, wait, demand.at);
        check_limit_size(account, terms, demand)?;
        if let Some(rate) = terms.requests {
            let taken = account.requests.take(1, rate, demand.at);
            let level = taken.map_err(refuse(LimitKind::Requests))?;
            include(rate_limits, LimitKind::Requests, rate, level);
            self.request = true;
        }
        if let Some(rate) = terms.tokens {
            let tokens = debited_tokens(terms, demand);
            let taken = account.tokens.take(tokens, rate, demand.at);
            let level = taken.map_err(refuse(LimitKind::Tokens))?;
            include(rate_limits, LimitKind::Tokens, rate, level);
            self.tokens = Some(tokens);
        }
        if let Some(max) = terms.max_concurrent {
            let next = |count| (count < max).then_some(count + 1);
            let concurrent = &account.concurrent;
            if concurrent
                .fetch_update(Ordering::AcqRel, Ordering::Acquire, next)
                .is_err()
            {
                return Err(refuse(LimitKind::Concurrency)(0));
            }
            self.slot = true;
        }
        if let Some(budget) = &terms.budget {
            let window = account.budget_window(budget, demand.at);
            let limits_cost = budget.limits_cost();
            let reserved = BudgetAmounts {
                tokens: demand.tokens,
                cost: if limits_cost { *demand.cost } else { 0 },
            };
            window
                .reserve(budget, reserved)
                .map_err(|exceeded| over_budget(account, terms, exceeded, demand.at))?;
            self.budget = Some(BudgetHold {
                window,
                reserved,
                limits_cost,
            });
        }
        Ok(())
    }

    /// Returns the window of the budget, if there is one, to which `used` was added.
    pub(super) fn settle(mut self, used: &ActualUsage<'_>) -> Option<Arc<BudgetWindow>> {
        if let (Some(debited), Some(Tokens(tokens))) = (self.tokens, used.tokens)
            && used.at.0.saturating_sub(self.at.0) < MINUTE
        {
            match tokens.checked_sub(debited) {
                Some(more) => self.account.tokens.debit(more),
                None => self.account.tokens.refund(debited - tokens),
            }
        }
        let hold = self.budget.take()?;
        hold.window.settle(hold.reserved, used.budget_amounts());
        Some(hold.window)
    }

    pub(super) fn cancel(&mut self, at: Timestamp) {
        if at.0.saturating_sub(self.at.0) >= MINUTE {
            return;
        }
        if std::mem::take(&mut self.request) {
            self.account.requests.refund(1);
        }
        if let Some(tokens) = self.tokens.take() {
            self.account.tokens.refund(tokens);
        }
    }
}

impl Drop for AccountHold {
    fn drop(&mut self) {
        if self.slot {
            self.account.concurrent.fetch_sub(1, Ordering::AcqRel);
        }
        if let Some(hold) = &self.budget {
            hold.window.release(hold.reserved);
        }
    }
}

/// What is debited from the limit of tokens per minute. An estimate above the
/// whole limit is reduced to it: such a request would never be admitted.
fn debited_tokens(terms: &LimitTerms, demand: &Demand<'_>) -> u64 {
    terms
        .tokens_per_min()
        .map_or(demand.tokens, |limit| demand.tokens.min(limit))
}

/// Refuses a request that no waiting would admit.
fn check_limit_size(
    account: &Account,
    terms: &LimitTerms,
    demand: &Demand<'_>,
) -> Result<(), Refusal> {
    let limit = terms.tokens_per_min();
    match limit.filter(|limit| demand.requested_tokens > *limit) {
        Some(limit) => Err(Refusal::LargerThanLimit {
            scope: LimitScope::of(account.subject()),
            limit,
            need: demand.requested_tokens,
        }),
        None => Ok(()),
    }
}

/// Whether an account would refuse, before anything is taken. The first reason
/// counts: the slower rate limit, then concurrency, then the budget.
pub(super) fn check(account: &Arc<Account>, demand: &Demand<'_>) -> Result<(), Refusal> {
    let terms = account.terms();
    let refuse = |kind, wait| rate_limited(account, &terms, kind, wait, demand.at);
    check_limit_size(account, &terms, demand)?;
    let requests = terms
        .requests
        .map_or(0, |rate| account.requests.wait(1, rate, demand.at));
    let tokens = terms.tokens.map_or(0, |rate| {
        let tokens = debited_tokens(&terms, demand);
        account.tokens.wait(tokens, rate, demand.at)
    });
    if requests >= tokens && requests > 0 {
        return Err(refuse(LimitKind::Requests, requests));
    }
    if tokens > 0 {
        return Err(refuse(LimitKind::Tokens, tokens));
    }
    let taken = account.concurrent.load(Ordering::Acquire);
    if terms.max_concurrent.is_some_and(|max| taken >= max) {
        return Err(refuse(LimitKind::Concurrency, 0));
    }
    if let Some(budget) = &terms.budget {
        account
            .budget_window(budget, demand.at)
            .check(budget)
            .map_err(|exceeded| over_budget(account, &terms, exceeded, demand.at))?;
    }
    Ok(())
}

/// A refusal by a limit that admits the request after `wait` microseconds.
fn rate_limited(
    account: &Account,
    terms: &LimitTerms,
    kind: LimitKind,
    wait: u64,
    at: Timestamp,
) -> Refusal {
    let mut rate_limits = RateLimits::default();
    if let Some(rate) = terms.requests {
        let level = account.requests.level(rate, at);
        include(&mut rate_limits, LimitKind::Requests, rate, level);
    }
    if let Some(rate) = terms.tokens {
        let level = account.tokens.level(rate, at);
        include(&mut rate_limits, LimitKind::Tokens, rate, level);
    }
    Refusal::RateLimited(RateLimited {
        kind,
        scope: LimitScope::of(account.subject()),
        retry_after: Duration::from_micros(wait).max(Duration::from_secs(1)),
        rate_limits,
    })
}

fn include(rate_limits: &mut RateLimits, kind: LimitKind, rate: RefillRate, level: BucketLevel) {
    let limit = RateLimit {
        limit: rate.whole().max(1),
        remaining: level.whole(),
    };
    rate_limits.include(kind, limit, rate.seconds_until_full(level));
}

fn over_budget(
    account: &Account,
    terms: &LimitTerms,
    exceeded: BudgetExceeded,
    at: Timestamp,
) -> Refusal {
    match exceeded {
        BudgetExceeded::Total(kind) => Refusal::BudgetExceeded {
            scope: LimitScope::of(account.subject()),
            kind,
        },
        BudgetExceeded::Share(kind) => {
            account.record_share_exhausted();
            let kind = match kind {
                BudgetKind::Tokens => LimitKind::TokenBudget,
                BudgetKind::Cost => LimitKind::CostBudget,
            };
            rate_limited(account, terms, kind, 0, at)
        }
    }
}
