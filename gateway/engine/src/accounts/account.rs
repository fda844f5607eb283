use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU32, AtomicU64, Ordering};

use arc_swap::ArcSwap;
use fastllm_contract::{
    Budget, BudgetId, BudgetShare, BudgetState, ConcurrencyGrant, ConcurrencyUsage, Limits,
    ModelName, Prices, Subject, Timestamp,
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
    /// A report is due before the next interval: a share of a budget is exhausted
    /// while the whole budget is not, or others wait for what this gateway released.
    report_due: AtomicBool,
}

impl Default for SharedAccountState {
    fn default() -> Self {
        Self {
            replicas: AtomicU32::new(1),
            prices: ArcSwap::default(),
            stored: ArcSwap::default(),
            granted: ArcSwap::default(),
            report_due: AtomicBool::new(false),
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

    pub(crate) fn record_report_due(&self) {
        self.report_due.store(true, Ordering::Relaxed);
    }

    /// Whether a report became due since the last call.
    pub(crate) fn take_report_due(&self) -> bool {
        self.report_due.load(Ordering::Relaxed) && self.report_due.swap(false, Ordering::Relaxed)
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
    /// Whether the part of the concurrency limit was lowered: others may use the
    /// rest once this is reported.
    pub(crate) concurrency_lowered: bool,
}

/// This gateway's shares of a subject's limits.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct LimitShares {
    pub(crate) requests: f64,
    pub(crate) tokens: f64,
    pub(crate) concurrency: Option<ConcurrencyGrant>,
}

impl LimitShares {
    /// Concurrent requests that this gateway admits; at least 1, so that every
    /// gateway can serve.
    fn max_concurrent(shares: Option<Self>, limit: u64, replicas: u32) -> i64 {
        let part = match shares {
            None => limit / u64::from(replicas.max(1)),
            Some(Self {
                concurrency: Some(grant),
                ..
            }) => grant.part_of(limit),
            Some(Self { requests, .. }) => part_of_limit(limit, requests),
        };
        i64::try_from(part.max(1)).unwrap_or(i64::MAX)
    }
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
        let (requests, tokens) =
            shares.map_or((equal, equal), |shares| (shares.requests, shares.tokens));
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
                .map(|limit| LimitShares::max_concurrent(shares, limit.get(), replicas)),
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

/// A share of a concurrency limit, rounded down.
fn part_of_limit(limit: u64, share: f64) -> u64 {
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_precision_loss,
        clippy::cast_sign_loss,
        reason = "limits are at most a million"
    )]
    let part = (limit.min(1 << 32) as f64 * share.clamp(0.0, 1.0) + 1e-9).floor() as u64;
    part
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
    /// Since the last report.
    concurrency_lowered: AtomicBool,
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
            concurrency_lowered: AtomicBool::new(false),
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
        let before = self.terms.load().max_concurrent;
        self.terms.rcu(|held| {
            let shares = granted.or(held.shares);
            LimitTerms {
                budget: held.budget.clone(),
                ..LimitTerms::new(held.limits, shares, None, replicas)
            }
        });
        if let (Some(before), Some(now)) = (before, self.terms.load().max_concurrent)
            && granted.is_some()
            && now < before
        {
            self.concurrency_lowered.store(true, Ordering::Relaxed);
            // A small change can wait for the next report.
            if now <= before / 2 {
                self.shared.record_report_due();
            }
        }
    }

    /// Whether requests are in flight, if their number is limited.
    pub(crate) fn has_requests_in_flight(&self) -> bool {
        self.concurrent.load(Ordering::Acquire) > 0
    }

    /// What this gateway has and may have in flight; `None` without a limit.
    pub(crate) fn concurrency_usage(&self) -> Option<ConcurrencyUsage> {
        let terms = self.terms();
        let (limit, max) = terms.limits.concurrency.zip(terms.max_concurrent)?;
        let in_flight = self.concurrent.load(Ordering::Acquire);
        Some(ConcurrencyUsage {
            limit: limit.get(),
            held: u64::try_from(max.max(in_flight)).unwrap_or_default(),
        })
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
            concurrency_lowered: self.concurrency_lowered.swap(false, Ordering::Relaxed),
        }
    }

    /// Adds counts back that were not reported.
    pub(crate) fn restore_request_counts(&self, requests: u64, tokens: u64) {
        self.concurrency_lowered.store(true, Ordering::Relaxed);
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
        self.shared.record_report_due();
    }
}
