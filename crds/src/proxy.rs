//! The `FastllmProxy` resource.
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

/// Desired state of a deployment of FastLLM Proxy.
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
    doc = "A deployment of FastLLM Proxy: a control plane and a gateway, rolled out in this order.",
    status = "FastllmProxyStatus",
    scale(
        spec_replicas_path = ".spec.proxy.replicas",
        status_replicas_path = ".status.replicas",
        label_selector_path = ".status.selector"
    ),
    printcolumn(name = "Phase", type_ = "string", json_path = ".status.phase", description = "Summary of the conditions"),
    printcolumn(name = "Gateway", type_ = "string", json_path = ".status.proxyReplicas", description = "Ready and desired gateway pods"),
    printcolumn(name = "Control", type_ = "boolean", json_path = ".status.controlReady", description = "Whether the rollout of the control plane is complete"),
    printcolumn(name = "Image", type_ = "string", json_path = ".status.observedImage", description = "Image of the ready gateway pods"),
    printcolumn(name = "Reason", type_ = "string", json_path = ".status.conditions[?(@.type==\"Ready\")].reason", description = "Reason of the Ready condition", priority = 1),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp"),
    validation = Rule::new("self.metadata.name.size() <= 53").message("metadata.name must have at most 53 characters, because the names of its objects (such as NAME-bootstrap) must have at most 63").field_path(".metadata.name"),
    validation = Rule::new("self.metadata.name.matches('^[a-z]([-a-z0-9]*[a-z0-9])?$')").message("metadata.name must start with a letter and contain only lowercase letters, digits and hyphens, because Services are named after it").field_path(".metadata.name")
)]
#[serde(rename_all = "camelCase")]
pub struct FastllmProxySpec {
    /// Image of both planes. The default is the release of this CRD. It is stored
    /// in the resource on creation, so that an upgrade of the operator does not
    /// change it.
    #[serde(default = "default_image")]
    #[schemars(length(max = "crate::schema::MAX_STRING"))]
    #[x_kube(validation = Rule::new(crate::schema::IMAGE).message(crate::messages::IMAGE))]
    pub image: String,

    /// When the kubelet pulls the image.
    #[serde(default)]
    pub image_pull_policy: ImagePullPolicy,

    /// Names of Secrets in the same namespace with registry credentials.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 256), inner(length(max = "crate::schema::MAX_STRING")), extend("x-kubernetes-list-type" = "set"))]
    #[x_kube(validation = Rule::new("self.size() <= 32 && self.all(n, n.size() <= 253 && n.matches('^[a-z0-9]([-a-z0-9]*[a-z0-9])?([.][a-z0-9]([-a-z0-9]*[a-z0-9])?)*$'))").message(crate::messages::PULL_SECRETS))]
    pub image_pull_secrets: Vec<String>,

    /// Secret key with the URL of the Postgres database (postgres:// or postgresql://).
    pub database: SecretKeyRef,

    /// Secret key with the token that gateways use to authenticate to the control plane.
    pub proxy_token: SecretKeyRef,

    /// Secret key with the key that encrypts credentials at rest: 64 hexadecimal
    /// digits. The reference is immutable, because credentials that are encrypted
    /// with one key cannot be decrypted with another.
    #[x_kube(validation = Rule::new("self == oldSelf").message("encryptionKey is immutable: stored credentials cannot be decrypted with another key"))]
    pub encryption_key: SecretKeyRef,

    /// Admin account to create once the control plane is ready. It is created once;
    /// an existing password is never changed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bootstrap: Option<Bootstrap>,

    /// Control plane: admin API, snapshots and accounting.
    #[serde(default)]
    pub control: ControlPlane,

    /// Gateway: the request path.
    #[serde(default)]
    pub proxy: GatewayPlane,

    /// Logging of both planes.
    #[serde(default)]
    pub observability: Observability,
}

/// When the kubelet pulls an image.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
pub enum ImagePullPolicy {
    /// Whenever a container starts.
    Always,
    /// If the image is not present on the node.
    #[default]
    IfNotPresent,
    /// Never; the pod does not start if the image is not present on the node.
    Never,
}

impl ImagePullPolicy {
    /// The value in a pod specification.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Always => "Always",
            Self::IfNotPresent => "IfNotPresent",
            Self::Never => "Never",
        }
    }
}

/// The bootstrap admin.
#[derive(Clone, Debug, Default, Deserialize, KubeSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Bootstrap {
    /// Name of the account.
    #[serde(default = "default_principal")]
    #[schemars(length(max = "crate::schema::MAX_STRING"))]
    #[x_kube(validation = Rule::new(r"bytes(self).size() <= 128 && self.matches(r'^[^\p{Cc}\p{Z}]([^\p{Cc}]*[^\p{Cc}\p{Z}])?$')").message(crate::messages::ACCOUNT_NAME))]
    pub name: String,
    /// Secret key with the initial password. It is read once; the Secret may be
    /// deleted afterwards.
    pub password: SecretKeyRef,
}

/// The control plane.
#[derive(Clone, Debug, Deserialize, KubeSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ControlPlane {
    /// Number of pods, all of which are active. 0 stops the control plane.
    #[serde(default = "one")]
    #[x_kube(validation = Rule::new("self >= 0 && self <= 10000").message(crate::messages::REPLICAS))]
    pub replicas: i32,
    /// Resource requests and limits of a control plane pod.
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
    #[x_kube(validation = Rule::new("self >= 0 && self <= 10000").message(crate::messages::REPLICAS))]
    pub replicas: i32,
    /// Resource requests and limits of a gateway pod.
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

/// Logging of both planes.
#[derive(Clone, Debug, Deserialize, KubeSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Observability {
    /// Log level (`error`, `warn`, `info`, `debug` or `trace`), or a filter such as
    /// `info,fastllm_gateway=debug`.
    #[serde(default = "default_log_level")]
    #[schemars(length(max = "crate::schema::MAX_STRING"))]
    #[x_kube(validation = Rule::new("self.matches('^[ -~]+$') && self.size() <= 1024").message(crate::messages::LOG_LEVEL))]
    pub log_level: String,
    /// Format of log lines.
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

/// Format of log lines.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum LogFormat {
    /// Human-readable text.
    #[default]
    Text,
    /// One JSON object per line.
    Json,
}

impl LogFormat {
    /// The value of the planes' flag `--log-format`.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Text => "text",
            Self::Json => "json",
        }
    }
}

/// The image of this release, and the default of `spec.image`.
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
