//! The installed definition of the resources, compared with that of this release.

use std::sync::Arc;

use fastllm_crds::FastllmProxy;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{
    CustomResourceDefinition, JSONSchemaProps, JSONSchemaPropsOrArray,
};
use kube::api::Api;
use kube::{Client, CustomResourceExt as _, Resource as _};
use parking_lot::Mutex;

use crate::error::{Chain, call};
use crate::metrics::Metrics;

/// The command that installs the definition of this release.
pub const INSTALL: &str = "kubectl exec -n fastllm-system deploy/fastllm-operator -- \
    fastllm-operator crd | kubectl apply --server-side -f -";

/// Describes a definition that is not installed.
#[must_use]
pub fn not_installed() -> String {
    format!(
        "the definition {} is not installed or does not serve version {}; install it by: {INSTALL}",
        FastllmProxy::crd_name(),
        FastllmProxy::version(&())
    )
}

/// Describes a definition that lacks fields, which the API server removes from
/// resources.
#[must_use]
pub fn outdated(fields: &[String]) -> String {
    format!(
        "the installed definition {} is older than the operator and lacks the fields {}; \
         install that of the operator by: {INSTALL}",
        FastllmProxy::crd_name(),
        fields.join(", ")
    )
}

/// What is known about the installed definition.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
enum Installed {
    /// It was not read yet.
    #[default]
    Unknown,
    /// It has every field of this release.
    Current,
    /// It does not exist.
    Missing,
    /// It lacks these fields.
    Outdated(Vec<String>),
}

/// Reads the installed definition.
pub struct DefinitionCheck {
    api: Api<CustomResourceDefinition>,
    installed: Mutex<Installed>,
    metrics: Arc<Metrics>,
}

impl DefinitionCheck {
    /// Creates a check that has not read the definition yet.
    #[must_use]
    pub fn new(client: Client, metrics: Arc<Metrics>) -> Self {
        Self {
            api: Api::all(client),
            installed: Mutex::default(),
            metrics,
        }
    }

    /// Reads the definition, and returns whether something changed. After a failed
    /// read the last result remains.
    pub async fn refresh(&self) -> bool {
        let found = match call(self.api.get_opt(FastllmProxy::crd_name())).await {
            Ok(Some(definition)) => {
                let missing = missing_fields(&definition, &fastllm_crds::crd());
                if missing.is_empty() {
                    Installed::Current
                } else {
                    tracing::warn!("{}", outdated(&missing));
                    Installed::Outdated(missing)
                }
            }
            Ok(None) => Installed::Missing,
            Err(error) => {
                tracing::debug!(error = %Chain(&error), "cannot read the definition");
                return false;
            }
        };
        let is_outdated = matches!(found, Installed::Outdated(_));
        self.metrics.set_definition_outdated(is_outdated);
        let mut installed = self.installed.lock();
        let changed = *installed != found;
        *installed = found;
        changed
    }

    /// Whether the definition does not exist.
    #[must_use]
    pub fn is_missing(&self) -> bool {
        *self.installed.lock() == Installed::Missing
    }

    /// The fields that the installed definition lacks.
    #[must_use]
    pub fn missing_fields(&self) -> Vec<String> {
        match &*self.installed.lock() {
            Installed::Outdated(fields) => fields.clone(),
            Installed::Unknown | Installed::Current | Installed::Missing => Vec::new(),
        }
    }
}

/// The paths of the fields that a definition lacks, without those below another one.
fn missing_fields(
    installed: &CustomResourceDefinition,
    ours: &CustomResourceDefinition,
) -> Vec<String> {
    let mut missing = Vec::new();
    for version in &ours.spec.versions {
        let Some(schema) = schema_of(ours, &version.name) else {
            continue;
        };
        match schema_of(installed, &version.name) {
            Some(installed) => compare("", installed, schema, &mut missing),
            None => missing.push(format!("of version {}", version.name)),
        }
    }
    missing
}

fn schema_of<'d>(
    definition: &'d CustomResourceDefinition,
    version: &str,
) -> Option<&'d JSONSchemaProps> {
    let mut versions = definition.spec.versions.iter();
    let version = versions.find(|v| v.name == version && v.served)?;
    version.schema.as_ref()?.open_api_v3_schema.as_ref()
}

fn compare(
    path: &str,
    installed: &JSONSchemaProps,
    ours: &JSONSchemaProps,
    missing: &mut Vec<String>,
) {
    if installed.x_kubernetes_preserve_unknown_fields == Some(true) {
        return;
    }
    for (name, ours) in ours.properties.iter().flatten() {
        let path = match path {
            // The API server keeps all metadata.
            "" if name == "metadata" => continue,
            "" => name.clone(),
            parent => format!("{parent}.{name}"),
        };
        let properties = installed.properties.as_ref();
        match properties.and_then(|p| p.get(name)) {
            Some(installed) => compare(&path, installed, ours, missing),
            None => missing.push(path),
        }
    }
    if let (
        Some(JSONSchemaPropsOrArray::Schema(installed)),
        Some(JSONSchemaPropsOrArray::Schema(ours)),
    ) = (&installed.items, &ours.items)
    {
        compare(&format!("{path}[]"), installed, ours, missing);
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
    use serde_json::{Value, json};

    use super::missing_fields;

    /// The definition of this release with a change to the schema.
    fn missing(change: impl Fn(&mut Value)) -> Vec<String> {
        let ours = fastllm_crds::crd();
        let mut installed = serde_json::to_value(&ours).unwrap();
        change(&mut installed["spec"]["versions"][0]);
        let installed: CustomResourceDefinition = serde_json::from_value(installed).unwrap();
        missing_fields(&installed, &ours)
    }

    fn remove(version: &mut Value, pointer: &str, name: &str) {
        let schema = &mut version["schema"]["openAPIV3Schema"];
        let node = schema.pointer_mut(pointer).unwrap();
        node.as_object_mut().unwrap().remove(name).unwrap();
    }

    #[test]
    fn missing_fields_are_named_by_their_paths() {
        assert_eq!(missing(|_| {}), [] as [&str; 0]);
        let found = missing(|version| {
            remove(version, "/properties/spec/properties", "observability");
            remove(
                version,
                "/properties/spec/properties/proxy/properties",
                "resources",
            );
            remove(
                version,
                "/properties/status/properties/conditions/items/properties",
                "reason",
            );
            remove(version, "/properties", "metadata");
        });
        assert_eq!(
            found,
            [
                "spec.observability",
                "spec.proxy.resources",
                "status.conditions[].reason"
            ]
        );
    }

    #[test]
    fn a_version_that_is_not_served_is_missing() {
        let found = missing(|version| version["served"] = json!(false));
        assert_eq!(found, ["of version v1alpha1"]);
    }

    #[test]
    fn additional_and_free_fields_are_allowed() {
        let found = missing(|version| {
            let spec = &mut version["schema"]["openAPIV3Schema"]["properties"]["spec"];
            spec["properties"]["added"] = json!({"type": "string"});
            let proxy = &mut spec["properties"]["proxy"];
            proxy["properties"] = json!({});
            proxy["x-kubernetes-preserve-unknown-fields"] = json!(true);
        });
        assert_eq!(found, [] as [&str; 0]);
    }
}
