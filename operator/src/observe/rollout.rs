//! The progress of a Deployment's rollout.

use k8s_openapi::api::apps::v1::{Deployment, DeploymentStatus};

use crate::names::{Component, TEMPLATE_HASH, annotation};

/// Pod counts of a Deployment.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Rollout {
    /// Desired pods.
    pub desired: i32,
    /// Pods of any template that are not terminating.
    pub current: i32,
    /// Pods of the current template.
    pub updated: i32,
    /// Ready pods of any template.
    pub ready: i32,
    /// Whether the counts apply to the current generation of the Deployment.
    pub observed: bool,
    /// Whether the rollout exceeded its progress deadline.
    pub deadline_exceeded: bool,
}

impl Rollout {
    /// Reads the counts from a Deployment's status.
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

    /// Whether all desired pods run the current template and are ready, and no
    /// other pods exist.
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

    /// Whether pods of an older template still exist, as opposed to pods that are
    /// being added or are not ready.
    #[must_use]
    pub fn replacing(&self) -> bool {
        self.observed && self.current > self.updated
    }
}

/// Why the Deployment controller cannot create pods, as when a quota is exceeded.
#[must_use]
pub fn creation_failure(deployment: &Deployment) -> Option<&str> {
    let conditions = deployment.status.as_ref()?.conditions.as_ref()?;
    let failed = conditions.iter().find(|c| {
        let kind = c.type_.as_deref();
        kind == Some("ReplicaFailure") && c.status.as_deref() == Some("True")
            || kind == Some("Progressing") && c.reason.as_deref() == Some("ReplicaSetCreateError")
    })?;
    Some(failed.message.as_deref().unwrap_or_default())
}

/// The image of a component in a Deployment.
#[must_use]
pub fn image_of(deployment: &Deployment, component: Component) -> Option<&str> {
    let pod = deployment.spec.template.spec.as_ref()?;
    let container = pod
        .containers
        .iter()
        .find(|c| c.name == component.container())?;
    container.image.as_deref()
}

/// The hash of a Deployment's pod template.
#[must_use]
pub fn template_hash(deployment: &Deployment) -> Option<&str> {
    let template = &deployment.spec.template;
    annotation(template.metadata.as_ref()?, TEMPLATE_HASH)
}
