use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use fastllm_contract::UsageReply;
use fastllm_process::back_off;
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;

use super::backlog::{Backlog, Next};
use super::frozen::Frozen;
use crate::link::{Link, LinkError};
use crate::telemetry::{DropReason, Metrics};

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
    pub(crate) backlog: Backlog,
    pub(crate) metrics: Arc<Metrics>,
}

/// When the gateway ends.
struct Ends {
    /// Nothing new comes from here on.
    stop: CancellationToken,
    /// What is not sent by then will not be by this process.
    late: CancellationToken,
}

/// What became of one post.
enum Posted {
    Stored { not_stored: u64 },
    Refused(u16),
    Failed(LinkError),
}

impl UsageReporter {
    /// Runs until `stop`, then sends what is left until `late`; what is left
    /// then is kept on disk, if anywhere.
    pub(crate) async fn run(mut self, stop: CancellationToken, late: CancellationToken) {
        let ends = Ends { stop, late };
        while !ends.late.is_cancelled() {
            match self.backlog.next().await {
                Next::Send(batch) => {
                    self.deliver(batch, &ends).await;
                    self.backlog.queue_up().await;
                    continue;
                }
                Next::Wait(until) => {
                    self.pause(until, &ends).await;
                    continue;
                }
                Next::Gather => {}
            }
            let mut gathered = Vec::new();
            tokio::select! {
                () = self.backlog.gather(&mut gathered) => {}
                () = ends.stop.cancelled() => {}
            }
            if !self.backlog.freeze(gathered) && ends.stop.is_cancelled() {
                return;
            }
        }
        self.backlog.end().await;
    }

    /// Sends the oldest batch, for as long as it takes, but not beyond the end.
    async fn deliver(&mut self, batch: Frozen, ends: &Ends) {
        let began = Instant::now();
        let mut back_off = back_off::Config::new(FIRST_WAIT, LONGEST_WAIT).build();
        let mut said = false;
        loop {
            let posted = {
                let mut post = pin!(post(self.link.clone(), batch.body.clone()));
                loop {
                    tokio::select! {
                        biased;
                        posted = &mut post => break posted,
                        () = ends.late.cancelled() => return,
                        () = self.backlog.pressed(began) => self.backlog.relieve().await,
                    }
                }
            };
            let error = match posted {
                Posted::Failed(error) => error,
                settled => {
                    self.count(&settled, u64::from(batch.events));
                    return self.backlog.done().await;
                }
            };
            if !std::mem::replace(&mut said, true) {
                tracing::warn!(%error, "usage cannot be sent; trying again");
            }
            self.wait(back_off.next_delay(), began, ends).await;
            if ends.late.is_cancelled() {
                return;
            }
        }
    }

    /// Waits for what is on the disk; little once the gateway is to end.
    async fn pause(&mut self, until: Instant, ends: &Ends) {
        let stopped = ends.stop.is_cancelled();
        let last = Instant::now() + LAST_WAIT;
        tokio::select! {
            () = sleep_until(if stopped { until.min(last) } else { until }) => {}
            () = ends.stop.cancelled(), if !stopped => {}
            () = ends.late.cancelled() => {}
        }
        if ends.stop.is_cancelled() {
            self.backlog.read_now();
        }
    }

    fn count(&self, posted: &Posted, events: u64) {
        match posted {
            Posted::Stored { not_stored } => {
                self.metrics.usage_lost(DropReason::NotStored, *not_stored);
            }
            Posted::Refused(status) => {
                tracing::error!(status, events, "control refuses a usage batch");
                self.metrics.usage_lost(DropReason::BatchRefused, events);
            }
            Posted::Failed(_) => {}
        }
    }

    /// Waits before the next post; little time is left once the gateway is to
    /// end.
    async fn wait(&mut self, wait: Duration, began: Instant, ends: &Ends) {
        let stopped = ends.stop.is_cancelled();
        let wait = if stopped { wait.min(LAST_WAIT) } else { wait };
        let until = Instant::now() + wait;
        loop {
            tokio::select! {
                () = sleep_until(until) => return,
                () = ends.stop.cancelled(), if !stopped => return,
                () = ends.late.cancelled() => return,
                () = self.backlog.pressed(began) => self.backlog.relieve().await,
            }
        }
    }
}

async fn post(link: Link, body: Bytes) -> Posted {
    match link.post("usage", body, POST_TIMEOUT).await {
        Ok((200, reply)) => match serde_json::from_slice::<UsageReply>(&reply) {
            Ok(reply) => Posted::Stored {
                not_stored: reply.dropped,
            },
            Err(error) => Posted::Failed(LinkError::Unreadable(error.to_string())),
        },
        Ok((status @ (400 | 413 | 415 | 422), _)) => Posted::Refused(status),
        Ok((status, _)) => Posted::Failed(LinkError::Status(status)),
        Err(error) => Posted::Failed(error),
    }
}
