use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::{BackendId, Secret};

/// One upstream address of a model.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Backend {
    /// Identity across snapshots, for counters and health.
    pub id: BackendId,
    /// Base address without trailing slash, `http` or `https`.
    pub api_base: String,
    /// The name of the model at the upstream.
    pub upstream_model: String,
    /// The credential, if one is needed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub api_key: Option<Secret>,
    /// The wire format.
    #[serde(default)]
    pub protocol: Protocol,
    /// The header that carries the credential.
    #[serde(default = "authorization")]
    pub auth_header: String,
    /// The scheme before the credential; `null` sends the credential alone.
    #[serde(default = "bearer")]
    pub auth_scheme: Option<String>,
    /// The token limit of responses if the client sent none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub default_max_tokens: Option<u32>,
    /// The weight among the backends of its pool; 0 gets requests only if no
    /// other is left.
    #[serde(default = "one", skip_serializing_if = "is_one")]
    pub weight: u32,
    /// Whether it accepts no new requests; those in flight are finished.
    #[serde(default, skip_serializing_if = "is_default")]
    pub draining: bool,
    /// Its concurrency limit and queue.
    #[serde(default, skip_serializing_if = "is_default")]
    pub concurrency: Concurrency,
    /// Additions to its requests.
    #[serde(default, skip_serializing_if = "is_default")]
    pub request_options: RequestOptions,
    /// The health probe.
    #[serde(default, skip_serializing_if = "is_default")]
    pub health: HealthCheck,
}

/// Concurrency limit and queue of a backend, at each gateway.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Concurrency {
    /// Maximum number of requests in flight; absent: unlimited, and no request
    /// queues.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max: Option<u32>,
    /// Maximum number of queued requests.
    pub max_queue: u32,
    /// Maximum time in the queue, milliseconds.
    pub queue_timeout_ms: u64,
}

impl Default for Concurrency {
    /// A queue that absorbs a burst without delaying a client longer than a
    /// response may take.
    fn default() -> Self {
        Self {
            max: None,
            max_queue: 100,
            queue_timeout_ms: 10_000,
        }
    }
}

/// Additions to the requests of a backend.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct RequestOptions {
    /// Additional header fields, by lower-case name; they may carry
    /// credentials.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub headers: BTreeMap<String, Secret>,
    /// Additional query parameters, not encoded.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub query: BTreeMap<String, String>,
    /// The path after that of `api_base`, with `{upstream_model}` and
    /// `{sub_path}` (`/chat/completions`); only the latter if absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub path_template: Option<String>,
}

/// The health probe of a backend.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct HealthCheck {
    /// Otherwise the backend counts as healthy.
    pub enabled: bool,
    /// The path after that of `api_base`; with `//` from the root of the host
    /// (`//health`).
    pub path: String,
    /// `GET`, `HEAD`, or `POST` with an empty body.
    pub method: String,
    /// The statuses of a healthy backend: numbers and classes separated by
    /// commas (`2xx,401`).
    pub expect: String,
}

impl Default for HealthCheck {
    fn default() -> Self {
        Self {
            enabled: true,
            path: "/models".to_owned(),
            method: "GET".to_owned(),
            expect: "2xx".to_owned(),
        }
    }
}

fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

fn one() -> u32 {
    1
}

#[expect(
    clippy::trivially_copy_pass_by_ref,
    reason = "serde hands out references"
)]
fn is_one(weight: &u32) -> bool {
    *weight == 1
}

fn authorization() -> String {
    "authorization".to_owned()
}

#[expect(
    clippy::unnecessary_wraps,
    reason = "serde wants the field's own type: absent means Bearer, null means none"
)]
fn bearer() -> Option<String> {
    Some("Bearer".to_owned())
}

/// The wire format of a backend.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Protocol {
    /// OpenAI's.
    #[default]
    Openai,
    /// Anthropic's Messages API.
    Anthropic,
    /// Google's Gemini API.
    Gemini,
    /// A format that this release does not know: the backend is skipped.
    #[serde(other)]
    Unknown,
}
