//! Which backend of a pool takes the next request. One policy, one file.

mod cache_affinity;
mod least_loaded;
mod lowest_latency;
mod round_robin;

use std::sync::Arc;

use fastllm_contract::{Model, PolicyKind};

use self::cache_affinity::CacheAffinity;
use self::least_loaded::LeastLoaded;
use self::lowest_latency::LowestLatency;
use self::round_robin::RoundRobin;
use super::{Affinity, Backend, PickContext, Tuning};

/// Chooses a backend of one pool.
pub(super) trait Policy: std::fmt::Debug + Send + Sync {
    /// The index of the chosen backend; `None` without candidates.
    fn choose(&self, choice: &Candidates<'_>) -> Option<usize>;

    /// The kind of the policy.
    fn kind(&self) -> PolicyKind;
}

/// The candidates of a choice.
pub(super) struct Candidates<'a> {
    pub(super) backends: &'a [Backend],
    /// Whether the backend at an index is a candidate.
    pub(super) eligible: &'a dyn Fn(usize) -> bool,
    /// Incremented by every request, for rotation.
    pub(super) turn: usize,
    pub(super) pick: &'a PickContext<'a>,
}

impl Candidates<'_> {
    /// The candidates, as indices.
    fn candidates(&self) -> impl Iterator<Item = usize> {
        (0..self.backends.len()).filter(|index| (self.eligible)(*index))
    }
}

/// The policy of a model.
pub(super) fn build(model: &Model, tuning: &Tuning, affinity: &Arc<Affinity>) -> Box<dyn Policy> {
    match model.policy.unwrap_or(tuning.policy) {
        PolicyKind::CacheAffinity => Box::new(CacheAffinity::new(
            &model.name,
            tuning,
            Arc::clone(affinity),
        )),
        PolicyKind::LeastLoaded => Box::new(LeastLoaded),
        PolicyKind::RoundRobin => Box::new(RoundRobin),
        PolicyKind::LowestLatency => Box::new(LowestLatency),
    }
}

#[cfg(test)]
mod tests;
