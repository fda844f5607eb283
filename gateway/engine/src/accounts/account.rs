use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU32, AtomicU64, Ordering};

use arc_swap::ArcSwap;
use fastllm_contract::{
    Budget, BudgetId, BudgetShare, BudgetState, Limits, ModelName, Prices, Subject, Timestamp,
};

use super::bucket::{Bucket, RefillRate};
use super::budget::{self, BudgetTracker, BudgetWindow, InitialBudget};

/// Data from the control plane that all accounts share.
#[derive(Debug)]
pub(crate) struct SharedAccountState {
    replicas: AtomicU32,
    pub(crate) prices: ArcSwap<HashMap<ModelName, Prices>>,
    pub(crate) stored: ArcSwap<HashMap<BudgetId, BudgetState>>,
    /// This gateway's shares of budgets, including those not used yet.
    pub(crate) granted: ArcSwap<HashMap<BudgetId, BudgetShare>>,
    /// A share of a budget is exhausted while the whole budget is not.
    share_exhausted: AtomicBool,
}

impl Default for SharedAccountState {
    fn default() -> Self {
        Self {
            replicas: AtomicU32::new(1),
            prices: ArcSwap::default(),
            stored: ArcSwap::default(),
            granted: ArcSwap::default(),
            share_exhausted: AtomicBool::new(false),
        }
    }
}

impl SharedAccountState {
    pub(crate) fn price_of(&self, model: &ModelName) -> Option<Prices> {
        self.prices.load().get(model).copied()
    }

    pub(crate) fn replicas(&self) -> u32 {
        self.replicas.load(Ordering::Relaxed).max(1)
    }

    pub(crate) fn set_replicas(&self, replicas: u32) {
        self.replicas.store(replicas.max(1), Ordering::Relaxed);
    }

    pub(crate) fn record_share_exhausted(&self) {
        self.share_exhausted.store(true, Ordering::Relaxed);
    }

    /// Whether a share was exhausted since the last call.
    pub(crate) fn take_share_exhausted(&self) -> bool {
        self.share_exhausted.load(Ordering::Relaxed)
            && self.share_exhausted.swap(false, Ordering::Relaxed)
    }

    fn initial(&self, budget: BudgetId) -> InitialBudget {
        InitialBudget {
            stored: self.stored.load().get(&budget).copied(),
            granted: self.granted.load().get(&budget).copied(),
            replicas: self.replicas(),
        }
    }
}

/// What one subject requested since the last report.
pub(crate) struct RequestCounts {
    pub(crate) requests: u64,
    pub(crate) tokens: u64,
    pub(crate) last_request_at: Timestamp,
}

/// This gateway's shares of a subject's limits.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct LimitShares {
    pub(crate) requests: f64,
    pub(crate) tokens: f64,
}

/// The limits and the budget of a subject, with this gateway's share of the
/// limits.
#[derive(Debug)]
pub(crate) struct LimitTerms {
    limits: Limits,
    /// `None` until the control plane granted shares: an equal part for each gateway.
    shares: Option<LimitShares>,
    pub(crate) requests: Option<RefillRate>,
    pub(crate) tokens: Option<RefillRate>,
    pub(crate) max_concurrent: Option<i64>,
    pub(crate) budget: Option<budget::BudgetTerms>,
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
                .map(|limit| concurrency_share(limit.get(), requests)),
            budget: budget.map(budget::BudgetTerms::new),
        }
    }

    /// The whole limit of tokens per minute, for all gateways.
    pub(crate) fn tokens_per_min(&self) -> Option<u64> {
        self.limits
            .tokens_per_min
            .map(|limit| limit.get().min(RefillRate::MAX_LIMIT))
    }

    pub(crate) fn limits(&self) -> &Limits {
        &self.limits
    }
}

/// A share of a concurrency limit, rounded up and at least 1, so that every
/// gateway can serve.
fn concurrency_share(limit: u64, share: f64) -> i64 {
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_precision_loss,
        reason = "limits are at most a million"
    )]
    let part = (limit.min(1 << 32) as f64 * share.clamp(0.0, 1.0) - 1e-9).ceil() as i64;
    part.max(1)
}

/// What one subject uses at this gateway. It outlives snapshots.
#[derive(Debug)]
pub(crate) struct Account {
    subject: Subject,
    shared: Arc<SharedAccountState>,
    terms: ArcSwap<LimitTerms>,
    pub(crate) requests: Bucket,
    pub(crate) tokens: Bucket,
    pub(crate) concurrent: AtomicI64,
    pub(crate) budget: BudgetTracker,
    request_count: AtomicU64,
    token_count: AtomicU64,
    /// Microseconds since 1970.
    last_request_at: AtomicI64,
}

impl Account {
    pub(crate) fn new(subject: Subject, shared: &Arc<SharedAccountState>) -> Self {
        Self {
            subject,
            shared: Arc::clone(shared),
            terms: ArcSwap::from_pointee(LimitTerms::new(Limits::default(), None, None, 1)),
            requests: Bucket::new(),
            tokens: Bucket::new(),
            concurrent: AtomicI64::new(0),
            budget: BudgetTracker::new(),
            request_count: AtomicU64::new(0),
            token_count: AtomicU64::new(0),
            last_request_at: AtomicI64::new(0),
        }
    }

    pub(crate) fn subject(&self) -> &Subject {
        &self.subject
    }

    pub(crate) fn terms(&self) -> arc_swap::Guard<Arc<LimitTerms>> {
        self.terms.load()
    }

    /// Sets the limits and the budget of a snapshot.
    pub(crate) fn set_terms(&self, limits: Option<&Limits>, budget: Option<&Budget>) {
        let limits = limits.copied().unwrap_or_default();
        let held = self.terms.load();
        let terms = LimitTerms::new(limits, held.shares, budget, self.shared.replicas());
        let continues = match (&held.budget, &terms.budget) {
            (Some(held), Some(new)) => new.continues(held),
            _ => false,
        };
        self.terms.store(Arc::new(terms));
        if !continues {
            self.budget.clear();
        }
    }

    /// Sets granted shares. Without any, equal parts are recomputed for a changed
    /// number of gateways.
    pub(crate) fn set_shares(&self, granted: Option<LimitShares>) {
        let replicas = self.shared.replicas();
        self.terms.rcu(|held| {
            let shares = granted.or(held.shares);
            LimitTerms {
                budget: held.budget.clone(),
                ..LimitTerms::new(held.limits, shares, None, replicas)
            }
        });
    }

    pub(crate) fn budget_window(
        &self,
        terms: &budget::BudgetTerms,
        now: Timestamp,
    ) -> Arc<BudgetWindow> {
        self.budget
            .window(terms, now, || self.shared.initial(terms.id))
    }

    /// Counts a request for the next report, whether it is admitted or not.
    pub(crate) fn record_request(&self, tokens: u64, now: Timestamp) {
        self.request_count.fetch_add(1, Ordering::Relaxed);
        self.token_count.fetch_add(tokens, Ordering::Relaxed);
        self.last_request_at.store(now.0, Ordering::Relaxed);
    }

    /// The counts since the last call.
    pub(crate) fn take_request_counts(&self) -> RequestCounts {
        RequestCounts {
            requests: self.request_count.swap(0, Ordering::Relaxed),
            tokens: self.token_count.swap(0, Ordering::Relaxed),
            last_request_at: Timestamp(self.last_request_at.load(Ordering::Relaxed)),
        }
    }

    /// Adds counts back that were not reported.
    pub(crate) fn restore_request_counts(&self, requests: u64, tokens: u64) {
        for (count, more) in [(&self.request_count, requests), (&self.token_count, tokens)] {
            let sum = |count: u64| Some(count.saturating_add(more));
            let _always = count.fetch_update(Ordering::Relaxed, Ordering::Relaxed, sum);
        }
    }

    /// The present prices of a model.
    pub(crate) fn prices(&self, model: &ModelName) -> Option<Prices> {
        self.shared.price_of(model)
    }

    /// The used share of the budget, in percent, if there is one.
    pub(crate) fn budget_used_percent(&self, now: Timestamp) -> Option<u8> {
        let terms = self.terms();
        let budget = terms.budget.as_ref()?;
        Some(self.budget_window(budget, now).used_percent(budget))
    }

    /// Requests an early report: a share of a budget is exhausted while the whole
    /// budget is not.
    pub(crate) fn record_share_exhausted(&self) {
        self.shared.record_share_exhausted();
    }
}
