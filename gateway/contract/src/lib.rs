//! What the two planes of FastLLM Proxy say to each other, and the small types
//! that both speak.
//!
//! Control builds a [`Snapshot`] (everything a gateway needs to decide about a
//! request, pre-flattened) and takes back [`UsageBatch`]es and
//! [`HealthReport`]s. All of it is JSON over HTTP under the proxy token.
//!
//! Invariant: unknown fields are ignored in both directions, and every field
//! added after a release has a default, so that any two releases can talk.

mod backend;
mod health;
mod ids;
mod routing;
mod secret;
mod snapshot;
mod usage;

pub use backend::{Backend, Concurrency, Dialect, HealthCheck, Protocol};
pub use health::{BackendHealth, HealthReport, ProcessCounters};
pub use ids::{
    BackendId, InvalidKeyHash, InvalidModelName, KeyHash, KeyId, Micros, ModelName, PrincipalId,
    Timestamp, Tokens,
};
pub use routing::{
    PolicyKind, Rule, RuleCaller, RuleShape, SplitBy, Target, UnknownPolicy, VirtualModel,
};
pub use secret::Secret;
pub use snapshot::{
    FORMAT, KeyEntry, KeyMap, KeyShard, MissingPart, Model, Part, Principal, Snapshot, shard_prefix,
};
pub use usage::{RefusalKind, UsageBatch, UsageEvent, UsageReply};
