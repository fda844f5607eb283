//! Usage reporting: the queues that requests push into, sealed batches, the
//! spill file, and the task that posts batches.

mod backlog;
#[cfg(test)]
mod fixture;
mod queue;
mod reporter;
mod sealed_batch;
mod spill;

pub(crate) use backlog::Backlog;
pub(crate) use queue::{QueuedUsage, UsageQueue, UsageReceiver, usage_queue};
pub(crate) use reporter::UsageReporter;
pub(crate) use sealed_batch::BatchIdentity;

use std::path::PathBuf;

/// Spill file for usage that the control plane does not accept in time.
#[derive(Debug, Clone)]
pub(crate) struct SpillConfig {
    pub(crate) path: PathBuf,
    pub(crate) max_bytes: u64,
}
