//! The controller of `FastllmProxy` resources.
//!
//! `observe` gathers what the cluster says into one value, `plan` decides
//! everything as a pure function, `apply` carries the plan out by server-side
//! apply, `status` says what is there afterwards. `controller` is the loop
//! around them, `lease` decides which replica runs it.

pub mod apply;
pub mod build;
pub mod config;
pub mod controller;
pub mod error;
pub mod events;
#[cfg(test)]
mod fake_cluster;
pub mod hash;
pub mod lease;
pub mod metrics;
pub mod names;
pub mod observe;
pub mod plan;
pub mod preflight;
pub mod problem;
pub mod secrets;
pub mod serve;
pub mod status;
pub mod tasks;
