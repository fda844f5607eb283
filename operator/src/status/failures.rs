//! Failures of the pods of a rollout, as problems that the status reports.

use std::collections::BTreeMap;

use fastllm_crds::Reason;
use k8s_openapi::api::apps::v1::Deployment;

use crate::names::Component;
use crate::observe::{PodView, creation_failure};
use crate::problem::{Problem, ProblemScope};
use crate::redactor::Redactor;

/// The failures of pods that have a desired template: one problem for each reason,
/// with the first pod.
pub(super) fn of_pods(
    pods: &[PodView],
    has_desired_template: impl Fn(&PodView) -> bool,
    redactor: &Redactor,
) -> Vec<Problem> {
    let mut by_reason: BTreeMap<Reason, Vec<(&PodView, &str)>> = BTreeMap::new();
    for pod in pods {
        if let Some(failure) = &pod.failure
            && has_desired_template(pod)
            && !pod.terminating
        {
            let found = by_reason.entry(failure.reason).or_default();
            found.push((pod, &failure.message));
        }
    }
    let problem = |(reason, found): (Reason, Vec<(&PodView, &str)>)| {
        let (first, message) = found.first()?;
        let more = match found.len() - 1 {
            0 => String::new(),
            more => format!(" (and {more} more pods)"),
        };
        let message = redactor.redact(message);
        let text = format!("pod {:?}{more}: {message}", first.name);
        Some(Problem::new(ProblemScope::Objects, reason, text))
    };
    by_reason.into_iter().filter_map(problem).collect()
}

/// The failure to create pods of a Deployment.
pub(super) fn of_creation(
    component: Component,
    deployment: &Deployment,
    redactor: &Redactor,
) -> Option<Problem> {
    let message = redactor.redact(creation_failure(deployment)?);
    let text = format!("{component}: pods cannot be created: {message}");
    let scope = ProblemScope::Objects;
    Some(Problem::new(scope, Reason::ReplicaFailure, text))
}

/// The failure of the control plane to use its database.
pub(super) fn of_database(message: &str, redactor: &Redactor) -> Problem {
    let message = redactor.redact(message);
    let text = format!(
        "{}: the database is unavailable: {message}",
        Component::Control
    );
    Problem::new(ProblemScope::Objects, Reason::DatabaseUnavailable, text)
}
