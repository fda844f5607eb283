use std::sync::atomic::{AtomicUsize, Ordering};

use fastllm_contract::ModelName;

use super::Backend;
use super::policy::{LeastLoaded, Policy};

/// A model and the backends that serve it; may be without any.
#[derive(Debug)]
pub struct Pool {
    model: ModelName,
    backends: Vec<Backend>,
    policy: Box<dyn Policy>,
    turn: AtomicUsize,
}

impl Pool {
    /// The policy of pools that ask for no other.
    pub const DEFAULT_POLICY: &str = LeastLoaded::NAME;

    pub(crate) fn new(model: ModelName, backends: Vec<Backend>) -> Self {
        Self {
            model,
            backends,
            policy: Box::new(LeastLoaded),
            turn: AtomicUsize::new(0),
        }
    }

    /// The concrete model.
    pub fn model(&self) -> &ModelName {
        &self.model
    }

    /// Its backends, by id.
    pub fn backends(&self) -> &[Backend] {
        &self.backends
    }

    /// Chooses a backend that was not `tried` (indices into
    /// [`Pool::backends`]). Unhealthy ones are taken only where no healthy one
    /// is left.
    pub fn choose(&self, tried: &[usize]) -> Option<usize> {
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
        let fit = |index: usize| untried(index) && self.backends[index].live().healthy();
        self.policy
            .choose(&self.backends, &fit, turn)
            .or_else(|| self.policy.choose(&self.backends, &untried, turn))
    }

    /// The name of its policy.
    pub fn policy(&self) -> &'static str {
        self.policy.name()
    }
}
