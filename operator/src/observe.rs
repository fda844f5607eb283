//! The observed state of the cluster.

mod gather;
mod mutation_cache;
mod pods;
mod probe;
mod rollout;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use fastllm_crds::{FastllmProxy, Reason};
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{Service, ServiceAccount};
use kube::Resource;

use crate::names::{Component, ObjectKey, Ownership, ownership};
use crate::secrets::SecretData;

pub use gather::{Caches, SecretReader, gather};
pub use mutation_cache::MutationCache;
#[cfg(test)]
pub(crate) use mutation_cache::content_hash;
pub use pods::{PodFailure, PodView};
pub use probe::{HttpPlaneProbe, PlaneProbe};
pub use rollout::{Rollout, creation_failure, image_of, template_hash};

/// The outcome of a read that can fail. `Unknown` causes neither deletions nor writes.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum ReadOutcome<T> {
    /// The value.
    Known(T),
    /// The read failed.
    Unknown(ReadFailure),
}

/// The reason of a failed read.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum ReadFailure {
    /// The operator lacks the permission.
    Forbidden,
    /// Any other failure. The text omits details that differ between attempts.
    Failed(&'static str),
}

impl ReadFailure {
    /// The reason for conditions.
    #[must_use]
    pub fn reason(&self) -> Reason {
        match self {
            Self::Forbidden => Reason::Forbidden,
            Self::Failed(_) => Reason::ReadFailed,
        }
    }
}

impl fmt::Display for ReadFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Forbidden => f.write_str("the operator lacks the permission to read it"),
            Self::Failed(message) => f.write_str(message),
        }
    }
}

/// The objects of a resource.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Children {
    /// Identity of the control plane's pods.
    pub control_account: Option<ServiceAccount>,
    /// Identity of the gateway's pods.
    pub gateway_account: Option<ServiceAccount>,
    /// Network address of the control plane.
    pub control_service: Option<Service>,
    /// Network address of the gateway.
    pub gateway_service: Option<Service>,
    /// Pods of the control plane.
    pub control: Option<Deployment>,
    /// Pods of the gateway.
    pub gateway: Option<Deployment>,
    /// The Job that creates the bootstrap admin.
    pub bootstrap: Option<Job>,
}

impl Children {
    /// The children that this resource controls, without orphans and objects of other owners.
    #[must_use]
    pub fn owned_by(self, proxy: &FastllmProxy) -> Self {
        fn ours<K: Resource>(proxy: &FastllmProxy, object: Option<K>) -> Option<K> {
            object.filter(|o| {
                matches!(
                    ownership(proxy, o.meta()),
                    Ownership::Ours | Ownership::Terminating
                )
            })
        }
        let Self {
            control_account,
            gateway_account,
            control_service,
            gateway_service,
            control,
            gateway,
            bootstrap,
        } = self;
        Self {
            control_account: ours(proxy, control_account),
            gateway_account: ours(proxy, gateway_account),
            control_service: ours(proxy, control_service),
            gateway_service: ours(proxy, gateway_service),
            control: ours(proxy, control),
            gateway: ours(proxy, gateway),
            bootstrap: ours(proxy, bootstrap),
        }
    }
}

/// What the planes' pods report about themselves.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct PodReports {
    /// Number of models that a ready gateway pod serves.
    pub models: ReadOutcome<usize>,
    /// Why a control plane's pod that is not ready cannot use its database.
    pub database_problem: Option<String>,
}

impl Default for PodReports {
    fn default() -> Self {
        Self {
            models: ReadOutcome::Unknown(ReadFailure::Failed("no gateway pod is ready")),
            database_problem: None,
        }
    }
}

/// Everything that a plan depends on.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Observed {
    /// The objects with the resource's names.
    pub children: Children,
    /// The children that did not change since the API server's response to the last
    /// apply, even if that response differs from the applied manifest.
    pub unmodified: BTreeSet<ObjectKey>,
    /// Pods of all components.
    pub pods: Vec<PodView>,
    /// The names of the autoscalers of the planes' Deployments.
    pub autoscalers: BTreeMap<Component, String>,
    /// Number of ready endpoints of the gateway's Service.
    pub endpoints: usize,
    /// The required Secrets, by name.
    pub secrets: BTreeMap<String, ReadOutcome<Option<SecretData>>>,
    /// What the pods report about themselves.
    pub reports: PodReports,
    /// Fields of this release that the installed definition lacks.
    pub missing_fields: Vec<String>,
}
