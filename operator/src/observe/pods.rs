//! What matters of a pod.

use k8s_openapi::api::core::v1::{ContainerStatus, Pod};
use kube::ResourceExt as _;

use crate::names::{COMPONENT, Component, TEMPLATE_HASH};

/// The kubelet's words for an image that it cannot get.
const PULL_FAILURES: [&str; 3] = ["ErrImagePull", "ImagePullBackOff", "InvalidImageName"];

/// What matters of a pod.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct PodView {
    /// Name.
    pub name: String,
    /// Whose pod it is.
    pub component: Component,
    /// Hash of the template that it was made from.
    pub template_hash: Option<String>,
    /// Image of the component's container.
    pub image: String,
    /// Whether it passes its readiness probe.
    pub ready: bool,
    /// Whether it is being shut down.
    pub terminating: bool,
    /// Whether the node cannot get the image.
    pub pull_failed: bool,
    /// Its address, once it has one.
    pub ip: Option<String>,
}

impl PodView {
    /// Reads a pod. Finished pods and pods of nobody that we know give nothing.
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
