use std::collections::HashMap;
use std::sync::{Arc, Weak};
use std::time::Duration;

use fastllm_contract::{
    Budget, BudgetId, BudgetShare, LimitReport, LimitReportReply, LimitUsage, Limits, LimitsState,
    ModelName, ModelPrices, Prices, Subject, Timestamp,
};
use parking_lot::Mutex;

use super::account::{Account, LimitShares, SharedAccountState};

/// For so long after its last request a subject's share is asked for,
/// microseconds.
const LATELY: i64 = 60_000_000;

/// What control would remember of a count after so long.
fn fade(count: u64, after: Duration) -> u64 {
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_precision_loss,
        clippy::cast_sign_loss,
        reason = "a weight, and a conversion to whole numbers keeps to their bounds"
    )]
    let faded = LimitReport::decayed(count as f64, after.as_secs_f64()) as u64;
    faded
}

/// All accounts of a gateway, and what control says about them. They outlive
/// snapshots, as long as some snapshot in use names their subject.
#[derive(Debug, Default)]
pub struct Accounts {
    shared: Arc<SharedAccountState>,
    held: Mutex<HashMap<Subject, Weak<Account>>>,
}

impl Accounts {
    /// The account of a subject with limits or a budget, on these terms from now
    /// on.
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

    /// Forgets the accounts that no snapshot in use names any more.
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

    /// What a model costs now, where it has a price.
    pub fn prices(&self, model: &ModelName) -> Option<Prices> {
        self.shared.price_of(model)
    }

    /// Whether a share of a budget was found spent while the whole is not, since
    /// this was asked last: time to reconcile.
    pub fn take_share_exhausted(&self) -> bool {
        self.shared.wanted()
    }

    /// What this gateway has to say when it reconciles, maybe more than control
    /// accepts at once. Counts begin anew.
    pub fn limit_report(&self, replica_id: String, boot_id: String, now: Timestamp) -> LimitReport {
        let mut report = LimitReport {
            replica_id,
            boot_id,
            counts: Vec::new(),
            budgets: Vec::new(),
        };
        for account in self.all() {
            let (requests, tokens, at) = account.take_request_counts();
            let limited = account.terms().limits() != &Limits::default();
            if limited && (requests > 0 || now.0.saturating_sub(at.0) < LATELY) {
                report.counts.push(LimitUsage {
                    subject: account.subject().clone(),
                    requests,
                    tokens,
                });
            }
            if let Some(period) = account.spending.last() {
                report.budgets.push(period.report());
            }
        }
        report
            .counts
            .sort_by_key(|count| std::cmp::Reverse(count.requests));
        report
    }

    /// Control was not told of these counts, which have gathered for so long: the
    /// next report has them, too, as far as control would still remember them, so
    /// that nobody comes out of an outage with more than all others.
    pub fn restore_counts(&self, counts: &[LimitUsage], gathered: Duration) {
        let faded = |count: u64| fade(count, gathered);
        let held = self.held.lock();
        for count in counts {
            if let Some(account) = held.get(&count.subject).and_then(Weak::upgrade) {
                account.restore_request_counts(faded(count.requests), faded(count.tokens));
            }
        }
    }

    /// Takes on the shares that control has given out.
    pub fn apply_shares(&self, said: &LimitReportReply) {
        self.take_on(said, HashMap::new());
    }

    /// Takes on shares of a part of what was reported; others stay.
    pub fn apply_partial_shares(&self, said: &LimitReportReply) {
        self.take_on(said, (**self.shared.grants.load()).clone());
    }

    /// `shares` are those of budgets that stay.
    fn take_on(&self, said: &LimitReportReply, mut shares: HashMap<BudgetId, BudgetShare>) {
        let LimitReportReply {
            replicas,
            allowances,
            budgets,
            duplicate_replica: _,
        } = said;
        self.set_replicas(*replicas);
        let held = self.held.lock();
        for share in allowances {
            if let Some(account) = held.get(&share.subject).and_then(Weak::upgrade) {
                account.set_shares(Some(LimitShares {
                    requests: share.requests_share,
                    tokens: share.tokens_share,
                }));
            }
        }
        drop(held);
        let said: HashMap<_, _> = budgets.iter().map(|said| (said.budget, *said)).collect();
        shares.extend(&said);
        self.shared.grants.store(Arc::new(shares));
        // What is not said anew stays, with what was learnt since.
        for period in self
            .all()
            .iter()
            .filter_map(|account| account.spending.last())
        {
            if let Some(said) = said.get(&period.budget()) {
                period.share(said);
            }
        }
    }

    /// Takes on how things stand.
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
            if let Some(period) = account.spending.last()
                && let Some(known) = budgets.get(&period.budget())
            {
                period.apply_state(known);
            }
        }
        self.shared.limits_state.store(Arc::new(budgets));
        self.set_replicas(*replicas);
    }

    /// 0 is unknown.
    fn set_replicas(&self, replicas: u32) {
        if replicas == 0 || self.shared.replicas() == replicas {
            return;
        }
        self.shared.set_replicas(replicas);
        for account in self.all() {
            account.set_shares(None);
        }
    }

    /// How things stand as far as is known here, what this gateway has spent
    /// itself included: for a start without control.
    pub fn limits_state(&self) -> LimitsState {
        let mut budgets = (**self.shared.limits_state.load()).clone();
        for period in self
            .all()
            .iter()
            .filter_map(|account| account.spending.last())
        {
            let mine = period.limits_state();
            let known = budgets.entry(mine.budget).or_insert(mine);
            if known.window_start <= mine.window_start {
                let newer = known.window_start == mine.window_start;
                let (tokens, cost) = (known.tokens_used, known.cost_used_micros);
                *known = mine;
                if newer {
                    known.tokens_used = tokens.max(mine.tokens_used);
                    known.cost_used_micros = cost.max(mine.cost_used_micros);
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
