//! What the two planes of FastLLM Proxy say to each other, and the small types
//! that both speak.
//!
//! Control builds a [`Snapshot`] (everything a gateway needs to decide about a
//! request, pre-flattened), tells how things stand ([`LimitsState`]), and takes back
//! [`UsageBatch`]es, [`HealthReport`]s and [`LimitReport`] reports. All of it is JSON over HTTP under the proxy token.
//!
//! Invariant: unknown fields are ignored in both directions, and every field
//! added after a release has a default, so that any two releases can talk.

mod allowance;
mod backend;
mod health;
mod ids;
mod limit_report;
mod limits_state;
mod metadata;
mod routing;
mod secret;
mod snapshot;
mod usage;

pub use allowance::{Budget, Limits, ModelAllowance, Subject, Team, WindowLength};
pub use backend::{Backend, Concurrency, HealthCheck, Protocol, RequestOptions};
pub use health::{BackendHealth, HealthReport, ProcessCounters};
pub use ids::{
    BackendId, BudgetId, InvalidKeyHash, InvalidModelName, KeyHash, KeyId, Micros, ModelName,
    PrincipalId, TeamId, Timestamp, Tokens,
};
pub use limit_report::{
    BudgetShare, BudgetUsage, Grant, LimitReport, LimitReportReply, LimitShare, LimitUsage,
};
pub use limits_state::{BudgetState, LimitsState, ModelPrices, Prices};
pub use metadata::{InvalidMetadata, Metadata, MetadataMembers, MetadataValue};
pub use routing::{
    PolicyKind, Rule, RuleCaller, RuleShape, SplitBy, Target, UnknownPolicy, VirtualModel,
};
pub use secret::Secret;
pub use snapshot::{
    FORMAT, KeyEntry, KeyMap, KeyShard, MissingSection, Model, Principal, Section, Snapshot,
    shard_prefix,
};
pub use usage::{RefusalKind, UsageBatch, UsageEvent, UsageReply};
