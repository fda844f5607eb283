use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use fastllm_contract::{Model, ModelName, PolicyKind, Timestamp};

use super::policy::{self, Choice, Policy};
use super::{Affinity, Backend, Pick, Tuning};

/// A model and the backends that serve it; may be without any.
#[derive(Debug)]
pub struct Pool {
    model: ModelName,
    context_length: Option<u64>,
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

    /// Its backends, by id.
    pub fn backends(&self) -> &[Backend] {
        &self.backends
    }

    /// Whether some backend may be expected to answer.
    pub fn is_available(&self, at: Timestamp) -> bool {
        let mut backends = self.backends.iter();
        backends.any(|backend| backend.live().is_available(at))
    }

    /// Whether some available backend has fewer requests under way.
    pub(super) fn has_room_below(&self, limit: u64, at: Timestamp) -> bool {
        self.backends
            .iter()
            .any(|backend| backend.live().is_available(at) && backend.live().in_flight() < limit)
    }

    /// Whether it makes a difference what the prompt begins with.
    pub(super) fn reads_prompt(&self) -> bool {
        self.backends.len() > 1 && self.policy.kind() == PolicyKind::CacheAffinity
    }

    /// Chooses a backend that was not `tried` (indices into
    /// [`Pool::backends`]). Those that cannot be expected to answer, or have no
    /// weight, are taken only where no better one is left.
    pub fn choose(&self, tried: &[usize], pick: &Pick<'_>) -> Option<usize> {
        let untried = |index: usize| !tried.contains(&index);
        if let [_] = self.backends.as_slice() {
            return untried(0).then_some(0);
        }
        // A retry takes no turn of its own: else one that fails could stay in
        // step with the round, and be every request's first choice.
        let turn = if tried.is_empty() {
            self.turn.fetch_add(1, Ordering::Relaxed)
        } else {
            self.turn.load(Ordering::Relaxed)
        };
        let among = |eligible: &dyn Fn(usize) -> bool| {
            self.policy.choose(&Choice {
                backends: &self.backends,
                eligible,
                turn,
                pick,
            })
        };
        let live = |index: usize| self.backends[index].live();
        let available = |index: usize| untried(index) && live(index).is_available(pick.at);
        let weighty = |index: usize| available(index) && self.backends[index].weight() > 0;
        among(&weighty)
            .or_else(|| among(&available))
            .or_else(|| among(&|index| untried(index) && live(index).healthy()))
            .or_else(|| among(&untried))
    }

    /// Its policy.
    pub fn policy(&self) -> PolicyKind {
        self.policy.kind()
    }
}
