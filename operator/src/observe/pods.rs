//! The relevant state of a pod.

mod failure;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::{Container, Pod};
use kube::ResourceExt as _;

use crate::names::{COMPONENT, Component, TEMPLATE_HASH, controller};

pub use failure::PodFailure;

/// Label by which a Deployment distinguishes its `ReplicaSets`. It is the end of their names.
const POD_TEMPLATE_HASH: &str = "pod-template-hash";

/// Time after its grace period in which a pod must have terminated. A pod that exceeds
/// it is on a node that does not respond.
const TERMINATION_DEADLINE: SignedDuration = SignedDuration::from_mins(1);

/// The relevant state of a pod.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct PodView {
    /// The name.
    pub name: String,
    /// The component that the pod belongs to.
    pub component: Component,
    /// Hash of the pod's template.
    pub template_hash: Option<String>,
    /// Image of the component's container.
    pub image: String,
    /// Whether it passes its readiness probe.
    pub ready: bool,
    /// Whether it is being deleted.
    pub terminating: bool,
    /// Whether it is being deleted and should have terminated a minute ago.
    pub overdue: bool,
    /// What prevents the pod from becoming ready, if that is known.
    pub failure: Option<PodFailure>,
    /// The IP address, once assigned.
    pub ip: Option<String>,
}

impl PodView {
    /// Reads a pod of a resource. Returns `None` for finished pods and for pods that
    /// none of the resource's objects controls, whatever their labels are.
    #[must_use]
    pub fn of(pod: &Pod, resource: &str, now: Timestamp) -> Option<Self> {
        let component = Component::from_label(pod.labels().get(COMPONENT)?)?;
        let status = pod.status.as_ref();
        let phase = status.and_then(|s| s.phase.as_deref());
        if matches!(phase, Some("Succeeded" | "Failed"))
            || !is_controlled_by(pod, component, resource)
        {
            return None;
        }
        let image = container(pod, component).and_then(|c| c.image.clone());
        let deleted = pod.metadata.deletion_timestamp.as_ref();
        let ready = status
            .and_then(|s| s.conditions.as_ref())
            .is_some_and(|all| all.iter().any(|c| c.type_ == "Ready" && c.status == "True"));
        Some(Self {
            name: pod.name_any(),
            component,
            template_hash: pod.annotations().get(TEMPLATE_HASH).cloned(),
            image: image.unwrap_or_default(),
            ready,
            terminating: deleted.is_some(),
            overdue: deleted.is_some_and(|at| now.duration_since(at.0) > TERMINATION_DEADLINE),
            failure: failure::of(pod, ready),
            ip: status.and_then(|s| s.pod_ip.clone()),
        })
    }
}

fn container(pod: &Pod, component: Component) -> Option<&Container> {
    let containers = &pod.spec.as_ref()?.containers;
    containers.iter().find(|c| c.name == component.container())
}

/// Whether a pod's controller is the Job of the component, or a `ReplicaSet` of its
/// Deployment. A `ReplicaSet` is recognized by its name, so that the operator needs no
/// permission to read it.
fn is_controlled_by(pod: &Pod, component: Component, resource: &str) -> bool {
    let Some(owner) = controller(&pod.metadata) else {
        return false;
    };
    let object = component.object_name(resource);
    match component {
        Component::Bootstrap => owner.kind == "Job" && owner.name == object,
        Component::Control | Component::Gateway => {
            let hash = pod.labels().get(POD_TEMPLATE_HASH);
            owner.kind == "ReplicaSet"
                && hash.is_some_and(|hash| owner.name == format!("{object}-{hash}"))
        }
    }
}

#[cfg(test)]
mod tests;
