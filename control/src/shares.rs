//! How gateways share limits and budgets: arithmetic only.

use fastllm_contract::{Grant, LimitReport};

/// Less than this is nothing.
const LEAST_COUNT: f64 = 1e-3;
/// A gateway that asks for nothing keeps its even part divided by this, so that
/// it can begin at once.
const IDLE_PART: f64 = 8.0;

/// How many gateways a budget is shared by where so many are live. A gateway
/// alone has everything; several leave a part to one that comes, which would
/// otherwise have nothing until each of them asked again.
pub(crate) fn with_newcomer(live: usize) -> usize {
    if live > 1 { live + 1 } else { live }
}

/// A count of a while ago, as it counts now.
pub(crate) fn faded(count: f64, age_seconds: f64) -> f64 {
    let now = LimitReport::decayed(count, age_seconds);
    if now < LEAST_COUNT { 0.0 } else { now }
}

/// A gateway's share, from 0 to 1, of what `live` gateways have together: by
/// what it asked for lately, and at least an eighth of an even part. `others`
/// are the counts of those gateways that have one.
///
/// Invariant: the shares of all of them sum to 1.
pub(crate) fn share(own: f64, others: &[f64], live: usize) -> f64 {
    let live = count(live.max(others.len() + 1));
    let total: f64 = own + others.iter().sum::<f64>();
    if total <= 0.0 {
        return 1.0 / live;
    }
    let least = 1.0 / (IDLE_PART * live);
    let weight = |count: f64| (count / total).max(least);
    let silent = live - 1.0 - count(others.len());
    let whole = weight(own) + others.iter().copied().map(weight).sum::<f64>() + silent * least;
    weight(own) / whole
}

#[expect(clippy::cast_precision_loss, reason = "some thousands at most")]
fn count(number: usize) -> f64 {
    number as f64
}

/// What one start of a gateway has of one dimension of a budget, in one window.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct HeldShare {
    /// What it may have taken in all, since it began to count.
    pub(crate) granted: u64,
    /// What it said that it has taken.
    pub(crate) used: u64,
    /// What it said that requests in flight may take.
    pub(crate) reserved: u64,
    /// How much of it is stored.
    pub(crate) stored: u64,
}

impl HeldShare {
    /// What it has taken: more may be stored than it had said.
    fn taken(&self) -> u64 {
        self.used.max(self.stored)
    }

    /// What it has taken, and is not stored yet.
    pub(crate) fn pending(&self) -> u64 {
        self.used.saturating_sub(self.stored)
    }

    /// What it may still take without asking, or is taking already.
    fn outstanding(&self) -> u64 {
        self.granted
            .max(self.used.saturating_add(self.reserved))
            .saturating_sub(self.taken())
    }
}

/// One dimension of a budget in one window, seen by one gateway.
#[derive(Debug)]
pub(crate) struct Account {
    /// The budget.
    pub(crate) total: u64,
    /// What is stored, whoever took it.
    pub(crate) spent: u64,
    /// This gateway's.
    pub(crate) own: HeldShare,
    /// Those of all other gateways that are live.
    pub(crate) others: Vec<HeldShare>,
    /// Taken by starts that are over, and on its way to be stored.
    pub(crate) ended: u64,
    /// How many gateways are live, this one included.
    pub(crate) live: usize,
    /// Those of them that have said nothing of this window yet: each may have
    /// begun with an even part.
    pub(crate) silent: usize,
}

impl Account {
    /// What this gateway may take: its share of what is left, as far as others
    /// do not hold it.
    ///
    /// Invariant: what is taken and what may be taken without asking never
    /// exceed the total by this grant. A gateway alone gets all that is left.
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
            .map(HeldShare::pending)
            .chain([own.pending(), *ended]);
        let taken = pending.fold(*spent, u64::saturating_add);
        let held = others
            .iter()
            .map(HeldShare::outstanding)
            .fold(0, u64::saturating_add);
        let left = total.saturating_sub(taken);
        let even = total.saturating_sub(*spent).div_ceil(whole((*live).max(1)));
        let held = held.saturating_add(even.saturating_mul(whole(*silent)));
        let free = left.saturating_sub(held);
        let mut part = part(left, share).min(free);
        // What is too little to be divided goes around: to whoever asks and did
        // not hold it before. Otherwise nobody could spend the rest, or only a
        // gateway that does not need it.
        if part == 0 && held == 0 && own.granted <= own.taken() {
            part = free.min(1);
        }
        // By what it said: it counts on from there, whatever is stored meanwhile.
        Grant {
            total: *total,
            granted: own.used.saturating_add(part),
            used_by_others: taken.saturating_sub(own.taken()),
        }
    }
}

fn whole(gateways: usize) -> u64 {
    u64::try_from(gateways).unwrap_or(u64::MAX)
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
