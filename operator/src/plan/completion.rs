//! Whether what was written is complete.

use fastllm_crds::FastllmProxy;
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::batch::v1::Job;

use crate::names::{Component, Ownership, ownership};
use crate::observe::{PodView, Rollout, template_hash};

/// Whether the bootstrap admin was created, according to the status or the Job.
/// An orphaned Job does not count.
#[must_use]
pub fn bootstrapped(proxy: &FastllmProxy, job: Option<&Job>) -> bool {
    let recorded = proxy.status.as_ref().is_some_and(|s| s.bootstrapped);
    let ours = job.filter(|job| ownership(proxy, &job.metadata) == Ownership::Ours);
    recorded || ours.is_some_and(|job| job_condition(job, "Complete"))
}

/// Whether a Job has a condition.
#[must_use]
pub fn job_condition(job: &Job, kind: &str) -> bool {
    let conditions = job.status.as_ref().and_then(|s| s.conditions.as_ref());
    conditions.is_some_and(|all| all.iter().any(|c| c.type_ == kind && c.status == "True"))
}

/// Whether the control plane's rollout is complete: according to the Deployment, all
/// pods have the desired template and are ready, and no pod of another template exists
/// that is waited for.
#[must_use]
pub fn control_complete(
    live: Option<&Deployment>,
    pods: &[PodView],
    target: &str,
    replicas: i32,
) -> bool {
    let Some(live) = live else { return false };
    let rollout = Rollout::of(live);
    template_hash(live) == Some(target)
        && rollout.desired == replicas
        && rollout.complete()
        && former_control_pod(pods, target).is_none()
}

/// A control plane's pod of another template that has not terminated yet. A pod that
/// does not terminate in time, as on a node that does not respond, is not waited for.
#[must_use]
pub fn former_control_pod<'p>(pods: &'p [PodView], target: &str) -> Option<&'p PodView> {
    pods.iter().find(|pod| {
        pod.component == Component::Control
            && pod.template_hash.as_deref() != Some(target)
            && !pod.overdue
    })
}
