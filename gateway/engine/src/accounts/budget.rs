use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use arc_swap::ArcSwapOption;
use fastllm_contract::{
    Budget, BudgetId, BudgetShare, BudgetState, BudgetUsage, Grant, Micros, Timestamp, Tokens,
};
use parking_lot::Mutex;

use crate::window::{Span, Window};

/// A budget as it is asked at each request.
#[derive(Debug, Clone)]
pub(super) struct BudgetTerms {
    pub(super) id: BudgetId,
    window: Window,
    /// Tells this id and window from others.
    mark: u64,
    tokens: Option<i64>,
    cost: Option<i64>,
}

impl BudgetTerms {
    /// A time zone that this release does not know is taken for UTC: a budget
    /// that is not enforced would be worse.
    pub(super) fn new(budget: &Budget) -> Self {
        Self {
            id: budget.id,
            window: Window::or_utc(budget),
            mark: mark(budget),
            tokens: budget.tokens_total.map(|total| amount(total.0)),
            cost: budget.cost_total_micros.map(|total| amount(total.0)),
        }
    }

    pub(super) fn counts_money(&self) -> bool {
        self.cost.is_some()
    }

    /// Whether what is spent of `other` is spent of this one.
    pub(super) fn continues(&self, other: &Self) -> bool {
        self.mark == other.mark
    }
}

/// One of the two things that a budget counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BudgetKind {
    /// Tokens of prompts and answers.
    Tokens,
    /// Money.
    Cost,
}

/// Why a budget admits nothing more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum BudgetExceeded {
    /// All of it is spent.
    Total(BudgetKind),
    /// What this gateway may take of it is spent, or set aside for requests in
    /// flight.
    Share(BudgetKind),
}

/// What is known from elsewhere where a period begins.
#[derive(Debug, Clone, Copy)]
pub(super) struct InitialBudget {
    /// What is stored, of whichever window.
    pub(super) limits_state: Option<BudgetState>,
    /// What control has said that this gateway may have, of whichever window.
    pub(super) grants: Option<BudgetShare>,
    /// How many gateways run.
    pub(super) replicas: u32,
}

/// What is taken of a budget here: one period after the other.
#[derive(Debug)]
pub(super) struct BudgetTracker(ArcSwapOption<BudgetWindow>);

/// A window of a budget, as far as this gateway has used it.
#[derive(Debug)]
pub(super) struct BudgetWindow {
    budget: BudgetId,
    mark: u64,
    span: Span,
    tokens: BudgetMeter,
    cost: BudgetMeter,
}

impl BudgetTracker {
    pub(super) const fn new() -> Self {
        Self(ArcSwapOption::const_empty())
    }

    /// Forgets: what follows is another budget.
    pub(super) fn clear(&self) {
        self.0.store(None);
    }

    /// The period of now. A request that came before it began is booked in it,
    /// too.
    pub(super) fn period(
        &self,
        terms: &BudgetTerms,
        now: Timestamp,
        known: impl Fn() -> InitialBudget,
    ) -> Arc<BudgetWindow> {
        loop {
            let held = self.0.load();
            if let Some(period) = held.as_ref().filter(|period| period.is_of(terms, now)) {
                return Arc::clone(period);
            }
            let same = held.as_deref().filter(|period| period.mark == terms.mark);
            let next = Arc::new(BudgetWindow::begin(terms, now, same, known()));
            let before = self.0.compare_and_swap(&*held, Some(Arc::clone(&next)));
            let unchanged = match (&*before, &*held) {
                (Some(before), Some(held)) => Arc::ptr_eq(before, held),
                (None, None) => true,
                _ => false,
            };
            if unchanged {
                return next;
            }
        }
    }

    /// The period that was used last.
    pub(super) fn last(&self) -> Option<Arc<BudgetWindow>> {
        self.0.load_full()
    }
}

impl BudgetWindow {
    /// Whether a request of this time is booked here. One that is far before it
    /// has a clock that went wrong, or had when the period began.
    fn is_of(&self, terms: &BudgetTerms, now: Timestamp) -> bool {
        /// Microseconds.
        const LATE: i64 = 3_600_000_000;
        self.mark == terms.mark
            && now < self.span.end
            && now.0 >= self.span.start.0.saturating_sub(LATE)
    }

    fn begin(
        terms: &BudgetTerms,
        now: Timestamp,
        last: Option<&Self>,
        known: InitialBudget,
    ) -> Self {
        let span = terms.window.at(now);
        let limits_state = known
            .limits_state
            .filter(|limits_state| limits_state.window_start == span.start);
        let even = 1.0 / f64::from(known.replicas.max(1));
        let share = match (last, known.grants) {
            (Some(last), _) => last.tokens.grant.lock().share,
            (None, grants) => grants.map_or(even, |grants| grants.share.clamp(0.0, 1.0)),
        };
        let grants = known
            .grants
            .filter(|grants| grants.window_start == span.start);
        let meter = |total: Option<i64>, used: Option<u64>, grants: Option<Grant>| {
            let (total, used_by_others) = (total.unwrap_or(0), amount(used.unwrap_or(0)));
            let most = part(total.saturating_sub(used_by_others), share);
            BudgetMeter::new(grants.map_or(
                MeterGrant {
                    total,
                    most,
                    used_by_others,
                    share,
                },
                |grant| MeterGrant::grants(grant, share),
            ))
        };
        Self {
            budget: terms.id,
            mark: terms.mark,
            span,
            tokens: meter(
                terms.tokens,
                limits_state.map(|limits_state| limits_state.tokens_used.0),
                grants.and_then(|grants| grants.tokens),
            ),
            cost: meter(
                terms.cost,
                limits_state.map(|limits_state| limits_state.cost_used_micros.0),
                grants.and_then(|grants| grants.cost_micros),
            ),
        }
    }

    /// Sets budget_hold what a request may need.
    pub(super) fn take(
        &self,
        terms: &BudgetTerms,
        tokens: u64,
        cost: u64,
    ) -> Result<(), BudgetExceeded> {
        if let Some(total) = terms.tokens {
            self.tokens
                .take(amount(tokens), total, BudgetKind::Tokens)?;
        } else {
            self.tokens.put(amount(tokens));
        }
        let Some(total) = terms.cost else {
            self.cost.put(amount(cost));
            return Ok(());
        };
        let taken = self.cost.take(amount(cost), total, BudgetKind::Cost);
        if taken.is_err() {
            self.tokens.put(-amount(tokens));
        }
        taken
    }

    pub(super) fn budget(&self) -> BudgetId {
        self.budget
    }

    /// Whether it would admit anything now.
    pub(super) fn check(&self, terms: &BudgetTerms) -> Result<(), BudgetExceeded> {
        if let Some(total) = terms.tokens {
            self.tokens.check(total, BudgetKind::Tokens)?;
        }
        terms
            .cost
            .map_or(Ok(()), |total| self.cost.check(total, BudgetKind::Cost))
    }

    /// Gives back what was set aside.
    pub(super) fn give(&self, tokens: u64, cost: u64) {
        self.tokens.put(-amount(tokens));
        self.cost.put(-amount(cost));
    }

    /// Puts what was really used in place of what was set aside.
    pub(super) fn settle(&self, budget_hold: (u64, u64), used: (u64, u64)) {
        self.tokens.settle(amount(budget_hold.0), amount(used.0));
        self.cost.settle(amount(budget_hold.1), amount(used.1));
    }

    /// The larger of the used shares, in percent, as far as it is known here.
    pub(super) fn used_percent(&self, terms: &BudgetTerms) -> u8 {
        let tokens = terms.tokens.map(|total| self.tokens.used_percent(total));
        let cost = terms.cost.map(|total| self.cost.used_percent(total));
        tokens.max(cost).unwrap_or(0)
    }

    pub(super) fn report(&self) -> BudgetUsage {
        let (tokens, tokens_reserved) = self.tokens.report();
        let (cost, cost_reserved) = self.cost.report();
        BudgetUsage {
            budget: self.budget,
            window_start: self.span.start,
            tokens: Tokens(tokens),
            tokens_reserved: Tokens(tokens_reserved),
            cost_micros: Micros(cost),
            cost_reserved_micros: Micros(cost_reserved),
        }
    }

    /// What is spent in all, as far as it is known here.
    pub(super) fn limits_state(&self) -> BudgetState {
        BudgetState {
            budget: self.budget,
            window_start: self.span.start,
            tokens_used: Tokens(self.tokens.spent()),
            cost_used_micros: Micros(self.cost.spent()),
        }
    }

    /// Takes on what is stored, if it is about this window: what others have
    /// spent is never less than what this gateway has not.
    pub(super) fn apply_state(&self, limits_state: &BudgetState) {
        if limits_state.budget == self.budget && limits_state.window_start == self.span.start {
            self.tokens.apply_state(limits_state.tokens_used.0);
            self.cost.apply_state(limits_state.cost_used_micros.0);
        }
    }

    /// Takes on what control says, if it is about this window.
    pub(super) fn share(&self, said: &BudgetShare) {
        if said.budget != self.budget || said.window_start != self.span.start {
            return;
        }
        let share = said.share.clamp(0.0, 1.0);
        let take_on = |meter: &BudgetMeter, grant: Option<Grant>| {
            meter.change(|old| {
                grant.map_or(MeterGrant { share, ..old }, |grant| {
                    MeterGrant::grants(grant, share)
                })
            });
        };
        take_on(&self.tokens, said.tokens);
        take_on(&self.cost, said.cost_micros);
    }
}

/// One of the two things that are counted.
///
/// Invariant: admitted while what is settled and what is set aside are together
/// below what this gateway may take; so the request that crosses the border
/// completes, and several cannot cross it at once.
#[derive(Debug)]
struct BudgetMeter {
    /// Settled and set aside.
    taken: AtomicI64,
    settled: AtomicI64,
    grant: Mutex<MeterGrant>,
    /// What may be taken by the grant, of this total: what requests look at.
    most: AtomicI64,
    total: AtomicI64,
}

/// What this gateway may take.
#[derive(Debug, Clone, Copy)]
struct MeterGrant {
    /// The total that it was reckoned with.
    total: i64,
    /// Since the gateway has used the window.
    most: i64,
    /// What others have spent.
    used_by_others: i64,
    share: f64,
}

impl MeterGrant {
    fn grants(grant: Grant, share: f64) -> Self {
        Self {
            total: amount(grant.total),
            most: amount(grant.granted),
            used_by_others: amount(grant.used_by_others),
            share,
        }
    }

    /// What may be taken of a total: of what was added to it since, the share;
    /// never more than others have left.
    fn of(self, total: i64) -> i64 {
        let more = part(total.saturating_sub(self.total), self.share);
        let left = total.saturating_sub(self.used_by_others);
        self.most.saturating_add(more).min(left)
    }
}

impl BudgetMeter {
    fn new(granted: MeterGrant) -> Self {
        Self {
            taken: AtomicI64::new(0),
            settled: AtomicI64::new(0),
            most: AtomicI64::new(granted.of(granted.total)),
            total: AtomicI64::new(granted.total),
            grant: Mutex::new(granted),
        }
    }

    fn change(&self, change: impl FnOnce(MeterGrant) -> MeterGrant) {
        let mut grant = self.grant.lock();
        *grant = change(*grant);
        let most = grant.of(self.total.load(Ordering::Relaxed));
        self.most.store(most, Ordering::Release);
    }

    /// What this gateway may take of a total.
    fn most(&self, total: i64) -> i64 {
        if self.total.load(Ordering::Acquire) == total {
            return self.most.load(Ordering::Acquire);
        }
        // Somebody has changed the budget.
        let grant = self.grant.lock();
        let most = grant.of(total);
        self.most.store(most, Ordering::Release);
        self.total.store(total, Ordering::Release);
        most
    }

    fn exhausted(&self, total: i64, what: BudgetKind) -> BudgetExceeded {
        if self.spent() >= count(total) {
            BudgetExceeded::Total(what)
        } else {
            BudgetExceeded::Share(what)
        }
    }

    fn check(&self, total: i64, what: BudgetKind) -> Result<(), BudgetExceeded> {
        if self.taken.load(Ordering::Acquire) < self.most(total) {
            Ok(())
        } else {
            Err(self.exhausted(total, what))
        }
    }

    fn take(&self, count: i64, total: i64, what: BudgetKind) -> Result<(), BudgetExceeded> {
        let most = self.most(total);
        self.taken
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, |taken| {
                (taken < most).then(|| taken.saturating_add(count))
            })
            .map(|_| ())
            .map_err(|_| self.exhausted(total, what))
    }

    fn put(&self, count: i64) {
        add(&self.taken, count);
    }

    fn apply_state(&self, stored: u64) {
        let settled = self.settled.load(Ordering::Acquire);
        let used_by_others = amount(stored).saturating_sub(settled);
        self.change(|grant| MeterGrant {
            used_by_others: grant.used_by_others.max(used_by_others),
            ..grant
        });
    }

    fn settle(&self, budget_hold: i64, used: i64) {
        add(&self.settled, used);
        self.put(used.saturating_sub(budget_hold));
    }

    fn spent(&self) -> u64 {
        let settled = self.settled.load(Ordering::Acquire);
        count(self.grant.lock().used_by_others.saturating_add(settled))
    }

    fn used_percent(&self, total: i64) -> u8 {
        if total <= 0 {
            return 100;
        }
        let percent = u128::from(self.spent()) * 100 / u128::from(total.unsigned_abs());
        u8::try_from(percent.min(100)).unwrap_or(100)
    }

    /// What is settled, and what is set aside.
    fn report(&self) -> (u64, u64) {
        let settled = self.settled.load(Ordering::Acquire);
        let taken = self.taken.load(Ordering::Acquire);
        (count(settled), count(taken.saturating_sub(settled)))
    }
}

/// Adds without going round, whatever a backend says that it used.
fn add(sum: &AtomicI64, count: i64) {
    let more = |sum: i64| Some(sum.saturating_add(count));
    let _always = sum.fetch_update(Ordering::AcqRel, Ordering::Acquire, more);
}

/// The same for what is the same budget with the same windows.
fn mark(budget: &Budget) -> u64 {
    let mut hasher = DefaultHasher::new();
    budget.id.hash(&mut hasher);
    budget.time_zone.hash(&mut hasher);
    budget.window_start.hash(&mut hasher);
    std::mem::discriminant(&budget.window).hash(&mut hasher);
    hasher.finish()
}

/// The highest amount: sums of a few of them stay within the type.
const MOST: u64 = 1 << 60;

fn amount(value: u64) -> i64 {
    i64::try_from(value.min(MOST)).unwrap_or(i64::MAX)
}

fn count(amount: i64) -> u64 {
    u64::try_from(amount).unwrap_or(0)
}

/// A share of an amount, rounded down; all of it is exact.
fn part(amount: i64, share: f64) -> i64 {
    if share >= 1.0 {
        return amount;
    }
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_precision_loss,
        reason = "a share is an estimate, and never more than the amount"
    )]
    let part = (amount as f64 * share).floor() as i64;
    part
}
