use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use fastllm_contract::{UsageBatch, UsageEvent, UsageReply};
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;

use super::BackOff;
use super::queue::Waiting;
use crate::link::{Link, LinkError};
use crate::telemetry::{DropReason, Metrics};

/// The longest that an event waits for others before it is sent.
const FLUSH_EVERY: Duration = Duration::from_secs(5);

/// How often it is looked for further events: to be woken by each of them would
/// cost the threads that serve requests a system call for each.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// Time limit of one post.
const POST_TIMEOUT: Duration = Duration::from_secs(10);

/// Waits between two posts of one batch: at first, at most, and at most once
/// the gateway is to end.
const FIRST_WAIT: Duration = Duration::from_millis(500);
const LONGEST_WAIT: Duration = Duration::from_secs(30);
const LAST_WAIT: Duration = Duration::from_secs(1);

/// Sends usage events to control in batches, one at a time.
///
/// Invariant: a batch is frozen when it is first sent, and repeated unchanged
/// under its sequence number until control has answered, so that it is stored
/// once.
#[derive(Debug)]
pub(crate) struct UsageReporter {
    pub(crate) link: Link,
    pub(crate) waiting: Waiting,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) replica: String,
    pub(crate) boot_id: Arc<str>,
    pub(crate) sequence: u64,
}

/// What became of one post.
enum Posted {
    Stored { not_stored: u64 },
    Refused(u16),
    Failed(LinkError),
}

impl UsageReporter {
    /// Runs until `stop`, then sends what is left until `late`.
    pub(crate) async fn run(mut self, stop: CancellationToken, late: CancellationToken) {
        let mut batch = Vec::new();
        while !stop.is_cancelled() {
            tokio::select! {
                () = self.gather(&mut batch) => {}
                () = stop.cancelled() => break,
            }
            let events = std::mem::take(&mut batch);
            self.send(events, &stop, &late).await;
        }
        loop {
            self.waiting.take_waiting(&mut batch);
            if batch.is_empty() {
                return;
            }
            self.send(std::mem::take(&mut batch), &stop, &late).await;
        }
    }

    /// Waits for a first event, then until the batch is full or time is up.
    async fn gather(&mut self, batch: &mut Vec<UsageEvent>) {
        while batch.is_empty() {
            self.waiting.take(batch).await;
        }
        let due = Instant::now() + FLUSH_EVERY;
        while batch.len() < UsageBatch::MAX_EVENTS && Instant::now() < due {
            sleep(LOOK_EVERY).await;
            self.waiting.take_waiting(batch);
        }
    }

    /// Sends one batch, for as long as it takes, but not beyond `late`.
    async fn send(
        &mut self,
        events: Vec<UsageEvent>,
        stop: &CancellationToken,
        late: &CancellationToken,
    ) {
        let count = events.len() as u64;
        self.sequence += 1;
        let batch = UsageBatch {
            replica: self.replica.clone(),
            boot_id: self.boot_id.to_string(),
            sequence: self.sequence,
            events,
        };
        let body = match serde_json::to_vec(&batch) {
            Ok(body) => Bytes::from(body),
            Err(error) => {
                tracing::error!(%error, "usage cannot be written as JSON");
                self.metrics.usage_lost(DropReason::BatchRefused, count);
                return;
            }
        };
        tokio::select! {
            biased;
            () = self.post_until_answered(body, count, stop) => {}
            () = late.cancelled() => {
                tracing::warn!(events = count, "usage could not be sent before the end");
                self.metrics.usage_lost(DropReason::Shutdown, count);
            }
        }
    }

    async fn post_until_answered(&self, body: Bytes, count: u64, stop: &CancellationToken) {
        let mut back_off = BackOff::new(FIRST_WAIT, LONGEST_WAIT);
        let mut said = false;
        loop {
            match self.post(body.clone()).await {
                Posted::Stored { not_stored } => {
                    self.metrics.usage_lost(DropReason::NotStored, not_stored);
                    return;
                }
                Posted::Refused(status) => {
                    tracing::error!(status, events = count, "control refuses a usage batch");
                    self.metrics.usage_lost(DropReason::BatchRefused, count);
                    return;
                }
                Posted::Failed(error) => {
                    if !std::mem::replace(&mut said, true) {
                        tracing::warn!(%error, "usage cannot be sent; trying again");
                    }
                    let wait = back_off.failed();
                    if stop.is_cancelled() {
                        sleep(wait.min(LAST_WAIT)).await;
                    } else {
                        // Little time is left once it is to end.
                        let _sooner = timeout(wait, stop.cancelled()).await;
                    }
                }
            }
        }
    }

    async fn post(&self, body: Bytes) -> Posted {
        match self.link.post("usage", body, POST_TIMEOUT).await {
            Ok((200, reply)) => match serde_json::from_slice::<UsageReply>(&reply) {
                Ok(reply) => Posted::Stored {
                    not_stored: reply.dropped,
                },
                Err(error) => Posted::Failed(LinkError::Unreadable(error.to_string())),
            },
            Ok((status @ (400 | 413), _)) => Posted::Refused(status),
            Ok((status, _)) => Posted::Failed(LinkError::Status(status)),
            Err(error) => Posted::Failed(error),
        }
    }
}
