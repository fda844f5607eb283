//! How far a Deployment has come.

use k8s_openapi::api::apps::v1::{Deployment, DeploymentStatus};

use crate::names::{Component, TEMPLATE_HASH, annotation};

/// The figures of a Deployment's status, and whether they speak of its present
/// specification.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Rollout {
    /// Pods asked for.
    pub desired: i32,
    /// Pods that exist and are not terminating, of any template.
    pub current: i32,
    /// Pods of the present template.
    pub updated: i32,
    /// Ready pods, of any template.
    pub ready: i32,
    /// Whether the Deployment controller has seen the present specification.
    pub observed: bool,
    /// Whether it gave up waiting for progress.
    pub deadline_exceeded: bool,
}

impl Rollout {
    /// Reads the figures.
    #[must_use]
    pub fn of(deployment: &Deployment) -> Self {
        let fallback = DeploymentStatus::default();
        let status = deployment.status.as_ref().unwrap_or(&fallback);
        let generation = deployment.metadata.generation.unwrap_or_default();
        let observed = status.observed_generation.unwrap_or_default() >= generation;
        let deadline_exceeded = status.conditions.iter().flatten().any(|c| {
            c.type_.as_deref() == Some("Progressing")
                && c.reason.as_deref() == Some("ProgressDeadlineExceeded")
        });
        Self {
            desired: deployment.spec.replicas.unwrap_or(1),
            current: status.replicas.unwrap_or_default(),
            updated: status.updated_replicas.unwrap_or_default(),
            ready: status.ready_replicas.unwrap_or_default(),
            observed,
            deadline_exceeded: observed && deadline_exceeded,
        }
    }

    /// Whether every pod that was asked for is of the present template and
    /// ready, and no other is left.
    #[must_use]
    pub fn complete(&self) -> bool {
        let Self {
            desired,
            current,
            updated,
            ready,
            observed,
            deadline_exceeded: _,
        } = *self;
        observed && updated == desired && current == desired && ready == desired
    }

    /// Whether pods of an older template are still counted, as opposed to pods
    /// that are added, or are not ready.
    #[must_use]
    pub fn replacing(&self) -> bool {
        self.observed && self.current > self.updated
    }
}

/// The image of a component in a Deployment, found by the container's name.
#[must_use]
pub fn image_of(deployment: &Deployment, component: Component) -> Option<&str> {
    let pod = deployment.spec.template.spec.as_ref()?;
    let container = pod
        .containers
        .iter()
        .find(|c| c.name == component.container())?;
    container.image.as_deref()
}

/// The hash that identifies a Deployment's pod template.
#[must_use]
pub fn template_hash(deployment: &Deployment) -> Option<&str> {
    let template = &deployment.spec.template;
    annotation(template.metadata.as_ref()?, TEMPLATE_HASH)
}
