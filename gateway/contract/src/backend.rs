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
    /// What the upstream calls the model.
    pub upstream_model: String,
    /// Credential in usable form, if one is needed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub api_key: Option<Secret>,
    /// Its wire format.
    #[serde(default)]
    pub protocol: Protocol,
    /// The header that carries the credential.
    #[serde(default = "authorization")]
    pub auth_header: String,
    /// The word before the credential; `null` sends the credential alone.
    #[serde(default = "bearer")]
    pub auth_scheme: Option<String>,
    /// The answer's token ceiling where the client sent none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub default_max_tokens: Option<u32>,
    /// How much it can take beside the others of its pool; 0 gets requests
    /// only where no other is left.
    #[serde(default = "one", skip_serializing_if = "is_one")]
    pub weight: u32,
    /// It gets no new request; those under way are finished.
    #[serde(default, skip_serializing_if = "is_default")]
    pub draining: bool,
    /// How many requests it takes at once.
    #[serde(default, skip_serializing_if = "is_default")]
    pub concurrency: Concurrency,
    /// How its requests differ from the usual ones.
    #[serde(default, skip_serializing_if = "is_default")]
    pub dialect: RequestOptions,
    /// How it is probed.
    #[serde(default, skip_serializing_if = "is_default")]
    pub health: HealthCheck,
}

/// How many requests a backend takes at once, and how many wait for it, at each
/// gateway.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Concurrency {
    /// The most under way; without it nobody ever waits.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max: Option<u32>,
    /// The most that wait for a place.
    pub max_queue: u32,
    /// How long one of them waits, milliseconds.
    pub queue_timeout_ms: u64,
}

impl Default for Concurrency {
    /// A queue that takes a burst, and that a client is not kept in longer than
    /// it may be expected to wait for an answer.
    fn default() -> Self {
        Self {
            max: None,
            max_queue: 100,
            queue_timeout_ms: 10_000,
        }
    }
}

/// What a backend wants in its requests beside what all of them have.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct RequestOptions {
    /// Further headers, by name in lower case; they may hold credentials.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub headers: BTreeMap<String, Secret>,
    /// Further members of the query, not encoded yet.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub query: BTreeMap<String, String>,
    /// What follows the path of `api_base`, with `{upstream_model}` and
    /// `{sub_path}` (`/chat/completions`) in it; only the latter where absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub path_template: Option<String>,
}

/// How a backend is probed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct HealthCheck {
    /// Otherwise it is taken for healthy without being asked.
    pub enabled: bool,
    /// What follows the path of `api_base`; after `//` it starts at the host's
    /// root instead (`//health`).
    pub path: String,
    /// `GET`, `HEAD`, or `POST` with an empty body.
    pub method: String,
    /// The statuses of a healthy backend: numbers and classes, with commas
    /// between them (`2xx,401`).
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
    /// One that this release does not know: such a backend is left out.
    #[serde(other)]
    Unknown,
}
