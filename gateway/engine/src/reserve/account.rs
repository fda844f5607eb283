use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU32, AtomicU64, Ordering};

use arc_swap::ArcSwap;
use fastllm_contract::{
    Budget, BudgetId, BudgetShare, BudgetState, Limits, ModelName, Prices, Subject, Timestamp,
};

use super::bucket::{Bucket, Pace};
use super::spending::{self, Known, Period, Spending};

/// What is known from control, and shared by all accounts.
#[derive(Debug)]
pub(super) struct Shared {
    replicas: AtomicU32,
    pub(super) prices: ArcSwap<HashMap<ModelName, Prices>>,
    pub(super) limits_state: ArcSwap<HashMap<BudgetId, BudgetState>>,
    /// What this gateway may have of budgets, also of those that it has not used
    /// yet.
    pub(super) told: ArcSwap<HashMap<BudgetId, BudgetShare>>,
    /// A share is spent while the whole is not.
    wanted: AtomicBool,
}

impl Default for Shared {
    fn default() -> Self {
        Self {
            replicas: AtomicU32::new(1),
            prices: ArcSwap::default(),
            limits_state: ArcSwap::default(),
            told: ArcSwap::default(),
            wanted: AtomicBool::new(false),
        }
    }
}

impl Shared {
    pub(super) fn price_of(&self, model: &ModelName) -> Option<Prices> {
        self.prices.load().get(model).copied()
    }

    pub(super) fn replicas(&self) -> u32 {
        self.replicas.load(Ordering::Relaxed).max(1)
    }

    pub(super) fn set_replicas(&self, replicas: u32) {
        self.replicas.store(replicas.max(1), Ordering::Relaxed);
    }

    pub(super) fn want(&self) {
        self.wanted.store(true, Ordering::Relaxed);
    }

    /// Whether a share was spent since it was asked last.
    pub(super) fn wanted(&self) -> bool {
        self.wanted.load(Ordering::Relaxed) && self.wanted.swap(false, Ordering::Relaxed)
    }

    fn known(&self, budget: BudgetId) -> Known {
        Known {
            limits_state: self.limits_state.load().get(&budget).copied(),
            told: self.told.load().get(&budget).copied(),
            replicas: self.replicas(),
        }
    }
}

/// This gateway's shares of a subject's limits.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Shares {
    pub(super) requests: f64,
    pub(super) tokens: f64,
}

/// What a subject may take here: its limits and its budget, and this gateway's
/// share of the former.
#[derive(Debug)]
pub(super) struct Terms {
    limits: Limits,
    /// Nothing until control has said it: an equal part for each gateway.
    shares: Option<Shares>,
    pub(super) requests: Option<Pace>,
    pub(super) tokens: Option<Pace>,
    pub(super) most_at_once: Option<i64>,
    pub(super) budget: Option<spending::Terms>,
}

impl Terms {
    fn new(limits: Limits, shares: Option<Shares>, budget: Option<&Budget>, replicas: u32) -> Self {
        let equal = 1.0 / f64::from(replicas);
        let Shares { requests, tokens } = shares.unwrap_or(Shares {
            requests: equal,
            tokens: equal,
        });
        Self {
            limits,
            shares,
            requests: limits
                .requests_per_min
                .map(|limit| Pace::new(limit.get(), requests)),
            tokens: limits
                .tokens_per_min
                .map(|limit| Pace::new(limit.get(), tokens)),
            most_at_once: limits
                .concurrency
                .map(|limit| share_at_once(limit.get(), requests)),
            budget: budget.map(spending::Terms::new),
        }
    }

    /// The whole limit of tokens a minute.
    pub(super) fn tokens_per_min(&self) -> Option<u64> {
        self.limits
            .tokens_per_min
            .map(|limit| limit.get().min(Pace::MOST))
    }

    pub(super) fn limits(&self) -> &Limits {
        &self.limits
    }
}

/// At least one, and rounded up: a gateway without any would be of no use.
fn share_at_once(limit: u64, share: f64) -> i64 {
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_precision_loss,
        reason = "limits are at most a million"
    )]
    let part = (limit.min(1 << 32) as f64 * share.clamp(0.0, 1.0) - 1e-9).ceil() as i64;
    part.max(1)
}

/// What one subject has taken at this gateway. It outlives snapshots.
#[derive(Debug)]
pub(crate) struct Account {
    subject: Subject,
    shared: Arc<Shared>,
    terms: ArcSwap<Terms>,
    pub(super) requests: Bucket,
    pub(super) tokens: Bucket,
    pub(super) at_once: AtomicI64,
    pub(super) spending: Spending,
    asked_requests: AtomicU64,
    asked_tokens: AtomicU64,
    /// Microseconds since 1970; when somebody asked last.
    asked_at: AtomicI64,
}

impl Account {
    pub(super) fn new(subject: Subject, shared: &Arc<Shared>) -> Self {
        Self {
            subject,
            shared: Arc::clone(shared),
            terms: ArcSwap::from_pointee(Terms::new(Limits::default(), None, None, 1)),
            requests: Bucket::new(),
            tokens: Bucket::new(),
            at_once: AtomicI64::new(0),
            spending: Spending::new(),
            asked_requests: AtomicU64::new(0),
            asked_tokens: AtomicU64::new(0),
            asked_at: AtomicI64::new(0),
        }
    }

    pub(super) fn subject(&self) -> &Subject {
        &self.subject
    }

    pub(super) fn terms(&self) -> arc_swap::Guard<Arc<Terms>> {
        self.terms.load()
    }

    /// Takes on what a snapshot says.
    pub(super) fn set_terms(&self, limits: Option<&Limits>, budget: Option<&Budget>) {
        let limits = limits.copied().unwrap_or_default();
        let held = self.terms.load();
        let terms = Terms::new(limits, held.shares, budget, self.shared.replicas());
        let goes_on = match (&held.budget, &terms.budget) {
            (Some(held), Some(new)) => new.continues(held),
            _ => false,
        };
        self.terms.store(Arc::new(terms));
        if !goes_on {
            self.spending.clear();
        }
    }

    /// Takes on what control says; nothing: that the number of gateways is
    /// another one.
    pub(super) fn set_shares(&self, said: Option<Shares>) {
        let replicas = self.shared.replicas();
        self.terms.rcu(|held| {
            let shares = said.or(held.shares);
            Terms {
                budget: held.budget.clone(),
                ..Terms::new(held.limits, shares, None, replicas)
            }
        });
    }

    pub(super) fn period(&self, terms: &spending::Terms, now: Timestamp) -> Arc<Period> {
        self.spending
            .period(terms, now, || self.shared.known(terms.id))
    }

    /// Takes note of what is asked for, whether it is let through or not.
    pub(super) fn asked(&self, tokens: u64, now: Timestamp) {
        self.asked_requests.fetch_add(1, Ordering::Relaxed);
        self.asked_tokens.fetch_add(tokens, Ordering::Relaxed);
        self.asked_at.store(now.0, Ordering::Relaxed);
    }

    /// What was asked for since this was called last, and when.
    pub(super) fn take_asked(&self) -> (u64, u64, Timestamp) {
        (
            self.asked_requests.swap(0, Ordering::Relaxed),
            self.asked_tokens.swap(0, Ordering::Relaxed),
            Timestamp(self.asked_at.load(Ordering::Relaxed)),
        )
    }

    /// Nobody was told of so much that was asked for.
    pub(super) fn give_back_asked(&self, requests: u64, tokens: u64) {
        for (asked, more) in [
            (&self.asked_requests, requests),
            (&self.asked_tokens, tokens),
        ] {
            let sum = |asked: u64| Some(asked.saturating_add(more));
            let _always = asked.fetch_update(Ordering::Relaxed, Ordering::Relaxed, sum);
        }
    }

    /// What a model costs now.
    pub(super) fn prices(&self, model: &ModelName) -> Option<Prices> {
        self.shared.price_of(model)
    }

    /// The used share of its budget, in percent, if it has one.
    pub(crate) fn budget_used_percent(&self, now: Timestamp) -> Option<u8> {
        let terms = self.terms();
        let budget = terms.budget.as_ref()?;
        Some(self.period(budget, now).used_percent(budget))
    }

    /// A share of a budget is spent while the whole is not.
    pub(super) fn want_share(&self) {
        self.shared.want();
    }
}
