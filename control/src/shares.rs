//! The arithmetic by which gateways share limits and budgets.

use fastllm_contract::{Grant, LimitReport};

/// Lower counts are treated as 0.
const MIN_COUNT: f64 = 1e-3;
/// An idle gateway has its even share divided by this, so that it can serve requests
/// immediately.
const IDLE_DIVISOR: f64 = 8.0;

/// The number of shares of a budget for this number of live gateways. A single
/// gateway has the whole budget. Several leave one share for a gateway that joins,
/// which would otherwise have nothing until all others have reconciled.
pub(crate) fn with_newcomer(live: usize) -> usize {
    if live > 1 { live + 1 } else { live }
}

/// An earlier count with exponential decay applied.
pub(crate) fn decayed(count: f64, age_seconds: f64) -> f64 {
    let now = LimitReport::decayed(count, age_seconds);
    if now < MIN_COUNT { 0.0 } else { now }
}

/// A gateway's share, from 0 to 1, of the total of `live` gateways: proportional to
/// its recent demand, but at least an eighth of an even share. `others` are the
/// counts of the other gateways that have one.
///
/// Invariant: the shares of all gateways sum to 1.
pub(crate) fn share(own: f64, others: &[f64], live: usize) -> f64 {
    let live = count(live.max(others.len() + 1));
    let total: f64 = own + others.iter().sum::<f64>();
    if total <= 0.0 {
        return 1.0 / live;
    }
    let least = 1.0 / (IDLE_DIVISOR * live);
    let weight = |count: f64| (count / total).max(least);
    let silent = live - 1.0 - count(others.len());
    let whole = weight(own) + others.iter().copied().map(weight).sum::<f64>() + silent * least;
    weight(own) / whole
}

#[expect(clippy::cast_precision_loss, reason = "at most thousands")]
fn count(number: usize) -> f64 {
    number as f64
}

/// An even part of a concurrency limit, which a gateway has until it is granted
/// another one; at least 1.
pub(crate) fn even_concurrency(limit: u64, live: usize) -> u64 {
    (limit / whole(live.max(1))).max(1)
}

/// What is known of a concurrency limit when one gateway reports.
#[derive(Debug)]
pub(crate) struct ConcurrencyInput {
    pub(crate) limit: u64,
    /// The requests that other gateways may have in flight, as far as they have
    /// reported the subject.
    pub(crate) held_by_others: u64,
    /// The number of live gateways, including this one.
    pub(crate) live: usize,
    /// The number of live gateways that have not reported the subject. Each has an
    /// even part.
    pub(crate) silent: usize,
}

impl ConcurrencyInput {
    /// Computes the part of this gateway: its share, rounded up, limited to what
    /// others do not hold; at least 1, so that every gateway can serve.
    ///
    /// Invariant: what gateways hold, by reports that are up to date, is at most the
    /// limit or, if that is larger, the number of gateways.
    pub(crate) fn grant(&self, share: f64) -> u64 {
        let Self {
            limit,
            held_by_others,
            live,
            silent,
        } = self;
        let even = even_concurrency(*limit, *live);
        let held = held_by_others.saturating_add(even.saturating_mul(whole(*silent)));
        rounded_up(*limit, share)
            .min(limit.saturating_sub(held))
            .max(1)
    }
}

/// The amounts of one start of a gateway in one dimension of a budget's window.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct ShareAmounts {
    /// The total granted amount.
    pub(crate) granted: u64,
    /// The reported used amount.
    pub(crate) used: u64,
    /// The reported reservations for requests in flight.
    pub(crate) reserved: u64,
    /// The part of the used amount whose usage events are stored, as the gateway
    /// counts it: other prices may have been charged.
    pub(crate) stored: u64,
}

impl ShareAmounts {
    /// The used amount. More may be stored than was reported.
    fn taken(&self) -> u64 {
        self.used.max(self.stored)
    }

    /// The used amount that is not stored yet.
    pub(crate) fn pending(&self) -> u64 {
        self.used.saturating_sub(self.stored)
    }

    /// The amount that it can still use before it reconciles, including reservations.
    fn outstanding(&self) -> u64 {
        self.granted
            .max(self.used.saturating_add(self.reserved))
            .saturating_sub(self.taken())
    }
}

/// The amounts from which the grant of one gateway is computed, in one dimension of a
/// budget's window.
#[derive(Debug)]
pub(crate) struct GrantInput {
    /// The amount of the budget.
    pub(crate) total: u64,
    /// The stored usage of all gateways, as it was charged.
    pub(crate) spent: u64,
    /// The amounts of this gateway.
    pub(crate) own: ShareAmounts,
    /// The amounts of all other live gateways.
    pub(crate) others: Vec<ShareAmounts>,
    /// Usage of ended starts that is not stored yet.
    pub(crate) ended: u64,
    /// The number of live gateways, including this one.
    pub(crate) live: usize,
    /// The number of live gateways without a report for this window. Each may have
    /// started with an even share.
    pub(crate) silent: usize,
}

impl GrantInput {
    /// Computes the grant of this gateway: its share of the remaining amount, limited
    /// to what is not granted to others.
    ///
    /// Invariant: a grant never makes the sum of used and granted amounts exceed the
    /// total. A single gateway gets the whole remaining amount.
    pub(crate) fn grant(&self, share: f64) -> Grant {
        let Self {
            total,
            spent,
            own,
            others,
            ended,
            live,
            silent,
        } = self;
        let pending = others
            .iter()
            .map(ShareAmounts::pending)
            .chain([own.pending(), *ended]);
        let taken = pending.fold(*spent, u64::saturating_add);
        let held = others
            .iter()
            .map(ShareAmounts::outstanding)
            .fold(0, u64::saturating_add);
        let left = total.saturating_sub(taken);
        let even = total.saturating_sub(*spent).div_ceil(whole((*live).max(1)));
        let held = held.saturating_add(even.saturating_mul(whole(*silent)));
        let free = left.saturating_sub(held);
        let mut part = part(left, share).min(free);
        // An indivisible remainder is granted to a gateway that had nothing before, so
        // that it moves between gateways. Otherwise it would stay unused, or with a
        // gateway that does not need it.
        if part == 0 && held == 0 && own.granted <= own.taken() {
            part = free.min(1);
        }
        // Relative to the reported amount, from which the gateway continues to count.
        Grant {
            total: *total,
            granted: own.used.saturating_add(part),
            used_by_others: difference(taken, own.taken()),
        }
    }
}

fn difference(amount: u64, other: u64) -> i64 {
    let difference = i128::from(amount) - i128::from(other);
    i64::try_from(difference).unwrap_or(if difference < 0 { i64::MIN } else { i64::MAX })
}

fn whole(gateways: usize) -> u64 {
    u64::try_from(gateways).unwrap_or(u64::MAX)
}

/// `share` of a limit, rounded up.
#[expect(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "shares are from 0 to 1 and limits at most a million"
)]
fn rounded_up(limit: u64, share: f64) -> u64 {
    ((limit as f64 * share - 1e-9).ceil() as u64).min(limit)
}

/// `share` of `whole`, rounded.
#[expect(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "shares are from 0 to 1 and need no more than 52 bits"
)]
fn part(whole: u64, share: f64) -> u64 {
    if share >= 1.0 {
        whole
    } else {
        ((whole as f64 * share).round() as u64).min(whole)
    }
}

#[cfg(test)]
mod tests;
