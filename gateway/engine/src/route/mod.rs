//! Which model, which backend, and may this caller use it?

mod backend;
mod live;
mod policy;
mod pool;

pub use backend::{Backend, Origin, Unusable};
pub(crate) use live::Identity;
pub use live::{InFlight, Live, UNHEALTHY_AFTER};
pub use policy::Policy;
pub use pool::Pool;

use std::sync::Arc;

use crate::identify::Caller;
use crate::refusal::Refusal;
use crate::tables::Tables;

/// The models that may answer a request, in the order in which they are tried.
///
/// Invariant: it is never empty, and the caller may use every one of them.
#[derive(Debug, Clone)]
pub struct Chain(Vec<Arc<Pool>>);

impl Chain {
    /// The candidates in order.
    pub fn pools(&self) -> &[Arc<Pool>] {
        &self.0
    }

    /// Keeps the candidates that the caller may use.
    fn granted<'a>(
        candidates: impl IntoIterator<Item = &'a Arc<Pool>>,
        caller: &Caller,
    ) -> Result<Self, Refusal> {
        let granted: Vec<_> = candidates
            .into_iter()
            .filter(|pool| caller.may_use(pool.model().as_str()))
            .cloned()
            .collect();
        if granted.is_empty() {
            return Err(Refusal::ModelAccessDenied);
        }
        Ok(Self(granted))
    }
}

/// A name that somebody serves, before anyone was asked about grants.
#[derive(Debug, Clone, Copy)]
pub struct Resolved<'a>(&'a Arc<Pool>);

impl<'a> Resolved<'a> {
    /// The first concrete model that the name stands for.
    pub fn model(&self) -> &'a fastllm_contract::ModelName {
        self.0.model()
    }

    /// Filters the candidates by the caller's grants.
    pub fn authorise(self, caller: &Caller) -> Result<Chain, Refusal> {
        Chain::granted([self.0], caller)
    }
}

/// What a requested name stands for; 404 where nobody serves it.
pub fn resolve<'a>(tables: &'a Tables, requested: &str) -> Result<Resolved<'a>, Refusal> {
    tables
        .pool(requested)
        .map(Resolved)
        .ok_or(Refusal::ModelNotFound)
}

/// The names that a caller may ask for, sorted.
pub fn granted_models<'a>(
    tables: &'a Tables,
    caller: &'a Caller,
) -> impl Iterator<Item = &'a str> + use<'a> {
    tables
        .pools()
        .map(|pool| pool.model().as_str())
        .filter(|name| caller.may_use(name))
}

#[cfg(test)]
mod tests;
