use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use fastllm_contract::{Model, ModelName, PolicyKind, Timestamp};

use super::ask::mix;
use super::policy::{self, Candidates, Policy};
use super::{Affinity, Backend, BackendState, InFlight, PickContext, SlotWait, Tuning};
use crate::cache::ModelCaching;

/// Why a pool has no place for a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NoSlot {
    /// Every backend that could answer is full: one may wait.
    Full,
    /// None is left.
    Exhausted,
}

/// A model and the backends that serve it; may be without any.
#[derive(Debug)]
pub struct Pool {
    model: ModelName,
    context_length: Option<u64>,
    caching: Option<ModelCaching>,
    backends: Vec<Backend>,
    policy: Box<dyn Policy>,
    turn: AtomicUsize,
}

impl Pool {
    pub(crate) fn new(
        described: &Model,
        backends: Vec<Backend>,
        tuning: &Tuning,
        affinity: &Arc<Affinity>,
    ) -> Self {
        Self {
            model: described.name.clone(),
            context_length: described.context_length.map(|tokens| tokens.0),
            caching: ModelCaching::of(described),
            backends,
            policy: policy::build(described, tuning, affinity),
            turn: AtomicUsize::new(0),
        }
    }

    /// The concrete model.
    pub fn model(&self) -> &ModelName {
        &self.model
    }

    /// What prompt and answer may have together, in tokens.
    pub fn context_length(&self) -> Option<u64> {
        self.context_length
    }

    /// Whether its answers may be given again, and for how long.
    pub fn caching(&self) -> Option<&ModelCaching> {
        self.caching.as_ref()
    }

    /// Its backends, by id.
    pub fn backends(&self) -> &[Backend] {
        &self.backends
    }

    /// Those that new requests may go to, with their indices.
    fn open(&self) -> impl Iterator<Item = (usize, &Backend)> {
        let all = self.backends.iter().enumerate();
        all.filter(|(_, backend)| !backend.draining())
    }

    /// Whether some backend takes new requests.
    pub(super) fn is_open(&self) -> bool {
        self.open().next().is_some()
    }

    /// Tokens that an answer has at most, or mostly, where the client does not
    /// say: at the backend with the largest ones.
    pub fn typical_completion_tokens(&self) -> u64 {
        let sizes = self
            .open()
            .map(|(_, backend)| backend.typical_completion_tokens());
        sizes.max().unwrap_or(0)
    }

    /// Whether there is one that was not `tried`.
    pub fn has_another(&self, tried: &[usize]) -> bool {
        self.open().any(|(index, _)| !tried.contains(&index))
    }

    /// Whether some backend may be expected to answer.
    pub fn is_available(&self, at: Timestamp) -> bool {
        self.open()
            .any(|(_, backend)| backend.state().is_available(at))
    }

    /// Whether some available backend has fewer requests under way.
    pub(super) fn has_backend_below(&self, limit: u64, at: Timestamp) -> bool {
        self.open().any(|(_, backend)| {
            backend.state().is_available(at) && backend.state().in_flight() < limit
        })
    }

    /// Whether it makes a difference what the prompt begins with.
    pub(super) fn reads_prompt(&self) -> bool {
        self.backends.len() > 1 && self.policy.kind() == PolicyKind::CacheAffinity
    }

    /// Takes a place at a backend that was not `tried` (indices into
    /// [`Pool::backends`]). Those that cannot be expected to answer, or have no
    /// weight, are taken only where no better one is left; a full one never,
    /// and none that is worse than a full one.
    pub fn acquire(
        &self,
        tried: &[usize],
        pick: &PickContext<'_>,
    ) -> Result<(usize, InFlight), NoSlot> {
        loop {
            let index = self.choose(tried, pick)?;
            // Else somebody else took the last place there since.
            if let Some(place) = self.backends[index].acquire() {
                return Ok((index, place));
            }
        }
    }

    /// Queues where [`Pool::acquire`] found everybody full; nothing where too
    /// many wait already.
    pub fn wait_for_slot(&self, tried: &[usize], at: Timestamp) -> Option<SlotWait> {
        let untried = || self.open().filter(|(index, _)| !tried.contains(index));
        let fit: [fn(&BackendState, Timestamp) -> bool; 3] = [
            BackendState::is_available,
            |state, _| state.healthy(),
            |_, _| true,
        ];
        let fit = fit
            .into_iter()
            .find(|fit| untried().any(|(_, backend)| fit(backend.state(), at)))?;
        SlotWait::join(untried().filter(|(_, backend)| fit(backend.state(), at)))
    }

    /// The backend that takes the next request.
    pub(super) fn choose(&self, tried: &[usize], pick: &PickContext<'_>) -> Result<usize, NoSlot> {
        let open = |index: usize| !tried.contains(&index) && !self.backends[index].draining();
        let has_room = |index: usize| self.backends[index].has_capacity();
        if let [_] = self.backends.as_slice() {
            return match (open(0), has_room(0)) {
                (false, _) => Err(NoSlot::Exhausted),
                (true, false) => Err(NoSlot::Full),
                (true, true) => Ok(0),
            };
        }
        // A retry takes no turn of its own: else one that fails could stay in
        // step with the round, and be every request's first choice.
        let turn = if tried.is_empty() {
            self.turn.fetch_add(1, Ordering::Relaxed)
        } else {
            self.turn.load(Ordering::Relaxed)
        };
        let among = |eligible: &dyn Fn(usize) -> bool| {
            self.policy.choose(&Candidates {
                backends: &self.backends,
                eligible: &|index| eligible(index) && has_room(index),
                turn,
                pick,
            })
        };
        let state = |index: usize| self.backends[index].state();
        let available = |index: usize| open(index) && state(index).is_available(pick.at);
        let weighty = |index: usize| available(index) && self.backends[index].weight() > 0;
        let draw = |index: usize| {
            let mark = u64::from(self.backends[index].mark());
            mix((turn as u64).wrapping_add(mark << 32))
        };
        let returned = |index: usize| state(index).admits(pick.at, draw(index));
        let best = among(&|index| weighty(index) && returned(index)).or_else(|| among(&weighty));
        if let Some(index) = best {
            return Ok(index);
        }
        let healthy = |index: usize| open(index) && state(index).healthy();
        for tier in [&available as &dyn Fn(usize) -> bool, &healthy, &open] {
            if let Some(index) = among(tier) {
                return Ok(index);
            }
            if (0..self.backends.len()).any(tier) {
                return Err(NoSlot::Full);
            }
        }
        Err(NoSlot::Exhausted)
    }

    /// Its policy.
    pub fn policy(&self) -> PolicyKind {
        self.policy.kind()
    }
}

#[cfg(test)]
mod tests;
