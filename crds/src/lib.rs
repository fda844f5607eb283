//! The Rust types of the custom resources, and the YAML generated from them.
//!
//! [`FastllmProxy`] is the only resource. Its schema, its admission rules (CEL)
//! and its printer columns all come from the types here; the YAML under
//! `config/crd` is rendered by [`crd_yaml`] and held to it by a test.

mod proxy;
mod reference;
mod schema;
mod status;
mod validate;

pub use proxy::{
    Bootstrap, ControlPlane, FastllmProxy, FastllmProxySpec, GatewayPlane, ImagePullPolicy,
    LogFormat, Observability, default_image,
};
pub use reference::SecretKeyRef;
pub use status::{ConditionType, FastllmProxyStatus, Phase, Reason};
pub use validate::{MAX_NAME_LENGTH, Violation, validate};

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::CustomResourceExt as _;

/// The definition to install before the first [`FastllmProxy`].
#[must_use]
pub fn crd() -> CustomResourceDefinition {
    FastllmProxy::crd()
}

/// [`crd`] as the YAML document that is checked in and applied.
///
/// # Errors
/// Only if a schema cannot be written as YAML, which the drift test excludes.
pub fn crd_yaml() -> Result<String, serde_yaml_ng::Error> {
    serde_yaml_ng::to_string(&crd())
}
