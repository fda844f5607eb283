//! The controller of `FastllmProxy` resources.
//!
//! `observe` reads the state of the cluster, `plan` decides on the steps as a pure
//! function, `apply` executes them by server-side apply, and `status` reports the
//! result. `controller` triggers reconciliations; `lease` elects the replica that
//! runs it.

pub mod apply;
pub mod build;
pub mod client;
pub mod config;
pub mod controller;
pub mod definition;
pub mod error;
pub mod events;
#[cfg(test)]
mod fake_cluster;
pub mod hash;
pub mod health;
pub mod lease;
pub mod metrics;
pub mod names;
pub mod object;
pub mod observe;
pub mod pacing;
pub mod plan;
pub mod preflight;
pub mod problem;
pub mod redactor;
pub mod scaling;
pub mod secrets;
pub mod serve;
pub mod status;
pub mod stored;
pub mod tasks;
