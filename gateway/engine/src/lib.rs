//! Every decision about a request, without I/O.
//!
//! A request passes these functions in order. Each returns the input of the next
//! one, or a [`Refusal`]:
//!
//! | function | decides |
//! | --- | --- |
//! | [`identify()`] | which principal sent the request |
//! | [`route()`] | which models may serve it, in which order |
//! | [`reserve()`] | whether its limits and budgets admit it |
//! | [`ResponseCache::get`] | whether a cached response exists |
//! | [`Pool::acquire`] | which backend receives it |
//!
//! [`pricing`] computes the cost of a request for both planes.
//!
//! All of them read one immutable [`RoutingState`], built from a snapshot outside
//! the request path. Time is a parameter: no clock is read here.

pub mod accounts;
pub mod cache;
pub mod caller;
#[cfg(test)]
mod fixture;
mod hash;
pub mod identify;
pub mod pool;
pub mod pricing;
pub mod refusal;
pub mod reserve;
pub mod route;
pub mod state;
pub mod virtual_model;
pub mod window;

pub use accounts::Accounts;
pub use cache::{
    CacheKey, CacheKeyBuilder, CacheLimits, CacheScope, CacheUsage, CachedResponse, ModelCaching,
    ResponseCache, ResponseCapture,
};
pub use caller::{Caller, Identified, Principal, hash_key};
pub use identify::identify;
pub use pool::{
    Backend, BackendMetrics, BackendState, Boundary, EjectionReason, EndpointIndex, InFlight,
    InvalidBackend, InvalidHealthCheck, InvalidTemplate, NoSlot, Origin, PathTemplate, PickContext,
    Pool, Probe, SlotWait, Tuning, UpstreamRejection, check_health_check, is_credential_parameter,
    is_reserved_header, object_hash,
};
pub use refusal::{
    BudgetKind, Category, InvalidQuery, LimitKind, LimitScope, RateLimit, RateLimited, RateLimits,
    Refusal,
};
pub use reserve::{ActualUsage, Cost, Reservation, Settlement, reserve};
pub use route::{
    Chain, Deprioritized, Explanation, ModelSkipped, Resolved, granted_models, resolve, route,
};
pub use state::{BuildOutcome, InvalidSnapshot, RoutingState, SkippedBackend};
pub use virtual_model::{HeaderFields, RouteQuery, RuleSkipped};
pub use window::{Span, UnknownTimeZone, Window};
