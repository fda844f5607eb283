//! The relevant state of a pod.

use k8s_openapi::api::core::v1::{ContainerStatus, Pod};
use kube::ResourceExt as _;

use crate::names::{COMPONENT, Component, TEMPLATE_HASH};

/// Reasons by which the kubelet reports that it cannot pull an image.
const PULL_FAILURES: [&str; 3] = ["ErrImagePull", "ImagePullBackOff", "InvalidImageName"];

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
    /// Whether the node cannot pull the image.
    pub pull_failed: bool,
    /// The IP address, once assigned.
    pub ip: Option<String>,
}

impl PodView {
    /// Reads a pod. Returns `None` for finished pods and unknown components.
    #[must_use]
    pub fn of(pod: &Pod) -> Option<Self> {
        let component = Component::from_label(pod.labels().get(COMPONENT)?)?;
        let status = pod.status.as_ref();
        let phase = status.and_then(|s| s.phase.as_deref());
        if matches!(phase, Some("Succeeded" | "Failed")) {
            return None;
        }
        let named = |name: &str| name == component.container();
        let container = pod
            .spec
            .as_ref()?
            .containers
            .iter()
            .find(|c| named(&c.name));
        let state = status
            .and_then(|s| s.container_statuses.as_ref())
            .and_then(|all| all.iter().find(|c| named(&c.name)));
        let ready = status
            .and_then(|s| s.conditions.as_ref())
            .is_some_and(|all| all.iter().any(|c| c.type_ == "Ready" && c.status == "True"));
        Some(Self {
            name: pod.name_any(),
            component,
            template_hash: pod.annotations().get(TEMPLATE_HASH).cloned(),
            image: container.and_then(|c| c.image.clone()).unwrap_or_default(),
            ready,
            terminating: pod.metadata.deletion_timestamp.is_some(),
            pull_failed: state.is_some_and(pull_failed),
            ip: status.and_then(|s| s.pod_ip.clone()),
        })
    }
}

fn pull_failed(status: &ContainerStatus) -> bool {
    let waiting = status.state.as_ref().and_then(|s| s.waiting.as_ref());
    let reason = waiting.and_then(|w| w.reason.as_deref());
    reason.is_some_and(|r| PULL_FAILURES.contains(&r))
}
