use std::borrow::Cow;

use serde::{Deserialize, Serialize};

use crate::{BudgetId, KeyId, Metadata, Micros, ModelName, PrincipalId, Timestamp, Tokens};

/// A batch of usage events with its idempotency key. The gateway seals a batch
/// when it first sends it, and repeats it unchanged until it is acknowledged.
///
/// Invariant: within one (`replica`, `boot_id`) batches are sent one at a time
/// and `sequence` only grows, so that one high-water mark detects repetitions.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct UsageBatch {
    /// The gateway's name (its pod's name).
    pub replica: String,
    /// A random ID for each start of the gateway.
    pub boot_id: String,
    /// 1 for the first batch of a start, then increasing.
    pub sequence: u64,
    /// At most [`UsageBatch::MAX_EVENTS`].
    pub events: Vec<UsageEvent>,
    /// What these events added to the amounts that the gateway reports as used of
    /// budgets ([`BudgetUsage`](crate::BudgetUsage)), summed by window. The control
    /// plane may charge other amounts, for example by newer prices. At most
    /// [`UsageBatch::MAX_SETTLED`]; `None` from a gateway that does not report them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub settled: Option<Vec<BudgetSettlement>>,
}

impl UsageBatch {
    /// Maximum number of settled amounts: each event has at most a budget of its
    /// principal, of that for the model, of its key and of its team.
    pub const MAX_SETTLED: usize = 4 * Self::MAX_EVENTS;

    /// Maximum number of events that a gateway sends and the control plane
    /// accepts.
    pub const MAX_EVENTS: usize = 500;
}

/// What a gateway settled of a budget in one window.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct BudgetSettlement {
    /// The budget.
    pub budget: BudgetId,
    /// The start of the window.
    pub window_start: Timestamp,
    /// Tokens.
    #[serde(default)]
    pub tokens: Tokens,
    /// Cost, by the prices that the gateway had.
    #[serde(default)]
    pub cost_micros: Micros,
}

/// The result of a batch.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct UsageReply {
    /// Events stored by this request.
    pub accepted: u64,
    /// Events that were not stored: of principals or models that never existed,
    /// or unreadable.
    pub dropped: u64,
    /// Whether the batch was stored before; then nothing was done.
    #[serde(default)]
    pub duplicate: bool,
}

/// One attributable request, served by a backend or refused by the gateway.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct UsageEvent {
    /// The principal that sent it.
    pub principal_id: PrincipalId,
    /// The key that it was sent with.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key_id: Option<KeyId>,
    /// The concrete model that served it, or for which it was refused.
    pub model: ModelName,
    /// The requested name, if it differs from `model`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub requested_model: Option<ModelName>,
    /// The endpoint's path below `/v1`, as `/chat/completions`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub endpoint: Option<Cow<'static, str>>,
    /// The request ID, as sent to client and backend.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub request_id: Option<String>,
    /// The number of attempts, including retries and failovers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attempts: Option<u32>,
    /// Tokens of the prompt; 0 if neither reported nor estimated.
    pub prompt_tokens: Tokens,
    /// Tokens of the response; 0 if neither reported nor estimated.
    pub completion_tokens: Tokens,
    /// Prompt tokens read from the backend's cache, if reported.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cached_tokens: Option<Tokens>,
    /// Reasoning tokens of the response, if reported.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reasoning_tokens: Option<Tokens>,
    /// Prompt tokens written to the backend's cache.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cache_write_tokens: Option<Tokens>,
    /// Audio tokens of the prompt.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub audio_prompt_tokens: Option<Tokens>,
    /// Audio tokens of the response.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub audio_completion_tokens: Option<Tokens>,
    /// Images of the response.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub images: Option<u32>,
    /// Characters of text converted to speech.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub input_characters: Option<u64>,
    /// Transcribed audio in milliseconds, if reported.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub audio_ms: Option<u64>,
    /// Audio in request or response, in bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub audio_bytes: Option<u64>,
    /// Whether the counts were reported by the backend, or are those of a
    /// refusal: unknown is not zero.
    #[serde(default = "yes")]
    pub usage_reported: bool,
    /// Whether the counts are estimated by the gateway, since the response did
    /// not report them, was aborted, or the client disconnected. Never together
    /// with `usage_reported`.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub estimated: bool,
    /// Served from the gateway's cache: the counts are those of the cached
    /// response, and cost nothing.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub cached: bool,
    /// The client's `metadata`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metadata: Option<Metadata>,
    /// The reason of a refusal; absent for everything that a backend served.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refusal: Option<RefusalKind>,
    /// When the request arrived.
    pub at: Timestamp,
    /// From arrival to the end of the response, milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub duration_ms: Option<u32>,
    /// From arrival to the first event of a stream, milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ttft_ms: Option<u32>,
    /// The status that the client received; 499 if it disconnected before the
    /// response was complete.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<u16>,
    /// The cost reported by the provider.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cost_micros: Option<Micros>,
}

fn yes() -> bool {
    true
}

/// Why the gateway refused an attributable request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RefusalKind {
    /// 403: the caller may use no candidate.
    Authorisation,
    /// 429: a rate or concurrency limit.
    RateLimit,
    /// 402: a budget is spent.
    Budget,
    /// 502 or 504: no backend responded.
    NoBackend,
    /// 503: the gateway sheds load.
    Overload,
    /// A kind that this release does not know.
    #[serde(other)]
    Unknown,
}
