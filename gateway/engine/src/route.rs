//! Which model, which backend, and may this caller use it?

mod affinity;
mod ask;
mod backend;
mod backend_state;
mod chain;
mod explanation;
mod headers;
mod health;
mod policy;
mod pool;
mod queue;
mod response_sizes;
mod rule;
mod slot;
mod target;
mod virtual_model;

pub(crate) use affinity::Affinity;
pub use affinity::Tuning;
pub use ask::{Boundary, HeaderFields, PickContext, RouteQuery};
pub use backend::{Backend, InvalidBackend, Origin};
pub(crate) use backend_state::BackendIdentity;
pub use backend_state::{BackendState, InFlight, UNHEALTHY_AFTER};
pub use chain::{Chain, Resolved, resolve, route};
pub use explanation::{Deprioritized, Explanation, ModelSkipped, RuleSkipped};
pub use headers::is_reserved as is_reserved_header;
pub use health::{InvalidHealthCheck, Probe, check_health_check};
pub use pool::{NoSlot, Pool};
pub use queue::SlotWait;
pub use response_sizes::DEFAULT_COMPLETION_TOKENS;
pub use slot::Slot;
pub use target::{InvalidTemplate, PathTemplate};
use virtual_model::Targets;
pub(crate) use virtual_model::VirtualModel;

use crate::identify::Caller;
use crate::state::RoutingState;

/// The names that a caller may ask for, sorted: concrete models that it may
/// use, and virtual ones with such a target.
pub fn granted_models<'a>(state: &'a RoutingState, caller: &Caller) -> Vec<&'a str> {
    let concrete = state
        .pools()
        .map(|pool| pool.model().as_str())
        .filter(|name| caller.may_use(name));
    let usable = |model: &str| state.pool(model).is_some() && caller.may_use(model);
    let virtual_ones = state
        .virtual_models()
        .filter(|stands_for| stands_for.targets().any(|model| usable(model.as_str())))
        .map(|stands_for| stands_for.name().as_str());
    let mut names: Vec<_> = concrete.chain(virtual_ones).collect();
    names.sort_unstable();
    names
}

#[cfg(test)]
mod tests;
