//! The Rust types of the custom resources, and the YAML generated from them.
//!
//! [`FastllmProxy`] is the only resource. Its schema, its validation rules (CEL)
//! and its printer columns are derived from these types. [`crd_yaml`] generates
//! the YAML under `config/crd`; a test compares the two.

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

/// The `CustomResourceDefinition` of [`FastllmProxy`].
#[must_use]
pub fn crd() -> CustomResourceDefinition {
    FastllmProxy::crd()
}

/// [`crd`] as a YAML document.
///
/// # Errors
/// If the schema cannot be serialized, which a test excludes.
pub fn crd_yaml() -> Result<String, serde_yaml_ng::Error> {
    serde_yaml_ng::to_string(&crd())
}
