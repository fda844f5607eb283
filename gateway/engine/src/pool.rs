//! Concrete models: the backends that serve each of them, their state, and the
//! choice of a backend for a request.

mod affinity;
mod backend;
mod backend_state;
mod credentials;
mod ejections;
mod headers;
mod metrics;
mod pick_context;
mod policy;
mod probe;
mod queue;
mod response_sizes;
mod stored;
mod target;

pub(crate) use affinity::Affinity;
pub use affinity::Tuning;
pub use backend::{Backend, InvalidBackend, Origin};
pub(crate) use backend_state::BackendIdentity;
pub use backend_state::{BackendState, InFlight, UNHEALTHY_AFTER};
pub use credentials::is_credential_parameter;
pub use ejections::{EjectionReason, UpstreamRejection};
pub use headers::is_reserved as is_reserved_header;
pub use metrics::BackendMetrics;
pub use pick_context::{Boundary, EndpointIndex, PickContext};
pub use probe::{InvalidHealthCheck, Probe, check_health_check};
pub use queue::SlotWait;
pub use response_sizes::DEFAULT_COMPLETION_TOKENS;
pub use stored::object_hash;
pub use target::{InvalidTemplate, PathTemplate};

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use fastllm_contract::{Failover, Model, ModelName, PolicyKind, Timestamp};

use self::policy::{Candidates, Policy};
use crate::cache::ModelCaching;
use crate::hash::mix;

/// Why a pool has no slot for a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NoSlot {
    /// Every candidate is full: the request may queue.
    Full,
    /// No candidate is left.
    Exhausted,
}

/// A concrete model and the backends that serve it; possibly none.
#[derive(Debug)]
pub struct Pool {
    model: ModelName,
    context_length: Option<u64>,
    caching: Option<ModelCaching>,
    failover: Failover,
    backends: Vec<Backend>,
    policy: Box<dyn Policy>,
    affinity: Arc<Affinity>,
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
            failover: described.failover.clone(),
            backends,
            policy: policy::build(described, tuning, affinity),
            affinity: Arc::clone(affinity),
            turn: AtomicUsize::new(0),
        }
    }

    /// The concrete model.
    pub fn model(&self) -> &ModelName {
        &self.model
    }

    /// The context window for prompt and response, in tokens.
    pub fn context_length(&self) -> Option<u64> {
        self.context_length
    }

    /// The cache settings, if its responses may be cached.
    pub fn caching(&self) -> Option<&ModelCaching> {
        self.caching.as_ref()
    }

    /// What is tried where it does not respond. Every fallback is a name that the
    /// snapshot may not serve.
    pub fn failover(&self) -> &Failover {
        &self.failover
    }

    /// Whether a request with this many tokens exceeds its context window.
    pub(crate) fn is_too_small_for(&self, tokens: u64) -> bool {
        self.context_length.is_some_and(|most| most < tokens)
    }

    /// The backends, sorted by ID.
    pub fn backends(&self) -> &[Backend] {
        &self.backends
    }

    /// The backends that accept new requests, with their indices.
    fn open(&self) -> impl Iterator<Item = (usize, &Backend)> {
        let all = self.backends.iter().enumerate();
        all.filter(|(_, backend)| !backend.draining())
    }

    /// Whether some backend accepts new requests.
    pub(crate) fn is_open(&self) -> bool {
        self.open().next().is_some()
    }

    /// Expected tokens of a response without a limit by the client: the largest
    /// value of its backends.
    pub fn typical_completion_tokens(&self) -> u64 {
        let sizes = self
            .open()
            .map(|(_, backend)| backend.typical_completion_tokens());
        sizes.max().unwrap_or(0)
    }

    /// Whether there is a backend that was not `tried`.
    pub fn has_another(&self, tried: &[usize]) -> bool {
        self.open().any(|(index, _)| !tried.contains(&index))
    }

    /// Whether some backend is available for requests to this endpoint.
    pub fn is_available(&self, at: Timestamp, endpoint: EndpointIndex) -> bool {
        self.open()
            .any(|(_, backend)| backend.state().is_available(at, endpoint))
    }

    /// Whether some available backend has fewer requests in flight.
    pub(crate) fn has_backend_below(
        &self,
        limit: u64,
        at: Timestamp,
        endpoint: EndpointIndex,
    ) -> bool {
        self.open().any(|(_, backend)| {
            let state = backend.state();
            state.is_available(at, endpoint) && state.in_flight() < limit
        })
    }

    /// Whether the choice of a backend depends on the beginning of the prompt.
    pub(crate) fn reads_prompt(&self) -> bool {
        self.backends.len() > 1 && self.policy.kind() == PolicyKind::CacheAffinity
    }

    /// Acquires a slot at a backend that was not `tried` (indices into
    /// [`Pool::backends`]). Unavailable backends and those without weight are
    /// used only if no better one is left. A full backend is never used, nor
    /// one that ranks below a full one.
    pub fn acquire(
        &self,
        tried: &[usize],
        pick: &PickContext<'_>,
    ) -> Result<(usize, InFlight), NoSlot> {
        loop {
            let index = self.choose(tried, pick)?;
            // Otherwise another request took the last slot meanwhile.
            if let Some(place) = self.backends[index].acquire() {
                return Ok((index, place));
            }
        }
    }

    /// Queues after [`Pool::acquire`] found every candidate full; `None` if the
    /// queues are full, too.
    pub fn wait_for_slot(&self, tried: &[usize], pick: &PickContext<'_>) -> Option<SlotWait> {
        let required = self.required(tried, pick);
        let untried = || {
            let open = self.open().filter(|(index, _)| !tried.contains(index));
            open.filter(|(index, _)| required.is_none_or(|required| required == *index))
        };
        let fit: [fn(&BackendState, &PickContext<'_>) -> bool; 3] = [
            |state, pick| state.is_available(pick.at, pick.endpoint),
            |state, _| state.healthy(),
            |_, _| true,
        ];
        let fit = fit
            .into_iter()
            .find(|fit| untried().any(|(_, backend)| fit(backend.state(), pick)))?;
        SlotWait::join(untried().filter(|(_, backend)| fit(backend.state(), pick)))
    }

    /// The backend for the next request.
    pub(crate) fn choose(&self, tried: &[usize], pick: &PickContext<'_>) -> Result<usize, NoSlot> {
        let open = |index: usize| !tried.contains(&index) && !self.backends[index].draining();
        let has_room = |index: usize| self.backends[index].has_capacity();
        if let [_] = self.backends.as_slice() {
            return match (open(0), has_room(0)) {
                (false, _) => Err(NoSlot::Exhausted),
                (true, false) => Err(NoSlot::Full),
                (true, true) => Ok(0),
            };
        }
        if !pick.stored.is_empty() {
            return self.choose_by_owner(tried, pick);
        }
        // A retry does not advance the turn: otherwise a failing backend could
        // stay in step with the rotation and be the first choice of every
        // request.
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
        let available =
            |index: usize| open(index) && state(index).is_available(pick.at, pick.endpoint);
        let weighty = |index: usize| available(index) && self.backends[index].weight() > 0;
        let draw = |index: usize| {
            let mark = u64::from(self.backends[index].mark());
            mix((turn as u64).wrapping_add(mark << 32))
        };
        let returned = |index: usize| state(index).admits(pick.at, pick.endpoint, draw(index));
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

    /// The policy that chooses a backend.
    pub fn policy(&self) -> PolicyKind {
        self.policy.kind()
    }
}

#[cfg(test)]
mod tests;
