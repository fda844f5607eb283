//! What goes back to control: usage, health, and what was taken of limits. Nothing here is waited for by
//! a request.

mod backlog;
#[cfg(test)]
mod fixture;
mod frozen;
mod health;
mod queue;
mod reconcile;
mod spill;
mod usage;

pub(crate) use backlog::Backlog;
pub(crate) use frozen::BatchIdentity;
pub(crate) use health::HealthReporter;
pub(crate) use queue::{UsageQueue, UsageReceiver, usage_queue};
pub(crate) use reconcile::{LimitsStateSource, Reconciler};
pub(crate) use usage::UsageReporter;
