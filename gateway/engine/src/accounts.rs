//! What callers have used at this gateway, by subject: limits and budgets as
//! atomic numbers that outlive snapshots. No lock is taken on the request path.
//! Reports to the control plane are made from them, and its replies applied.

mod account;
mod bucket;
mod budget;

use std::collections::HashMap;
use std::sync::{Arc, Weak};
use std::time::Duration;

use fastllm_contract::{
    Budget, BudgetId, BudgetShare, LimitReport, LimitReportReply, LimitUsage, Limits, LimitsState,
    ModelName, ModelPrices, Prices, Subject, Timestamp,
};
use parking_lot::Mutex;

pub(crate) use account::{Account, LimitTerms};
use account::{LimitShares, RequestCounts, SharedAccountState};
pub(crate) use bucket::{BucketLevel, RefillRate};
pub(crate) use budget::{BudgetAmounts, BudgetExceeded, BudgetWindow};

/// How long after its last request a subject is reported, so that it keeps a
/// share. Microseconds.
const REPORTED_FOR: i64 = 60_000_000;

/// What the control plane would still count after this time.
fn decay(count: u64, after: Duration) -> u64 {
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_precision_loss,
        clippy::cast_sign_loss,
        reason = "a weight, and a conversion to whole numbers keeps to their bounds"
    )]
    let decayed = LimitReport::decayed(count as f64, after.as_secs_f64()) as u64;
    decayed
}

/// All accounts of a gateway. An account lives as long as a snapshot in use names
/// its subject.
#[derive(Debug, Default)]
pub struct Accounts {
    shared: Arc<SharedAccountState>,
    held: Mutex<HashMap<Subject, Weak<Account>>>,
}

impl Accounts {
    /// The account of a subject, with these limits and this budget from now on.
    /// `None` without either.
    pub(crate) fn open(
        &self,
        subject: Subject,
        limits: Option<&Limits>,
        budget: Option<&Budget>,
    ) -> Option<Arc<Account>> {
        if limits.is_none() && budget.is_none() {
            return None;
        }
        let mut held = self.held.lock();
        let known = held.get(&subject).and_then(Weak::upgrade);
        let account = known.unwrap_or_else(|| {
            let account = Arc::new(Account::new(subject.clone(), &self.shared));
            held.insert(subject, Arc::downgrade(&account));
            account
        });
        account.set_terms(limits, budget);
        Some(account)
    }

    /// Removes the accounts that no snapshot in use names.
    pub(crate) fn remove_unused(&self) {
        self.held
            .lock()
            .retain(|_, account| account.strong_count() > 0);
    }

    fn all(&self) -> Vec<Arc<Account>> {
        self.held
            .lock()
            .values()
            .filter_map(Weak::upgrade)
            .collect()
    }

    /// The present prices of a model, if it has any.
    pub fn prices(&self, model: &ModelName) -> Option<Prices> {
        self.shared.price_of(model)
    }

    /// Whether a report became due since the last call: a share of a budget was
    /// exhausted while the whole budget was not, or a part of a concurrency limit
    /// was halved, which others may use once this is reported.
    pub fn take_report_due(&self) -> bool {
        self.shared.take_report_due()
    }

    /// The next report, which may have more entries than the control plane accepts
    /// at once. Counts restart from 0.
    pub fn limit_report(&self, replica_id: String, boot_id: String, now: Timestamp) -> LimitReport {
        let mut report = LimitReport {
            replica_id,
            boot_id,
            counts: Vec::new(),
            budgets: Vec::new(),
        };
        for account in self.all() {
            let RequestCounts {
                requests,
                tokens,
                last_request_at,
                concurrency_lowered,
            } = account.take_request_counts();
            let limited = account.terms().limits() != &Limits::default();
            let recent = requests > 0 || now.0.saturating_sub(last_request_at.0) < REPORTED_FOR;
            if limited && (recent || concurrency_lowered || account.has_requests_in_flight()) {
                report.counts.push(LimitUsage {
                    subject: account.subject().clone(),
                    requests,
                    tokens,
                    concurrency: account.concurrency_usage(),
                });
            }
            if let Some(window) = account.budget.last() {
                report.budgets.push(window.report());
            }
        }
        report
            .counts
            .sort_by_key(|count| std::cmp::Reverse(count.requests));
        report
    }

    /// Adds counts back that could not be reported and were gathered over this time.
    /// They decay as at the control plane, so that no subject dominates the shares
    /// after an outage.
    pub fn restore_counts(&self, counts: &[LimitUsage], gathered: Duration) {
        let decayed = |count: u64| decay(count, gathered);
        let held = self.held.lock();
        for count in counts {
            if let Some(account) = held.get(&count.subject).and_then(Weak::upgrade) {
                account.restore_request_counts(decayed(count.requests), decayed(count.tokens));
            }
        }
    }

    /// Applies the shares of a reply. Shares of budgets that it does not list end.
    pub fn apply_shares(&self, reply: &LimitReportReply) {
        self.apply_reply(reply, HashMap::new());
    }

    /// Applies the shares of a reply to a part of a report. Other shares stay.
    pub fn apply_partial_shares(&self, reply: &LimitReportReply) {
        self.apply_reply(reply, (**self.shared.granted.load()).clone());
    }

    /// `shares` are the shares of budgets that stay.
    fn apply_reply(&self, reply: &LimitReportReply, mut shares: HashMap<BudgetId, BudgetShare>) {
        let LimitReportReply {
            replicas,
            allowances,
            budgets,
            duplicate_replica: _,
        } = reply;
        self.set_replicas(*replicas);
        let held = self.held.lock();
        for share in allowances {
            if let Some(account) = held.get(&share.subject).and_then(Weak::upgrade) {
                account.set_shares(Some(LimitShares {
                    requests: share.requests_share,
                    tokens: share.tokens_share,
                    concurrency: share.concurrency,
                }));
            }
        }
        drop(held);
        let granted: HashMap<_, _> = budgets.iter().map(|share| (share.budget, *share)).collect();
        shares.extend(&granted);
        self.shared.granted.store(Arc::new(shares));
        // A share that was not granted again stays, with the usage applied since.
        for window in self
            .all()
            .iter()
            .filter_map(|account| account.budget.last())
        {
            if let Some(share) = granted.get(&window.budget()) {
                window.apply_share(share);
            }
        }
    }

    /// Applies prices, stored usage of budgets and the number of gateways.
    pub fn apply_limits_state(&self, limits_state: &LimitsState) {
        let LimitsState {
            replicas,
            prices,
            budgets,
        } = limits_state;
        let prices = prices.iter().map(|of| (of.model.clone(), of.prices));
        self.shared.prices.store(Arc::new(prices.collect()));
        let budgets = budgets.iter().map(|budget| (budget.budget, *budget));
        let budgets: HashMap<_, _> = budgets.collect();
        for account in self.all() {
            if let Some(window) = account.budget.last()
                && let Some(stored) = budgets.get(&window.budget())
            {
                window.apply_state(stored);
            }
        }
        self.shared.stored.store(Arc::new(budgets));
        self.set_replicas(*replicas);
    }

    /// 0 means unknown: nothing changes.
    fn set_replicas(&self, replicas: u32) {
        if replicas == 0 || self.shared.replicas() == replicas {
            return;
        }
        self.shared.set_replicas(replicas);
        for account in self.all() {
            account.set_shares(None);
        }
    }

    /// Prices and usage as known at this gateway, its own included: for a start
    /// without the control plane.
    pub fn limits_state(&self) -> LimitsState {
        let mut budgets = (**self.shared.stored.load()).clone();
        for window in self
            .all()
            .iter()
            .filter_map(|account| account.budget.last())
        {
            let own = window.budget_state();
            let known = budgets.entry(own.budget).or_insert(own);
            if known.window_start <= own.window_start {
                let newer = known.window_start == own.window_start;
                let (tokens, cost) = (known.tokens_used, known.cost_used_micros);
                *known = own;
                if newer {
                    known.tokens_used = tokens.max(own.tokens_used);
                    known.cost_used_micros = cost.max(own.cost_used_micros);
                }
            }
        }
        let mut budgets: Vec<_> = budgets.into_values().collect();
        budgets.sort_by_key(|budget| budget.budget);
        let prices = self.shared.prices.load();
        let mut prices: Vec<_> = prices
            .iter()
            .map(|(model, prices)| ModelPrices {
                model: model.clone(),
                prices: *prices,
            })
            .collect();
        prices.sort_by(|one, other| one.model.cmp(&other.model));
        LimitsState {
            replicas: self.shared.replicas(),
            prices,
            budgets,
        }
    }
}
