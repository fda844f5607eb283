//! Pure functions that build the objects of a resource, one file per object kind.

mod bootstrap;
mod control;
mod deployment;
mod gateway;
mod pod;
mod service_account;
mod services;

use fastllm_crds::FastllmProxy;
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{Service, ServiceAccount};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde_json::Value;

use crate::hash::{json_hash, to_json};
use crate::names::{APPLIED_HASH, COMPONENT, Component, ObjectKey, annotate};
use crate::secrets::InputHashes;

pub use bootstrap::bootstrap;
pub use control::control;
pub use deployment::restarted;
pub use gateway::gateway;
pub use service_account::service_account;
pub use services::service;

/// An object that the operator writes.
#[derive(Clone, Debug, PartialEq)]
pub enum Object {
    /// Identity of a plane's pods.
    ServiceAccount(Box<ServiceAccount>),
    /// Network address of a plane.
    Service(Box<Service>),
    /// Pods of a plane.
    Deployment(Box<Deployment>),
    /// The Job that creates the bootstrap admin.
    Job(Box<Job>),
}

impl Object {
    /// Kind, as in messages and metric labels.
    #[must_use]
    pub fn kind(&self) -> &'static str {
        match self {
            Self::ServiceAccount(_) => "ServiceAccount",
            Self::Service(_) => "Service",
            Self::Deployment(_) => "Deployment",
            Self::Job(_) => "Job",
        }
    }

    /// The metadata.
    #[must_use]
    pub fn metadata(&self) -> &ObjectMeta {
        match self {
            Self::ServiceAccount(o) => &o.metadata,
            Self::Service(o) => &o.metadata,
            Self::Deployment(o) => &o.metadata,
            Self::Job(o) => &o.metadata,
        }
    }

    /// The metadata, mutable.
    pub fn metadata_mut(&mut self) -> &mut ObjectMeta {
        match self {
            Self::ServiceAccount(o) => &mut o.metadata,
            Self::Service(o) => &mut o.metadata,
            Self::Deployment(o) => &mut o.metadata,
            Self::Job(o) => &mut o.metadata,
        }
    }

    /// The name.
    #[must_use]
    pub fn name(&self) -> &str {
        self.metadata().name.as_deref().unwrap_or_default()
    }

    /// The kind and name.
    #[must_use]
    pub fn key(&self) -> ObjectKey {
        ObjectKey {
            kind: self.kind(),
            name: self.name().to_owned(),
        }
    }

    /// The component in the object's label.
    #[must_use]
    pub fn component(&self) -> Option<Component> {
        Component::from_label(self.metadata().labels.as_ref()?.get(COMPONENT)?)
    }

    /// The object as JSON.
    #[must_use]
    pub fn to_json(&self) -> Value {
        match self {
            Self::ServiceAccount(o) => to_json(o),
            Self::Service(o) => to_json(o),
            Self::Deployment(o) => to_json(o),
            Self::Job(o) => to_json(o),
        }
    }

    /// Annotates the object with its own hash. Call this last.
    #[must_use]
    pub fn with_applied_hash(mut self) -> Self {
        let hash = json_hash(&self.to_json());
        annotate(self.metadata_mut(), APPLIED_HASH, hash);
        self
    }
}

/// The input of the builders.
#[derive(Clone, Copy, Debug)]
pub struct BuildContext<'a> {
    /// The resource.
    pub proxy: &'a FastllmProxy,
    /// The hashes of the Secret values that the resource references.
    pub inputs: &'a InputHashes,
}

#[cfg(test)]
mod tests;
