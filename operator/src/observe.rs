//! What the cluster says, gathered into one value.

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

/// The outcome of a read that can fail. Nothing is removed, and nothing is
/// applied, on `Unknown`.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum ReadOutcome<T> {
    /// The answer.
    Known(T),
    /// There is none.
    Unknown(ReadFailure),
}

/// Why a read gave no answer.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum ReadFailure {
    /// The operator lacks the right.
    Forbidden,
    /// Anything else, without the details that change from try to try.
    Failed(&'static str),
}

impl ReadFailure {
    /// The reason to give in a condition.
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
            Self::Forbidden => f.write_str("the operator may not read it"),
            Self::Failed(what) => f.write_str(what),
        }
    }
}

/// The objects of a resource, as last seen.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Children {
    /// Identity of control's pods.
    pub control_account: Option<ServiceAccount>,
    /// Identity of the gateway's pods.
    pub gateway_account: Option<ServiceAccount>,
    /// Address of control.
    pub control_service: Option<Service>,
    /// Address of the gateway.
    pub gateway_service: Option<Service>,
    /// Control's pods.
    pub control: Option<Deployment>,
    /// The gateway's pods.
    pub gateway: Option<Deployment>,
    /// The Job that creates the first login.
    pub bootstrap: Option<Job>,
}

impl Children {
    /// Those that this resource controls, without what an earlier resource of
    /// its name left behind and what is somebody else's.
    #[must_use]
    pub fn owned_by(self, proxy: &FastllmProxy) -> Self {
        fn ours<K: Resource>(proxy: &FastllmProxy, object: Option<K>) -> Option<K> {
            object.filter(|o| ownership(proxy, o.meta()) == Ownership::Ours)
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

/// Everything that a decision is made from.
#[derive(Clone, Debug, PartialEq)]
pub struct Observed {
    /// The objects that we may have written.
    pub children: Children,
    /// Those of them, by kind and name, that are as the API server made them of
    /// what was applied last, be it something else.
    pub unmodified: BTreeSet<ObjectKey>,
    /// Pods of all components.
    pub pods: Vec<PodView>,
    /// The Secrets that are referenced and needed, by name.
    pub secrets: BTreeMap<String, ReadOutcome<Option<SecretData>>>,
    /// Number of models that a ready gateway serves.
    pub models: ReadOutcome<usize>,
}

impl Default for Observed {
    fn default() -> Self {
        Self {
            children: Children::default(),
            unmodified: BTreeSet::new(),
            pods: Vec::new(),
            secrets: BTreeMap::new(),
            models: ReadOutcome::Unknown(ReadFailure::Failed("no gateway pod is ready")),
        }
    }
}
