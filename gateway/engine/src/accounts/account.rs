use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU32, AtomicU64, Ordering};

use arc_swap::ArcSwap;
use fastllm_contract::{
    Budget, BudgetId, BudgetShare, BudgetState, Limits, ModelName, Prices, Subject, Timestamp,
};

use super::bucket::{Bucket, RefillRate};
use super::spending::{self, BudgetTracker, BudgetWindow, InitialBudget};

/// What is known from control, and shared by all accounts.
#[derive(Debug)]
pub(super) struct SharedAccountState {
    replicas: AtomicU32,
    pub(super) prices: ArcSwap<HashMap<ModelName, Prices>>,
    pub(super) limits_state: ArcSwap<HashMap<BudgetId, BudgetState>>,
    /// What this gateway may have of budgets, also of those that it has not used
    /// yet.
    pub(super) grants: ArcSwap<HashMap<BudgetId, BudgetShare>>,
    /// A share is spent while the whole is not.
    wanted: AtomicBool,
}

impl Default for SharedAccountState {
    fn default() -> Self {
        Self {
            replicas: AtomicU32::new(1),
            prices: ArcSwap::default(),
            limits_state: ArcSwap::default(),
            grants: ArcSwap::default(),
            wanted: AtomicBool::new(false),
        }
    }
}

impl SharedAccountState {
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

    fn known(&self, budget: BudgetId) -> InitialBudget {
        InitialBudget {
            limits_state: self.limits_state.load().get(&budget).copied(),
            grants: self.grants.load().get(&budget).copied(),
            replicas: self.replicas(),
        }
    }
}

/// This gateway's shares of a subject's limits.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct LimitShares {
    pub(super) requests: f64,
    pub(super) tokens: f64,
}

/// What a subject may take here: its limits and its budget, and this gateway's
/// share of the former.
#[derive(Debug)]
pub(super) struct LimitTerms {
    limits: Limits,
    /// Nothing until control has said it: an equal part for each gateway.
    shares: Option<LimitShares>,
    pub(super) requests: Option<RefillRate>,
    pub(super) tokens: Option<RefillRate>,
    pub(super) max_concurrent: Option<i64>,
    pub(super) budget: Option<spending::BudgetTerms>,
}

impl LimitTerms {
    fn new(
        limits: Limits,
        shares: Option<LimitShares>,
        budget: Option<&Budget>,
        replicas: u32,
    ) -> Self {
        let equal = 1.0 / f64::from(replicas);
        let LimitShares { requests, tokens } = shares.unwrap_or(LimitShares {
            requests: equal,
            tokens: equal,
        });
        Self {
            limits,
            shares,
            requests: limits
                .requests_per_min
                .map(|limit| RefillRate::new(limit.get(), requests)),
            tokens: limits
                .tokens_per_min
                .map(|limit| RefillRate::new(limit.get(), tokens)),
            max_concurrent: limits
                .concurrency
                .map(|limit| share_at_once(limit.get(), requests)),
            budget: budget.map(spending::BudgetTerms::new),
        }
    }

    /// The whole limit of tokens a minute.
    pub(super) fn tokens_per_min(&self) -> Option<u64> {
        self.limits
            .tokens_per_min
            .map(|limit| limit.get().min(RefillRate::MOST))
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
    shared: Arc<SharedAccountState>,
    terms: ArcSwap<LimitTerms>,
    pub(super) requests: Bucket,
    pub(super) tokens: Bucket,
    pub(super) concurrent: AtomicI64,
    pub(super) spending: BudgetTracker,
    request_count: AtomicU64,
    token_count: AtomicU64,
    /// Microseconds since 1970; when somebody asked last.
    last_request_at: AtomicI64,
}

impl Account {
    pub(super) fn new(subject: Subject, shared: &Arc<SharedAccountState>) -> Self {
        Self {
            subject,
            shared: Arc::clone(shared),
            terms: ArcSwap::from_pointee(LimitTerms::new(Limits::default(), None, None, 1)),
            requests: Bucket::new(),
            tokens: Bucket::new(),
            concurrent: AtomicI64::new(0),
            spending: BudgetTracker::new(),
            request_count: AtomicU64::new(0),
            token_count: AtomicU64::new(0),
            last_request_at: AtomicI64::new(0),
        }
    }

    pub(super) fn subject(&self) -> &Subject {
        &self.subject
    }

    pub(super) fn terms(&self) -> arc_swap::Guard<Arc<LimitTerms>> {
        self.terms.load()
    }

    /// Takes on what a snapshot says.
    pub(super) fn set_terms(&self, limits: Option<&Limits>, budget: Option<&Budget>) {
        let limits = limits.copied().unwrap_or_default();
        let held = self.terms.load();
        let terms = LimitTerms::new(limits, held.shares, budget, self.shared.replicas());
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
    pub(super) fn set_shares(&self, said: Option<LimitShares>) {
        let replicas = self.shared.replicas();
        self.terms.rcu(|held| {
            let shares = said.or(held.shares);
            LimitTerms {
                budget: held.budget.clone(),
                ..LimitTerms::new(held.limits, shares, None, replicas)
            }
        });
    }

    pub(super) fn period(
        &self,
        terms: &spending::BudgetTerms,
        now: Timestamp,
    ) -> Arc<BudgetWindow> {
        self.spending
            .period(terms, now, || self.shared.known(terms.id))
    }

    /// Takes note of what is asked for, whether it is let through or not.
    pub(super) fn record_request(&self, tokens: u64, now: Timestamp) {
        self.request_count.fetch_add(1, Ordering::Relaxed);
        self.token_count.fetch_add(tokens, Ordering::Relaxed);
        self.last_request_at.store(now.0, Ordering::Relaxed);
    }

    /// What was asked for since this was called last, and when.
    pub(super) fn take_request_counts(&self) -> (u64, u64, Timestamp) {
        (
            self.request_count.swap(0, Ordering::Relaxed),
            self.token_count.swap(0, Ordering::Relaxed),
            Timestamp(self.last_request_at.load(Ordering::Relaxed)),
        )
    }

    /// Nobody was told of so much that was asked for.
    pub(super) fn restore_request_counts(&self, requests: u64, tokens: u64) {
        for (asked, more) in [(&self.request_count, requests), (&self.token_count, tokens)] {
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
    pub(super) fn record_share_exhausted(&self) {
        self.shared.want();
    }
}
