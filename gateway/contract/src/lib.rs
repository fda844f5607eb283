//! What the two planes of FastLLM Proxy say to each other, and the small types
//! that both speak.
//!
//! Control builds a [`Snapshot`] (everything a gateway needs to decide about a
//! request, pre-flattened), tells how things stand ([`Standing`]), and takes back
//! [`UsageBatch`]es, [`HealthReport`]s and [`Reconcile`] reports. All of it is JSON over HTTP under the proxy token.
//!
//! Invariant: unknown fields are ignored in both directions, and every field
//! added after a release has a default, so that any two releases can talk.

mod allowance;
mod backend;
mod health;
mod ids;
mod metadata;
mod routing;
mod secret;
mod snapshot;
mod standing;
mod usage;

pub use allowance::{Budget, Holder, Limits, ModelAllowance, Team, WindowLength};
pub use backend::{Backend, Concurrency, Dialect, HealthCheck, Protocol};
pub use health::{BackendHealth, HealthReport, ProcessCounters};
pub use ids::{
    BackendId, BudgetId, InvalidKeyHash, InvalidModelName, KeyHash, KeyId, Micros, ModelName,
    PrincipalId, TeamId, Timestamp, Tokens,
};
pub use metadata::{InvalidMetadata, Metadata, MetadataMembers, MetadataValue};
pub use routing::{
    PolicyKind, Rule, RuleCaller, RuleShape, SplitBy, Target, UnknownPolicy, VirtualModel,
};
pub use secret::Secret;
pub use snapshot::{
    FORMAT, KeyEntry, KeyMap, KeyShard, MissingPart, Model, Part, Principal, Snapshot, shard_prefix,
};
pub use standing::{
    BudgetShare, BudgetStanding, BudgetUse, Grant, LimitCount, LimitShare, ModelPrices, Prices,
    Reconcile, Reconciled, Standing,
};
pub use usage::{RefusalKind, UsageBatch, UsageEvent, UsageReply};
