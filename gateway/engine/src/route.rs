//! The candidates of a request: the models that may serve it, in order.

mod chain;
mod explanation;

pub use chain::{Chain, Resolved, resolve, route};
pub use explanation::{Deprioritized, Explanation, ModelSkipped};

use crate::caller::Caller;
use crate::state::RoutingState;

/// The names that a caller may request, sorted: concrete models that it may
/// use, and virtual models with such a target.
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
