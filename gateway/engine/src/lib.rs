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
//! They read one immutable [`Tables`], built from a snapshot away from the
//! request path. Time is a parameter: nothing here reads a clock.

pub mod cache;
#[cfg(test)]
mod fixture;
pub mod identify;
pub mod pricing;
pub mod refusal;
pub mod reserve;
pub mod route;
pub mod tables;
pub mod window;

pub use cache::{
    Audience, Bounds, Caching, Capture, Entry, Key, KeyMaker, Occupancy, ResponseCache,
};
pub use identify::{Caller, Identified, identify};
pub use refusal::{Category, Refusal};
pub use reserve::{
    Accounts, Claim, Limited, Rate, Rates, Reservation, Scope, Spent, Used, What, reserve,
};
pub use route::{
    Ask, Backend, Boundary, Chain, Demoted, Explanation, HeaderFields, InFlight,
    InvalidHealthCheck, InvalidTemplate, Live, ModelSkipped, NoPlace, Origin, PathTemplate, Pick,
    Pool, Probe, Resolved, RuleSkipped, Slot, Tuning, Waiting, check_health_check, granted_models,
    is_reserved_header, resolve, route,
};
pub use tables::{Built, InvalidSnapshot, LeftOut, Principal, Tables};
pub use window::{Span, UnknownTimeZone, Window};
