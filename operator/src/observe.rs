//! The observed state of the cluster.

mod gather;
mod models;
mod mutation_cache;
mod pods;
mod rollout;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use fastllm_crds::{FastllmProxy, Reason};
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{Service, ServiceAccount};
use kube::Resource;

use crate::names::{ObjectKey, Ownership, ownership};
use crate::secrets::SecretData;

pub use gather::{Caches, SecretReader, gather};
pub use models::{HttpModelsProbe, ModelsProbe};
pub use mutation_cache::MutationCache;
#[cfg(test)]
pub(crate) use mutation_cache::content_hash;
pub use pods::PodView;
pub use rollout::{Rollout, image_of, template_hash};

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

/// Everything that a plan depends on.
#[derive(Clone, Debug, PartialEq)]
pub struct Observed {
    /// The objects with the resource's names.
    pub children: Children,
    /// The children that did not change since the API server's response to the last
    /// apply, even if that response differs from the applied manifest.
    pub unmodified: BTreeSet<ObjectKey>,
    /// Pods of all components.
    pub pods: Vec<PodView>,
    /// The required Secrets, by name.
    pub secrets: BTreeMap<String, ReadOutcome<Option<SecretData>>>,
    /// Number of models that a ready gateway pod serves.
    pub models: ReadOutcome<usize>,
    /// Fields of this release that the installed definition lacks.
    pub missing_fields: Vec<String>,
}

impl Default for Observed {
    fn default() -> Self {
        Self {
            children: Children::default(),
            unmodified: BTreeSet::new(),
            pods: Vec::new(),
            secrets: BTreeMap::new(),
            models: ReadOutcome::Unknown(ReadFailure::Failed("no gateway pod is ready")),
            missing_fields: Vec::new(),
        }
    }
}
