use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use arc_swap::ArcSwapOption;
use fastllm_contract::{
    Budget, BudgetId, BudgetShare, BudgetState, BudgetUsage, Grant, Micros, Timestamp, Tokens,
};
use parking_lot::Mutex;

use crate::refusal::BudgetKind;
use crate::window::{Span, Window};

/// A budget in the form that requests are checked against.
#[derive(Debug, Clone)]
pub(crate) struct BudgetTerms {
    pub(crate) id: BudgetId,
    window: Window,
    /// Hash of the id and of the settings of the window.
    fingerprint: u64,
    tokens: Option<i64>,
    cost: Option<i64>,
}

impl BudgetTerms {
    /// An unknown time zone is replaced by UTC, so that the budget is enforced.
    pub(crate) fn new(budget: &Budget) -> Self {
        Self {
            id: budget.id,
            window: Window::or_utc(budget),
            fingerprint: fingerprint(budget),
            tokens: budget.tokens_total.map(|total| amount(total.0)),
            cost: budget.cost_total_micros.map(|total| amount(total.0)),
        }
    }

    pub(crate) fn limits_cost(&self) -> bool {
        self.cost.is_some()
    }

    /// Whether spending recorded for `other` counts for this budget.
    pub(crate) fn continues(&self, other: &Self) -> bool {
        self.fingerprint == other.fingerprint
    }
}

/// Amounts in both dimensions of a budget.
#[derive(Debug, Clone, Copy)]
pub(crate) struct BudgetAmounts {
    pub(crate) tokens: u64,
    /// Micro-units.
    pub(crate) cost: u64,
}

/// Why a budget admits no further request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum BudgetExceeded {
    /// The whole budget is spent.
    Total(BudgetKind),
    /// This gateway's share is spent, or reserved for requests in flight.
    Share(BudgetKind),
}

/// What is known of a budget when this gateway first uses a window.
#[derive(Debug, Clone, Copy)]
pub(crate) struct InitialBudget {
    /// Stored usage, of any window.
    pub(crate) stored: Option<BudgetState>,
    /// This gateway's share as last granted, of any window.
    pub(crate) granted: Option<BudgetShare>,
    /// The number of live gateways.
    pub(crate) replicas: u32,
}

/// The present window of a budget at this gateway.
#[derive(Debug)]
pub(crate) struct BudgetTracker(ArcSwapOption<BudgetWindow>);

/// One window of a budget: what this gateway has used and may use.
#[derive(Debug)]
pub(crate) struct BudgetWindow {
    budget: BudgetId,
    fingerprint: u64,
    span: Span,
    tokens: BudgetMeter,
    cost: BudgetMeter,
}

impl BudgetTracker {
    pub(crate) const fn new() -> Self {
        Self(ArcSwapOption::const_empty())
    }

    /// Discards the window, for another budget.
    pub(crate) fn clear(&self) {
        self.0.store(None);
    }

    /// The window of `now`, started if necessary. A request from shortly before
    /// its start counts in it, too.
    pub(crate) fn window(
        &self,
        terms: &BudgetTerms,
        now: Timestamp,
        known: impl Fn() -> InitialBudget,
    ) -> Arc<BudgetWindow> {
        loop {
            let held = self.0.load();
            if let Some(window) = held.as_ref().filter(|window| window.includes(terms, now)) {
                return Arc::clone(window);
            }
            let same = held
                .as_deref()
                .filter(|window| window.fingerprint == terms.fingerprint);
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

    /// The window that was used last.
    pub(crate) fn last(&self) -> Option<Arc<BudgetWindow>> {
        self.0.load_full()
    }
}

impl BudgetWindow {
    /// Whether a request of this time counts in this window. Far before its start
    /// it does not: a clock is or was wrong.
    fn includes(&self, terms: &BudgetTerms, now: Timestamp) -> bool {
        /// Microseconds.
        const TOLERANCE: i64 = 3_600_000_000;
        self.fingerprint == terms.fingerprint
            && now < self.span.end
            && now.0 >= self.span.start.0.saturating_sub(TOLERANCE)
    }

    fn begin(
        terms: &BudgetTerms,
        now: Timestamp,
        last: Option<&Self>,
        known: InitialBudget,
    ) -> Self {
        let span = terms.window.at(now);
        let stored = known
            .stored
            .filter(|stored| stored.window_start == span.start);
        let even = 1.0 / f64::from(known.replicas.max(1));
        let share = match (last, known.granted) {
            (Some(last), _) => last.tokens.grant.lock().share,
            (None, granted) => granted.map_or(even, |granted| granted.share.clamp(0.0, 1.0)),
        };
        let granted = known
            .granted
            .filter(|granted| granted.window_start == span.start);
        let meter = |total: Option<i64>, used: Option<u64>, granted: Option<Grant>| {
            let (total, used_by_others) = (total.unwrap_or(0), amount(used.unwrap_or(0)));
            let max = part(total.saturating_sub(used_by_others), share);
            BudgetMeter::new(granted.map_or(
                MeterGrant {
                    total,
                    max,
                    used_by_others,
                    share,
                },
                |grant| MeterGrant::new(grant, share),
            ))
        };
        Self {
            budget: terms.id,
            fingerprint: terms.fingerprint,
            span,
            tokens: meter(
                terms.tokens,
                stored.map(|stored| stored.tokens_used.0),
                granted.and_then(|granted| granted.tokens),
            ),
            cost: meter(
                terms.cost,
                stored.map(|stored| stored.cost_used_micros.0),
                granted.and_then(|granted| granted.cost_micros),
            ),
        }
    }

    /// Reserves the amounts that a request may need.
    pub(crate) fn reserve(
        &self,
        terms: &BudgetTerms,
        amounts: BudgetAmounts,
    ) -> Result<(), BudgetExceeded> {
        let (tokens, cost) = (amount(amounts.tokens), amount(amounts.cost));
        if let Some(total) = terms.tokens {
            self.tokens.take(tokens, total, BudgetKind::Tokens)?;
        } else {
            self.tokens.add(tokens);
        }
        let Some(total) = terms.cost else {
            self.cost.add(cost);
            return Ok(());
        };
        let taken = self.cost.take(cost, total, BudgetKind::Cost);
        if taken.is_err() {
            self.tokens.add(-tokens);
        }
        taken
    }

    pub(crate) fn budget(&self) -> BudgetId {
        self.budget
    }

    /// Whether it would admit a request now.
    pub(crate) fn check(&self, terms: &BudgetTerms) -> Result<(), BudgetExceeded> {
        if let Some(total) = terms.tokens {
            self.tokens.check(total, BudgetKind::Tokens)?;
        }
        terms
            .cost
            .map_or(Ok(()), |total| self.cost.check(total, BudgetKind::Cost))
    }

    /// Releases a reservation.
    pub(crate) fn release(&self, reserved: BudgetAmounts) {
        self.tokens.add(-amount(reserved.tokens));
        self.cost.add(-amount(reserved.cost));
    }

    /// The start of the window.
    pub(crate) fn start(&self) -> Timestamp {
        self.span.start
    }

    /// Replaces a reservation by what was really used.
    pub(crate) fn settle(&self, reserved: BudgetAmounts, used: BudgetAmounts) {
        self.tokens
            .settle(amount(reserved.tokens), amount(used.tokens));
        self.cost.settle(amount(reserved.cost), amount(used.cost));
    }

    /// The larger of the used shares, in percent, as known at this gateway.
    pub(crate) fn used_percent(&self, terms: &BudgetTerms) -> u8 {
        let tokens = terms.tokens.map(|total| self.tokens.used_percent(total));
        let cost = terms.cost.map(|total| self.cost.used_percent(total));
        tokens.max(cost).unwrap_or(0)
    }

    pub(crate) fn report(&self) -> BudgetUsage {
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

    /// Total spending, as known at this gateway.
    pub(crate) fn budget_state(&self) -> BudgetState {
        BudgetState {
            budget: self.budget,
            window_start: self.span.start,
            tokens_used: Tokens(self.tokens.spent()),
            cost_used_micros: Micros(self.cost.spent()),
        }
    }

    /// Applies stored usage of this window: what exceeds this gateway's own usage
    /// was used by others.
    pub(crate) fn apply_state(&self, stored: &BudgetState) {
        if stored.budget == self.budget && stored.window_start == self.span.start {
            self.tokens.apply_stored(stored.tokens_used.0);
            self.cost.apply_stored(stored.cost_used_micros.0);
        }
    }

    /// Applies a share that the control plane granted, if it is of this window.
    pub(crate) fn apply_share(&self, granted: &BudgetShare) {
        if granted.budget != self.budget || granted.window_start != self.span.start {
            return;
        }
        let share = granted.share.clamp(0.0, 1.0);
        let apply = |meter: &BudgetMeter, grant: Option<Grant>| {
            meter.change(|old| {
                grant.map_or(MeterGrant { share, ..old }, |grant| {
                    MeterGrant::new(grant, share)
                })
            });
        };
        apply(&self.tokens, granted.tokens);
        apply(&self.cost, granted.cost_micros);
    }
}

/// One dimension of a budget: tokens or cost.
///
/// Invariant: a request is admitted while settled and reserved amounts together
/// are below what this gateway may use. So the request that crosses the border
/// completes, and several cannot cross it at once.
#[derive(Debug)]
struct BudgetMeter {
    /// Settled and reserved.
    taken: AtomicI64,
    settled: AtomicI64,
    grant: Mutex<MeterGrant>,
    /// What may be used of `total`, computed from the grant: requests read only
    /// this.
    max: AtomicI64,
    total: AtomicI64,
}

/// What this gateway may use.
#[derive(Debug, Clone, Copy)]
struct MeterGrant {
    /// The total that it was computed for.
    total: i64,
    /// Since the gateway first used the window.
    max: i64,
    /// Used by other gateways, less what is charged differently for this one.
    used_by_others: i64,
    share: f64,
}

impl MeterGrant {
    fn new(grant: Grant, share: f64) -> Self {
        Self {
            total: amount(grant.total),
            max: amount(grant.granted),
            used_by_others: signed(grant.used_by_others),
            share,
        }
    }

    /// What may be used of a changed total: the share of what was added to it, and
    /// never more than others have left.
    fn for_total(self, total: i64) -> i64 {
        let more = part(total.saturating_sub(self.total), self.share);
        let left = total.saturating_sub(self.used_by_others);
        self.max.saturating_add(more).min(left)
    }
}

impl BudgetMeter {
    fn new(granted: MeterGrant) -> Self {
        Self {
            taken: AtomicI64::new(0),
            settled: AtomicI64::new(0),
            max: AtomicI64::new(granted.for_total(granted.total)),
            total: AtomicI64::new(granted.total),
            grant: Mutex::new(granted),
        }
    }

    fn change(&self, change: impl FnOnce(MeterGrant) -> MeterGrant) {
        let mut grant = self.grant.lock();
        *grant = change(*grant);
        let max = grant.for_total(self.total.load(Ordering::Relaxed));
        self.max.store(max, Ordering::Release);
    }

    /// What this gateway may use of a total.
    fn max(&self, total: i64) -> i64 {
        if self.total.load(Ordering::Acquire) == total {
            return self.max.load(Ordering::Acquire);
        }
        // The budget was changed.
        let grant = self.grant.lock();
        let max = grant.for_total(total);
        self.max.store(max, Ordering::Release);
        self.total.store(total, Ordering::Release);
        max
    }

    fn exceeded(&self, total: i64, kind: BudgetKind) -> BudgetExceeded {
        if self.spent() >= count(total) {
            BudgetExceeded::Total(kind)
        } else {
            BudgetExceeded::Share(kind)
        }
    }

    fn check(&self, total: i64, kind: BudgetKind) -> Result<(), BudgetExceeded> {
        if self.taken.load(Ordering::Acquire) < self.max(total) {
            Ok(())
        } else {
            Err(self.exceeded(total, kind))
        }
    }

    fn take(&self, count: i64, total: i64, kind: BudgetKind) -> Result<(), BudgetExceeded> {
        let max = self.max(total);
        self.taken
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, |taken| {
                (taken < max).then(|| taken.saturating_add(count))
            })
            .map(|_| ())
            .map_err(|_| self.exceeded(total, kind))
    }

    fn add(&self, count: i64) {
        add(&self.taken, count);
    }

    fn apply_stored(&self, stored: u64) {
        let settled = self.settled.load(Ordering::Acquire);
        let used_by_others = amount(stored).saturating_sub(settled);
        self.change(|grant| MeterGrant {
            used_by_others: grant.used_by_others.max(used_by_others),
            ..grant
        });
    }

    fn settle(&self, reserved: i64, used: i64) {
        add(&self.settled, used);
        self.add(used.saturating_sub(reserved));
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

    /// Settled and reserved amounts.
    fn report(&self) -> (u64, u64) {
        let settled = self.settled.load(Ordering::Acquire);
        let taken = self.taken.load(Ordering::Acquire);
        (count(settled), count(taken.saturating_sub(settled)))
    }
}

/// Adds without overflow: a backend may report any number.
fn add(sum: &AtomicI64, count: i64) {
    let more = |sum: i64| Some(sum.saturating_add(count));
    let _always = sum.fetch_update(Ordering::AcqRel, Ordering::Acquire, more);
}

/// Equal for the same budget with the same windows.
fn fingerprint(budget: &Budget) -> u64 {
    let mut hasher = DefaultHasher::new();
    budget.id.hash(&mut hasher);
    budget.time_zone.hash(&mut hasher);
    budget.window_start.hash(&mut hasher);
    std::mem::discriminant(&budget.window).hash(&mut hasher);
    hasher.finish()
}

/// The largest amount: sums of a few of them stay within the type.
const MAX_AMOUNT: u64 = 1 << 60;

fn amount(value: u64) -> i64 {
    i64::try_from(value.min(MAX_AMOUNT)).unwrap_or(i64::MAX)
}

fn signed(value: i64) -> i64 {
    let most = amount(MAX_AMOUNT);
    value.clamp(-most, most)
}

fn count(amount: i64) -> u64 {
    u64::try_from(amount).unwrap_or(0)
}

/// A share of an amount, rounded down. A share of 1 is exact.
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
