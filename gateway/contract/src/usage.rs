use std::borrow::Cow;

use serde::{Deserialize, Serialize};

use crate::{KeyId, Metadata, Micros, ModelName, PrincipalId, Timestamp, Tokens};

/// A batch of usage events under its idempotency key. The gateway freezes a
/// batch when it first sends it and repeats it unchanged until it is answered.
///
/// Invariant: within one (`replica`, `boot_id`) batches are sent one at a time
/// and `sequence` only grows, so that one high-water mark tells a repetition.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct UsageBatch {
    /// The gateway's name (its pod's name).
    pub replica: String,
    /// A random text per start of the gateway.
    pub boot_id: String,
    /// 1 for the first batch of a start, then counting up.
    pub sequence: u64,
    /// At most [`UsageBatch::MAX_EVENTS`].
    pub events: Vec<UsageEvent>,
}

impl UsageBatch {
    /// How many events a gateway puts into a batch, and control accepts.
    pub const MAX_EVENTS: usize = 500;
}

/// What control did with a batch.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct UsageReply {
    /// Events stored now.
    pub accepted: u64,
    /// Events left out: of principals or models that never existed, or that
    /// cannot be read or stored.
    pub dropped: u64,
    /// The batch was stored before: nothing was done.
    #[serde(default)]
    pub duplicate: bool,
}

/// One attributable request: answered by a backend, or refused by the gateway.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct UsageEvent {
    /// Who asked.
    pub principal_id: PrincipalId,
    /// With which key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key_id: Option<KeyId>,
    /// The concrete model that answered, or for which it was refused.
    pub model: ModelName,
    /// The name asked for, where it differs from `model`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub requested_model: Option<ModelName>,
    /// The endpoint's path below `/v1`, as `/chat/completions`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub endpoint: Option<Cow<'static, str>>,
    /// The request's id, as its client and its backend know it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub request_id: Option<String>,
    /// How often a backend was asked, retries and failovers included.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attempts: Option<u32>,
    /// Tokens of the prompt; 0 where they are neither reported nor estimated.
    pub prompt_tokens: Tokens,
    /// Tokens of the answer; 0 where they are neither reported nor estimated.
    pub completion_tokens: Tokens,
    /// Those of the prompt that came from the backend's cache, where it said so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cached_tokens: Option<Tokens>,
    /// Those of the answer that were spent on reasoning, where the backend said
    /// so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reasoning_tokens: Option<Tokens>,
    /// Those of the prompt that were written to the backend's cache.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cache_write_tokens: Option<Tokens>,
    /// Those of the prompt that are sound.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub audio_prompt_tokens: Option<Tokens>,
    /// Those of the answer that are sound.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub audio_completion_tokens: Option<Tokens>,
    /// Images of the answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub images: Option<u32>,
    /// Characters that were read aloud.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub input_characters: Option<u64>,
    /// Sound that was transcribed, in milliseconds, where the backend said so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub audio_ms: Option<u64>,
    /// Sound that was sent or answered, in bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub audio_bytes: Option<u64>,
    /// Whether the counts are the backend's own, or those of a refusal: unknown
    /// is not zero.
    #[serde(default = "yes")]
    pub usage_reported: bool,
    /// The counts are the gateway's estimate, since the answer did not say them:
    /// it never did, it broke off, or its client left before. Never together with
    /// `usage_reported`.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub estimated: bool,
    /// Answered from the gateway's cache: the counts are those of the answer
    /// that was kept, and cost nothing.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub cached: bool,
    /// What the client's `metadata` said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metadata: Option<Metadata>,
    /// Why the gateway refused; absent for everything a backend answered.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refusal: Option<RefusalKind>,
    /// When the request arrived.
    pub at: Timestamp,
    /// From arrival to the end of the answer, milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub duration_ms: Option<u32>,
    /// From arrival to the first event of a stream, milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ttft_ms: Option<u32>,
    /// The status that the client saw; 499 when it left before its answer was
    /// complete.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<u16>,
    /// What the provider said that the request cost.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cost_micros: Option<Micros>,
}

fn yes() -> bool {
    true
}

/// Why the gateway itself refused an attributable request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RefusalKind {
    /// 403: no candidate is granted.
    Authorisation,
    /// 429: a rate or concurrency limit.
    RateLimit,
    /// 402: a budget is spent.
    Budget,
    /// 502 or 504: no backend answered.
    NoBackend,
    /// 503: the gateway sheds load.
    Overload,
    /// One that this release does not know.
    #[serde(other)]
    Unknown,
}
