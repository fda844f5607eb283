//! The Rust types of the custom resources, and the YAML generated from them.
//!
//! [`FastllmProxy`] is the only resource. Its schema, its validation rules (CEL)
//! and its printer columns are derived from these types. [`crd_yaml`] generates
//! the YAML under `config/crd`; a test compares the two.

mod dns;
mod messages;
mod proxy;
mod quantity;
mod reference;
mod schema;
mod status;
mod validate;

pub use proxy::{
    Bootstrap, ControlPlane, FastllmProxy, FastllmProxySpec, GatewayPlane, ImagePullPolicy,
    LogFormat, Observability, default_image,
};
pub use quantity::quantity_nanos;
pub use reference::SecretKeyRef;
pub use status::{ConditionType, FastllmProxyStatus, Phase, Reason};
pub use validate::{MAX_NAME_LENGTH, Violation, validate};

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::CustomResourceExt as _;

/// The `CustomResourceDefinition` of [`FastllmProxy`].
#[must_use]
pub fn crd() -> CustomResourceDefinition {
    let mut definition = FastllmProxy::crd();
    let schemas = definition.spec.versions.iter_mut();
    let schemas =
        schemas.filter_map(|version| version.schema.as_mut()?.open_api_v3_schema.as_mut());
    for schema in schemas {
        // The field path of a rule must be part of the schema.
        let name = schema::properties([("name", schema::of_type("string"))]);
        let fields = schema.properties.get_or_insert_default();
        fields.insert("metadata".to_owned(), name);
    }
    definition
}

/// [`crd`] as a YAML document.
///
/// # Errors
/// If the schema cannot be serialized, which a test excludes.
pub fn crd_yaml() -> Result<String, serde_yaml_ng::Error> {
    serde_yaml_ng::to_string(&crd())
}
