use std::sync::Arc;

use fastllm_contract::ModelName;

use super::explanation::{Deprioritized, Explanation, ModelSkipped};
use crate::caller::Caller;
use crate::pool::Pool;
use crate::refusal::Refusal;
use crate::state::RoutingState;
use crate::virtual_model::{RouteQuery, Rule, RuleSkipped, VirtualModel};

/// The models that may serve a request, in the order in which they are tried.
///
/// Invariant: it is not empty, has no duplicates, and the caller may use every
/// model.
#[derive(Debug, Clone)]
pub struct Chain {
    pools: Vec<Arc<Pool>>,
    fallback: bool,
}

impl Chain {
    /// The candidates in order.
    pub fn pools(&self) -> &[Arc<Pool>] {
        &self.pools
    }

    /// Whether the candidate at `index` is included as the fallback model only.
    pub fn is_fallback(&self, index: usize) -> bool {
        self.fallback && index + 1 == self.pools.len()
    }

    /// Moves the first candidate to the front that has a backend which is
    /// remembered to store one of these objects, by the hashes of their IDs.
    pub fn prefer_owner(&mut self, stored: &[u64]) {
        let owner = self.pools.iter().position(|pool| pool.has_owner(stored));
        let Some(owner) = owner.filter(|owner| *owner > 0) else {
            return;
        };
        self.fallback &= owner + 1 < self.pools.len();
        if let Some(before) = self.pools.get_mut(..=owner) {
            before.rotate_right(1);
        }
    }

    /// Keeps the candidates for which `keep` is true. An empty chain must not
    /// be used.
    pub(crate) fn retain(&mut self, mut keep: impl FnMut(&Pool) -> bool) {
        let last = self.pools.last().cloned();
        self.pools.retain(|pool| keep(pool));
        let kept = match (&last, self.pools.last()) {
            (Some(last), Some(kept)) => Arc::ptr_eq(last, kept),
            _ => false,
        };
        self.fallback &= kept;
    }

    /// Whether a candidate chooses its backend by the beginning of the prompt.
    pub fn reads_prompt(&self) -> bool {
        self.pools.iter().any(|pool| pool.reads_prompt())
    }
}

/// A served name, before permissions are checked.
#[derive(Debug, Clone, Copy)]
pub struct Resolved<'a> {
    state: &'a RoutingState,
    stands_for: ModelTarget<'a>,
}

#[derive(Debug, Clone, Copy)]
enum ModelTarget<'a> {
    Concrete(&'a Arc<Pool>),
    Virtual(&'a VirtualModel),
}

/// Resolves a requested name; 404 if it is unknown, whatever the fallback is.
pub fn resolve<'a>(state: &'a RoutingState, requested: &str) -> Result<Resolved<'a>, Refusal> {
    let stands_for = match state.pool(requested) {
        Some(pool) => ModelTarget::Concrete(pool),
        None => ModelTarget::Virtual(
            state
                .virtual_model(requested)
                .ok_or(Refusal::ModelNotFound)?,
        ),
    };
    Ok(Resolved { state, stands_for })
}

/// The candidates for a request, in order: a pure function of its arguments
/// (the state includes that of backends).
///
/// # Errors
/// [`Refusal::ModelNotFound`] where no model is behind the name,
/// [`Refusal::ModelAccessDenied`] where the caller may use none of them,
/// [`Refusal::UpstreamUnavailable`] where those that it may use have no backend.
pub fn route(
    state: &RoutingState,
    caller: &Caller,
    requested: &str,
    ask: &RouteQuery<'_>,
    explanation: Option<&mut Explanation>,
) -> Result<Chain, Refusal> {
    resolve(state, requested)?.route(caller, ask, explanation)
}

impl<'a> Resolved<'a> {
    /// The requested name.
    pub fn name(&self) -> &'a ModelName {
        match self.stands_for {
            ModelTarget::Concrete(pool) => pool.model(),
            ModelTarget::Virtual(virtual_model) => virtual_model.name(),
        }
    }

    /// The first concrete model of the name; the name itself if there is none.
    pub fn model(&self) -> &'a ModelName {
        match self.stands_for {
            ModelTarget::Concrete(pool) => pool.model(),
            ModelTarget::Virtual(virtual_model) => virtual_model
                .targets()
                .find(|model| self.state.pool(model.as_str()).is_some())
                .unwrap_or(virtual_model.name()),
        }
    }

    /// Whether the caller may use some model of the name, that is, whether
    /// [`super::granted_models`] lists it.
    pub fn is_granted_to(&self, caller: &Caller) -> bool {
        match self.stands_for {
            ModelTarget::Concrete(pool) => caller.may_use(pool.model().as_str()),
            ModelTarget::Virtual(virtual_model) => virtual_model.targets().any(|model| {
                let model = model.as_str();
                self.state.pool(model).is_some() && caller.may_use(model)
            }),
        }
    }

    /// Whether the result depends on [`RouteQuery::prompt_hash`].
    pub fn reads_prompt(&self) -> bool {
        matches!(self.stands_for, ModelTarget::Virtual(_))
    }

    /// The candidates that the caller may use, in order; see [`route`].
    pub fn route(
        self,
        caller: &Caller,
        ask: &RouteQuery<'_>,
        explanation: Option<&mut Explanation>,
    ) -> Result<Chain, Refusal> {
        let mut search = Search {
            state: self.state,
            caller,
            ask,
            refusal: Refusal::ModelNotFound,
            explanation,
        };
        let pools = match self.stands_for {
            ModelTarget::Concrete(pool) => search.with_fallbacks(pool),
            ModelTarget::Virtual(virtual_model) => search.stand_ins(virtual_model),
        };
        search.finish(pools)
    }
}

/// The search for candidates of one request.
struct Search<'a, 'b> {
    state: &'a RoutingState,
    caller: &'b Caller,
    ask: &'b RouteQuery<'b>,
    /// The refusal if no candidate is found.
    refusal: Refusal,
    explanation: Option<&'b mut Explanation>,
}

impl<'a> Search<'a, '_> {
    fn note(&mut self, note: impl FnOnce(&mut Explanation)) {
        if let Some(explanation) = &mut self.explanation {
            note(explanation);
        }
    }

    fn fitness(
        &self,
        model: &ModelName,
        pool: Option<&'a Arc<Pool>>,
    ) -> Result<&'a Arc<Pool>, ModelSkipped> {
        let pool = pool.ok_or(ModelSkipped::NotServed)?;
        if !self.caller.may_use(model.as_str()) {
            Err(ModelSkipped::NotGranted)
        } else if !pool.is_open() {
            Err(ModelSkipped::NoBackend)
        } else {
            Ok(pool)
        }
    }

    fn usable(&mut self, model: &ModelName) -> Option<&'a Arc<Pool>> {
        self.judge(model, self.state.pool(model.as_str()))
    }

    /// The pool of a model, if the caller can use it.
    fn judge(&mut self, model: &ModelName, pool: Option<&'a Arc<Pool>>) -> Option<&'a Arc<Pool>> {
        let reason = match self.fitness(model, pool) {
            Ok(pool) => return Some(pool),
            Err(reason) => reason,
        };
        match (reason, &self.refusal) {
            (ModelSkipped::NoBackend, _) => self.refusal = Refusal::UpstreamUnavailable,
            (ModelSkipped::NotGranted, Refusal::ModelNotFound) => {
                self.refusal = Refusal::ModelAccessDenied;
            }
            (ModelSkipped::NotGranted | ModelSkipped::NotServed, _) => {}
        }
        self.note(|explanation| explanation.skipped_models.push((model.clone(), reason)));
        None
    }

    /// A concrete model and its fallbacks.
    fn with_fallbacks(&mut self, pool: &'a Arc<Pool>) -> Vec<Arc<Pool>> {
        let usable = self.judge(pool.model(), Some(pool));
        let mut pools: Vec<Arc<Pool>> = usable.into_iter().cloned().collect();
        let failover = pool.failover();
        let larger: &[ModelName] = if pool.is_too_small_for(self.tokens_needed()) {
            &failover.context_fallbacks
        } else {
            &[]
        };
        let models = || larger.iter().chain(&failover.fallbacks);
        // A caller without a grant on the model itself gets none of its fallbacks.
        if models().next().is_none() || !self.caller.may_use(pool.model().as_str()) {
            return pools;
        }
        for model in models() {
            if pools.iter().all(|pool| pool.model() != model)
                && let Some(pool) = self.usable(model)
            {
                pools.push(Arc::clone(pool));
            }
        }
        self.by_prospect(pools)
    }

    /// The context window that the request needs.
    fn tokens_needed(&self) -> u64 {
        let response = self.ask.max_tokens.unwrap_or(0);
        self.ask.prompt_tokens.saturating_add(response)
    }

    /// The targets of the first rule that matches and has a usable one, else
    /// the defaults.
    fn stand_ins(&mut self, virtual_model: &VirtualModel) -> Vec<Arc<Pool>> {
        self.note(|explanation| explanation.virtual_model = true);
        let place = virtual_model.place(self.caller, self.ask);
        for (index, rule) in virtual_model.rules().iter().enumerate() {
            match self.follow(rule, place) {
                Ok(pools) => {
                    self.note(|explanation| explanation.matched_rule = Some(index));
                    return self.by_prospect(pools);
                }
                Err(reason) => {
                    self.note(|explanation| explanation.skipped_rules.push((index, reason)));
                }
            }
        }
        let defaults = virtual_model.defaults();
        let pools = defaults.ordered(place, |model| self.usable(model));
        self.by_prospect(pools)
    }

    fn follow(&mut self, rule: &Rule, place: u64) -> Result<Vec<Arc<Pool>>, RuleSkipped> {
        if let Some(reason) = rule.mismatch(self.caller, self.ask) {
            return Err(reason);
        }
        let pools = rule.targets().ordered(place, |model| self.usable(model));
        if pools.is_empty() {
            return Err(RuleSkipped::NoUsableTarget);
        }
        let (at, endpoint) = (self.ask.at, self.ask.endpoint);
        let below = |limit, pool: &Arc<Pool>| pool.has_backend_below(limit, at, endpoint);
        let calm = |limit| pools.iter().any(|pool| below(limit, pool));
        if rule.busy_at().is_some_and(|limit| !calm(limit)) {
            return Err(RuleSkipped::Busy);
        }
        Ok(pools)
    }

    /// Moves models down that are unavailable or whose context window is too
    /// small.
    fn by_prospect(&mut self, mut pools: Vec<Arc<Pool>>) -> Vec<Arc<Pool>> {
        let needed = self.tokens_needed();
        let (at, endpoint) = (self.ask.at, self.ask.endpoint);
        let mut demoted = Vec::new();
        // Each key is computed once: the state of backends changes meanwhile.
        pools.sort_by_cached_key(|pool| {
            let reason = if pool.is_too_small_for(needed) {
                Some(Deprioritized::ContextWindow)
            } else if pool.is_available(at, endpoint) {
                None
            } else {
                Some(Deprioritized::Unavailable)
            };
            demoted.extend(reason.map(|reason| (pool.model().clone(), reason)));
            reason
        });
        self.note(|explanation| explanation.demoted = demoted);
        pools
    }

    fn finish(mut self, mut pools: Vec<Arc<Pool>>) -> Result<Chain, Refusal> {
        let named = |model: &ModelName| pools.iter().any(|pool| pool.model() == model);
        let fallback = self.state.fallback_model().filter(|model| !named(model));
        let mut appended = false;
        if let Some(model) = fallback {
            // An unusable fallback does not change the refusal.
            let refusal = self.refusal.clone();
            if let Some(pool) = self.usable(model) {
                pools.push(Arc::clone(pool));
                appended = true;
            }
            self.refusal = refusal;
        }
        self.note(|explanation| explanation.fallback = appended);
        if pools.is_empty() {
            return Err(self.refusal);
        }
        Ok(Chain {
            pools,
            fallback: appended,
        })
    }
}
