//! Which model, which backend, and may this caller use it?

mod affinity;
mod ask;
mod backend;
mod chain;
mod explanation;
mod headers;
mod health;
mod live;
mod policy;
mod pool;
mod queue;
mod rule;
mod sizes;
mod slot;
mod target;
mod virtual_model;

pub(crate) use affinity::Affinity;
pub use affinity::Tuning;
pub use ask::{Ask, Boundary, HeaderFields, Pick};
pub use backend::{Backend, Origin, Unusable};
pub use chain::{Chain, Resolved, resolve, route};
pub use explanation::{Demoted, Explanation, ModelSkipped, RuleSkipped};
pub use headers::is_reserved as is_reserved_header;
pub use health::{InvalidHealthCheck, Probe, check_health_check};
pub(crate) use live::Identity;
pub use live::{InFlight, Live, UNHEALTHY_AFTER};
pub use pool::{NoPlace, Pool};
pub use queue::Waiting;
pub use sizes::UNKNOWN_ANSWER;
pub use slot::Slot;
pub use target::{InvalidTemplate, PathTemplate};
use virtual_model::Targets;
pub(crate) use virtual_model::VirtualModel;

use crate::identify::Caller;
use crate::tables::Tables;

/// The names that a caller may ask for, sorted: concrete models that it may
/// use, and virtual ones with such a target.
pub fn granted_models<'a>(tables: &'a Tables, caller: &Caller) -> Vec<&'a str> {
    let concrete = tables
        .pools()
        .map(|pool| pool.model().as_str())
        .filter(|name| caller.may_use(name));
    let usable = |model: &str| tables.pool(model).is_some() && caller.may_use(model);
    let virtual_ones = tables
        .virtual_models()
        .filter(|stands_for| stands_for.targets().any(|model| usable(model.as_str())))
        .map(|stands_for| stands_for.name().as_str());
    let mut names: Vec<_> = concrete.chain(virtual_ones).collect();
    names.sort_unstable();
    names
}

#[cfg(test)]
mod tests;
