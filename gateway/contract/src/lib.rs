//! The contract between the control plane and the gateways, and small types
//! that both use.
//!
//! The control plane builds a [`Snapshot`], everything that a gateway needs to
//! decide about a request with all references resolved, and publishes the
//! [`LimitsState`]. It receives [`UsageBatch`]es, [`HealthReport`]s and
//! [`LimitReport`]s. All of it is JSON over HTTP, authenticated by the proxy
//! token.
//!
//! Invariant: unknown members are ignored in both directions, and every member
//! added after a release has a default, so that any two releases interoperate.

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
    BudgetShare, BudgetUsage, ConcurrencyGrant, ConcurrencyUsage, Grant, LimitReport,
    LimitReportReply, LimitShare, LimitUsage,
};
pub use limits_state::{BudgetState, LimitsState, ModelPrices, Prices};
pub use metadata::{InvalidMetadata, Metadata, MetadataMembers, MetadataValue, TextList};
pub use routing::{
    PolicyKind, Rule, RuleCaller, RuleShape, SplitBy, Target, UnknownPolicy, VirtualModel,
};
pub use secret::Secret;
pub use snapshot::{
    FORMAT, Failover, KeyEntry, KeyMap, KeyShard, MissingSection, Model, Principal, Section,
    Snapshot, shard_prefix,
};
pub use usage::{BudgetSettlement, RefusalKind, UsageBatch, UsageEvent, UsageReply};
