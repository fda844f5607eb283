//! The status of a resource after a reconciliation.
//!
//! The only place that creates a status. Invariants: every condition type is
//! always present; each condition has the generation that was reconciled; only
//! transition times, `bootstrapped` and the hash of the encryption key are taken from
//! the previous status.

mod assessment;
mod conditions;
mod failures;
mod phase;

use fastllm_crds::{FastllmProxy, FastllmProxyStatus};
use jiff::Timestamp;
use kube::ResourceExt as _;

use crate::apply::Applied;
use crate::names::{CONFIG_HASH, Component, annotation, selector};
use crate::observe::Observed;
use crate::plan::{Plan, encryption_key_hash};
use crate::stored::UndecodableProxy;

use assessment::Assessment;
pub use phase::phase;

/// The outcome of a reconciliation.
#[derive(Clone, Copy, Debug)]
pub struct ReconcileOutcome<'a> {
    /// The resource.
    pub proxy: &'a FastllmProxy,
    /// The state of the cluster before.
    pub observed: &'a Observed,
    /// The plan.
    pub plan: &'a Plan,
    /// The state of the cluster after.
    pub applied: &'a Applied,
    /// Time of the reconciliation, in whole seconds.
    pub now: Timestamp,
}

/// The status after a reconciliation.
#[must_use]
pub fn build(outcome: ReconcileOutcome<'_>) -> FastllmProxyStatus {
    let assessment = Assessment::of(outcome);
    let previous = outcome.proxy.status.clone().unwrap_or_default();
    let generation = outcome.proxy.metadata.generation;
    // A paused specification is not reconciled.
    let observed_generation = if outcome.plan.paused {
        previous.observed_generation
    } else {
        generation
    };
    let conditions = conditions::all(&assessment)
        .into_iter()
        .map(|draft| draft.condition(&previous, observed_generation, outcome.now))
        .collect::<Vec<_>>();
    let control = outcome.applied.children().control.as_ref();
    let template = control.and_then(|c| c.spec.template.metadata.as_ref());
    FastllmProxyStatus {
        phase: Some(phase(&conditions)),
        proxy_replicas: Some(format!(
            "{}/{}",
            assessment.gateway.rollout.ready, assessment.gateway.replicas
        )),
        control_ready: assessment.control.complete,
        observed_image: assessment.observed_image(),
        bootstrapped: assessment.bootstrapped,
        config_hash: template
            .and_then(|t| annotation(t, CONFIG_HASH))
            .map(str::to_owned),
        encryption_key_hash: control
            .filter(|_| assessment.control.complete)
            .and_then(encryption_key_hash)
            .map(str::to_owned)
            .or(previous.encryption_key_hash),
        replicas: assessment.gateway.rollout.current,
        selector: Some(selector_text(&outcome.proxy.name_any())),
        observed_generation,
        conditions,
    }
}

/// The status of a resource that does not decode. Everything but the conditions
/// that describe the defect is taken from the previous status.
#[must_use]
pub fn build_undecodable(proxy: &UndecodableProxy, now: Timestamp) -> FastllmProxyStatus {
    let previous = &proxy.status;
    let generation = proxy.metadata.generation;
    let conditions = conditions::undecodable(&proxy.defect)
        .into_iter()
        .map(|draft| match previous.condition(draft.kind()) {
            Some(kept) if !draft.describes_defect() => kept.clone(),
            _ => draft.condition(previous, generation, now),
        })
        .collect::<Vec<_>>();
    FastllmProxyStatus {
        phase: Some(phase(&conditions)),
        observed_generation: generation,
        conditions,
        ..previous.clone()
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
