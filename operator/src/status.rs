//! The status of a resource, from what is there after a pass.
//!
//! The only place where a status is made. Invariants: every condition type is
//! always present; each carries the generation that the pass looked at; nothing
//! of an earlier status survives but transition times and `bootstrapped`.

mod conditions;
mod facts;
mod phase;

use fastllm_crds::{FastllmProxy, FastllmProxyStatus};
use jiff::Timestamp;
use kube::ResourceExt as _;

use crate::apply::Applied;
use crate::build::annotation;
use crate::names::{CONFIG_HASH, Component, selector};
use crate::observe::Observed;
use crate::plan::Plan;

use facts::Facts;
pub use phase::phase;

/// One pass over a resource, after its plan was carried out.
#[derive(Clone, Copy, Debug)]
pub struct Pass<'a> {
    /// The resource.
    pub proxy: &'a FastllmProxy,
    /// What was seen before.
    pub observed: &'a Observed,
    /// What was decided.
    pub plan: &'a Plan,
    /// What is there now.
    pub applied: &'a Applied,
    /// The time of the pass, to the second.
    pub now: Timestamp,
}

/// The status after a pass.
#[must_use]
pub fn build(pass: Pass<'_>) -> FastllmProxyStatus {
    let facts = Facts::of(pass);
    let previous = pass.proxy.status.clone().unwrap_or_default();
    let generation = pass.proxy.metadata.generation;
    // While paused, the specification is not looked at.
    let observed_generation = if pass.plan.paused {
        previous.observed_generation
    } else {
        generation
    };
    let conditions = conditions::all(&facts)
        .into_iter()
        .map(|verdict| verdict.condition(&previous, observed_generation, pass.now))
        .collect::<Vec<_>>();
    let control = pass.applied.children().control.as_ref();
    let template = control.and_then(|c| c.spec.template.metadata.as_ref());
    FastllmProxyStatus {
        phase: Some(phase(&conditions)),
        proxy_replicas: Some(format!(
            "{}/{}",
            facts.gateway.figures.ready, pass.proxy.spec.proxy.replicas
        )),
        control_ready: facts.control.done,
        observed_image: facts.observed_image(),
        bootstrapped: facts.bootstrapped,
        config_hash: template
            .and_then(|t| annotation(t, CONFIG_HASH))
            .map(str::to_owned),
        replicas: facts.gateway.figures.current,
        selector: Some(selector_text(&pass.proxy.name_any())),
        observed_generation,
        conditions,
    }
}

fn selector_text(resource: &str) -> String {
    let labels = selector(resource, Component::Gateway);
    let pairs: Vec<_> = labels
        .iter()
        .map(|(key, value)| format!("{key}={value}"))
        .collect();
    pairs.join(",")
}

#[cfg(test)]
mod tests;
