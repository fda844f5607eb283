//! Usage on its way to control: queues that requests push into, sealed batches,
//! the spill file, and the task that posts them.

mod backlog;
#[cfg(test)]
mod fixture;
mod queue;
mod reporter;
mod sealed_batch;
mod spill;

pub(crate) use backlog::Backlog;
pub(crate) use queue::{UsageQueue, UsageReceiver, usage_queue};
pub(crate) use reporter::UsageReporter;
pub(crate) use sealed_batch::BatchIdentity;
