//! What should exist for a resource: pure builders, one file per object kind.

mod bootstrap;
mod control;
mod deployment;
mod gateway;
mod pod;
mod service_account;
mod services;

use fastllm_crds::{FastllmProxy, SecretKeyRef};
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{Service, ServiceAccount};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use ring::digest::{Context, SHA256};
use serde::Serialize;
use serde_json::Value;

use crate::names::{APPLIED_HASH, COMPONENT, Component};
use crate::secrets::Inputs;

pub use bootstrap::bootstrap;
pub use control::{ADMIN_PORT, control};
pub use gateway::{PUBLIC_PORT, STATUS_PORT, gateway};
pub use service_account::service_account;
pub use services::service;

/// An object that the operator writes.
#[derive(Clone, Debug, PartialEq)]
pub enum Object {
    /// Identity of a plane's pods.
    ServiceAccount(Box<ServiceAccount>),
    /// Address of a plane.
    Service(Box<Service>),
    /// Pods of a plane.
    Deployment(Box<Deployment>),
    /// The Job that creates the first login.
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

    /// Its metadata.
    #[must_use]
    pub fn metadata(&self) -> &ObjectMeta {
        match self {
            Self::ServiceAccount(o) => &o.metadata,
            Self::Service(o) => &o.metadata,
            Self::Deployment(o) => &o.metadata,
            Self::Job(o) => &o.metadata,
        }
    }

    /// Its metadata, to be changed.
    pub fn metadata_mut(&mut self) -> &mut ObjectMeta {
        match self {
            Self::ServiceAccount(o) => &mut o.metadata,
            Self::Service(o) => &mut o.metadata,
            Self::Deployment(o) => &mut o.metadata,
            Self::Job(o) => &mut o.metadata,
        }
    }

    /// Its name.
    #[must_use]
    pub fn name(&self) -> &str {
        self.metadata().name.as_deref().unwrap_or_default()
    }

    /// The component that its label names.
    #[must_use]
    pub fn component(&self) -> Option<Component> {
        Component::from_label(self.metadata().labels.as_ref()?.get(COMPONENT)?)
    }

    /// The object as it goes over the wire.
    #[must_use]
    pub fn body(&self) -> Value {
        match self {
            Self::ServiceAccount(o) => body(o),
            Self::Service(o) => body(o),
            Self::Deployment(o) => body(o),
            Self::Job(o) => body(o),
        }
    }

    /// Adds the hash of the object itself; the last thing that is done to it.
    #[must_use]
    pub fn sealed(mut self) -> Self {
        let hash = hash(&self.body());
        annotate(self.metadata_mut(), APPLIED_HASH, hash);
        self
    }
}

/// Sets an annotation.
pub(crate) fn annotate(meta: &mut ObjectMeta, key: &str, value: String) {
    meta.annotations
        .get_or_insert_default()
        .insert(key.to_owned(), value);
}

/// An annotation's value.
#[must_use]
pub fn annotation<'a>(meta: &'a ObjectMeta, key: &str) -> Option<&'a str> {
    meta.annotations.as_ref()?.get(key).map(String::as_str)
}

/// A typed object as JSON. Kubernetes' types always serialise.
pub(crate) fn body<T: Serialize>(object: &T) -> Value {
    serde_json::to_value(object).unwrap_or_default()
}

/// What a resource's objects are built from.
#[derive(Clone, Copy, Debug)]
pub struct Wanted<'a> {
    /// The resource.
    pub proxy: &'a FastllmProxy,
    /// The hashes of the Secrets that it references.
    pub inputs: &'a Inputs,
}

/// The Secret values that a component reads, with the path of each field.
#[must_use]
pub fn inputs_of(proxy: &FastllmProxy, component: Component) -> Vec<(&'static str, &SecretKeyRef)> {
    let spec = &proxy.spec;
    match component {
        Component::Control => vec![
            ("database", &spec.database),
            ("encryptionKey", &spec.encryption_key),
            ("proxyToken", &spec.proxy_token),
        ],
        Component::Gateway => vec![("proxyToken", &spec.proxy_token)],
        Component::Bootstrap => {
            let mut inputs = vec![("database", &spec.database)];
            inputs.extend(
                spec.bootstrap
                    .iter()
                    .map(|b| ("bootstrap.password", &b.password)),
            );
            inputs
        }
    }
}

/// First 16 hexadecimal digits of the SHA-256 of a value whose members are in
/// alphabetical order. Not secret and not keyed: it covers no Secret's value.
#[must_use]
pub fn hash(value: &Value) -> String {
    let mut context = Context::new(&SHA256);
    feed(&mut context, value);
    hex(&context.finish().as_ref()[..8])
}

fn feed(context: &mut Context, value: &Value) {
    match value {
        Value::Object(members) => {
            let mut sorted: Vec<_> = members.iter().collect();
            sorted.sort_unstable_by_key(|(name, _)| name.as_str());
            context.update(b"{");
            for (name, member) in sorted {
                context.update(Value::from(name.as_str()).to_string().as_bytes());
                context.update(b":");
                feed(context, member);
                context.update(b",");
            }
            context.update(b"}");
        }
        Value::Array(items) => {
            context.update(b"[");
            for item in items {
                feed(context, item);
                context.update(b",");
            }
            context.update(b"]");
        }
        scalar => context.update(scalar.to_string().as_bytes()),
    }
}

/// Bytes as lower-case hexadecimal digits.
pub(crate) fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write as _;
    bytes.iter().fold(String::new(), |mut text, byte| {
        // Writing to a String cannot fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}

#[cfg(test)]
mod tests;
