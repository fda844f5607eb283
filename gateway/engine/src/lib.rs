//! Every decision about a request, and no I/O.
//!
//! A request walks the rooms in this order, and each is a function from its
//! input to the next step or a [`Refusal`]:
//!
//! | room | question |
//! | --- | --- |
//! | [`identify`] | who is asking? |
//! | [`route`] | which model, which backend, and may this caller use it? |
//! | [`reserve`](mod@reserve) | have they any allowance left? |
//! | [`cache`] | has this been answered already? |
//!
//! What a request costs is said in one place for both planes: [`pricing`].
//!
//! They read one immutable [`RoutingState`], built from a snapshot away from the
//! request path. Time is a parameter: nothing here reads a clock.

pub mod cache;
#[cfg(test)]
mod fixture;
pub mod identify;
pub mod pricing;
pub mod refusal;
pub mod reserve;
pub mod route;
pub mod state;
pub mod window;

pub use cache::{
    CacheKey, CacheKeyBuilder, CacheLimits, CacheScope, CacheUsage, CachedResponse, ModelCaching,
    ResponseCache, ResponseCapture,
};
pub use identify::{Caller, Identified, identify};
pub use refusal::{Category, Refusal};
pub use reserve::{
    Accounts, ActualUsage, BudgetKind, Cost, LimitKind, LimitScope, RateLimit, RateLimited,
    RateLimits, Reservation, reserve,
};
pub use route::{
    Backend, BackendState, Boundary, Chain, Deprioritized, Explanation, HeaderFields, InFlight,
    InvalidHealthCheck, InvalidTemplate, ModelSkipped, NoSlot, Origin, PathTemplate, PickContext,
    Pool, Probe, Resolved, RouteQuery, RuleSkipped, Slot, SlotWait, Tuning, check_health_check,
    granted_models, is_reserved_header, resolve, route,
};
pub use state::{BuildOutcome, InvalidSnapshot, Principal, RoutingState, SkippedBackend};
pub use window::{Span, UnknownTimeZone, Window};
