//! `FastllmProxy`: one deployment of both planes.
#![expect(
    unreachable_pub,
    reason = "the schema derive expands to items inside functions"
)]

use k8s_openapi::api::core::v1::ResourceRequirements;
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::SecretKeyRef;
use crate::status::FastllmProxyStatus;

/// What a deployment of FastLLM Proxy should be.
#[derive(Clone, CustomResource, Debug, Default, Deserialize, KubeSchema, PartialEq, Serialize)]
#[kube(
    group = "fastllm.io",
    version = "v1alpha1",
    kind = "FastllmProxy",
    plural = "fastllmproxies",
    shortname = "fllm",
    namespaced,
    derive = "PartialEq",
    derive = "Default",
    doc = "A deployment of FastLLM Proxy: the control plane, the gateway and the order in which they are rolled out.",
    status = "FastllmProxyStatus",
    scale(
        spec_replicas_path = ".spec.proxy.replicas",
        status_replicas_path = ".status.replicas",
        label_selector_path = ".status.selector"
    ),
    printcolumn(name = "Phase", type_ = "string", json_path = ".status.phase", description = "Where the deployment stands"),
    printcolumn(name = "Gateway", type_ = "string", json_path = ".status.proxyReplicas", description = "Ready gateway pods of those asked for"),
    printcolumn(name = "Control", type_ = "boolean", json_path = ".status.controlReady", description = "Whether the control plane is rolled out and ready"),
    printcolumn(name = "Image", type_ = "string", json_path = ".status.observedImage", description = "The image that ready gateway pods run"),
    printcolumn(name = "Reason", type_ = "string", json_path = ".status.conditions[?(@.type==\"Ready\")].reason", description = "Why it is ready, or is not", priority = 1),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp"),
    validation = Rule::new("self.metadata.name.size() <= 53").message("metadata.name must have at most 53 characters, so that the names of its children (NAME-bootstrap) fit into 63"),
    validation = Rule::new("self.metadata.name.matches('^[a-z]([-a-z0-9]*[a-z0-9])?$')").message("metadata.name must start with a letter and hold only lower-case letters, digits and hyphens, since Services are named after it")
)]
#[serde(rename_all = "camelCase")]
pub struct FastllmProxySpec {
    /// Image of both planes. The default is the release of the operator that
    /// installed this definition, and is written into the resource when it is
    /// created, so that a newer operator does not upgrade it unasked.
    #[serde(default = "default_image")]
    #[x_kube(validation = Rule::new("self.size() > 0").message("image must not be empty"))]
    pub image: String,

    /// When the kubelet pulls the image.
    #[serde(default)]
    pub image_pull_policy: ImagePullPolicy,

    /// Names of Secrets with registry credentials, in the same namespace.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32), inner(length(min = 1, max = 253)), extend("x-kubernetes-list-type" = "set"))]
    pub image_pull_secrets: Vec<String>,

    /// Where the Postgres URL is (postgres:// or postgresql://).
    pub database: SecretKeyRef,

    /// Where the token is by which gateways identify themselves to control.
    pub proxy_token: SecretKeyRef,

    /// Where the key is that encrypts credentials at rest: 64 hexadecimal
    /// digits. The reference cannot change: what was written under one key
    /// cannot be read under another.
    #[x_kube(validation = Rule::new("self == oldSelf").message("encryptionKey is immutable: stored credentials cannot be read with another key"))]
    pub encryption_key: SecretKeyRef,

    /// The first login to create once control is ready. It is created once;
    /// an existing password is never reset.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bootstrap: Option<Bootstrap>,

    /// The control plane: admin API, snapshots, accounting.
    #[serde(default)]
    pub control: ControlPlane,

    /// The gateway: the request path.
    #[serde(default)]
    pub proxy: GatewayPlane,

    /// Logs of both planes.
    #[serde(default)]
    pub observability: Observability,
}

/// When the kubelet pulls an image.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
pub enum ImagePullPolicy {
    /// At every start of a container.
    Always,
    /// When the node has no such image.
    #[default]
    IfNotPresent,
    /// Never: the image is on the node, or the pod does not start.
    Never,
}

impl ImagePullPolicy {
    /// The word that Kubernetes uses.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Always => "Always",
            Self::IfNotPresent => "IfNotPresent",
            Self::Never => "Never",
        }
    }
}

/// The first login.
#[derive(Clone, Debug, Default, Deserialize, KubeSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Bootstrap {
    /// Name of the principal.
    #[serde(default = "default_principal")]
    #[x_kube(validation = Rule::new("self.size() > 0").message("the name of the first login must not be empty"))]
    pub name: String,
    /// Where its initial password is. Read once; the Secret may be deleted afterwards.
    pub password: SecretKeyRef,
}

/// The control plane.
#[derive(Clone, Debug, Deserialize, KubeSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ControlPlane {
    /// Number of pods; all of them are active. 0 stops the control plane.
    #[serde(default = "one")]
    #[x_kube(validation = Rule::new("self >= 0 && self <= 10000").message("control.replicas must be between 0 and 10000"))]
    pub replicas: i32,
    /// Requests and limits of a control pod.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "crate::schema::resources")]
    pub resources: Option<ResourceRequirements>,
}

impl Default for ControlPlane {
    fn default() -> Self {
        Self {
            replicas: one(),
            resources: None,
        }
    }
}

/// The gateway.
#[derive(Clone, Debug, Deserialize, KubeSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct GatewayPlane {
    /// Number of pods. 0 stops the gateway.
    #[serde(default = "two")]
    #[x_kube(validation = Rule::new("self >= 0 && self <= 10000").message("proxy.replicas must be between 0 and 10000"))]
    pub replicas: i32,
    /// Requests and limits of a gateway pod.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "crate::schema::resources")]
    pub resources: Option<ResourceRequirements>,
}

impl Default for GatewayPlane {
    fn default() -> Self {
        Self {
            replicas: two(),
            resources: None,
        }
    }
}

/// Logs of both planes.
#[derive(Clone, Debug, Deserialize, KubeSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Observability {
    /// Verbosity: `error`, `warn`, `info`, `debug`, `trace`, or a filter such as
    /// `info,fastllm_gateway=debug`.
    #[serde(default = "default_log_level")]
    #[x_kube(validation = Rule::new("self.size() > 0").message("observability.logLevel must not be empty"))]
    pub log_level: String,
    /// How log lines are written.
    #[serde(default)]
    pub log_format: LogFormat,
}

impl Default for Observability {
    fn default() -> Self {
        Self {
            log_level: default_log_level(),
            log_format: LogFormat::default(),
        }
    }
}

/// How log lines are written.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum LogFormat {
    /// For people.
    #[default]
    Text,
    /// For log collectors.
    Json,
}

impl LogFormat {
    /// The word that the planes' `--log-format` takes.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Text => "text",
            Self::Json => "json",
        }
    }
}

/// The image of this release.
#[must_use]
pub fn default_image() -> String {
    concat!("fastllm/fastllm-proxy:", env!("CARGO_PKG_VERSION")).to_owned()
}

fn default_principal() -> String {
    "admin".to_owned()
}

fn default_log_level() -> String {
    "info".to_owned()
}

fn one() -> i32 {
    1
}

fn two() -> i32 {
    2
}
