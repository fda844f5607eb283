use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use fastllm_contract::UsageReply;
use fastllm_process::back_off;
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;

use super::backlog::{Backlog, NextBatch};
use super::sealed_batch::SealedBatch;
use crate::control_plane::client::{ControlClient, ControlError};
use crate::telemetry::{DropReason, Metrics};

/// The timeout of one post.
const POST_TIMEOUT: Duration = Duration::from_secs(10);

/// The waits between two posts of one batch: the first, the longest, and the
/// longest during shutdown.
const INITIAL_BACK_OFF: Duration = Duration::from_millis(500);
const MAX_BACK_OFF: Duration = Duration::from_secs(30);
const LAST_WAIT: Duration = Duration::from_secs(1);

/// Sends usage events to the control plane in batches, one at a time.
///
/// Invariant: a batch is sealed when it is first sent, and is resent unchanged
/// under its sequence number until control has responded, so that it is stored
/// once.
#[derive(Debug)]
pub(crate) struct UsageReporter {
    pub(crate) client: ControlClient,
    pub(crate) backlog: Backlog,
    pub(crate) metrics: Arc<Metrics>,
}

/// The stages of shutdown.
struct ShutdownSignals {
    /// No new events arrive after this.
    stop: CancellationToken,
    /// Usage that is not sent by then is not sent by this process.
    deadline_passed: CancellationToken,
}

/// The outcome of one post.
enum PostOutcome {
    Stored { not_stored: u64 },
    Refused(u16),
    Failed(ControlError),
}

impl UsageReporter {
    /// Runs until `stop`, then sends the remaining usage until
    /// `deadline_passed`; what is left then is spilled, if possible.
    pub(crate) async fn run(mut self, stop: CancellationToken, deadline_passed: CancellationToken) {
        let signals = ShutdownSignals {
            stop,
            deadline_passed,
        };
        while !signals.deadline_passed.is_cancelled() {
            match self.backlog.next().await {
                NextBatch::Send(batch) => {
                    self.send_until_accepted(batch, &signals).await;
                    self.backlog.spill_if_needed().await;
                    continue;
                }
                NextBatch::Wait(until) => {
                    self.pause(until, &signals).await;
                    continue;
                }
                NextBatch::Gather => {}
            }
            let mut gathered = Vec::new();
            tokio::select! {
                () = self.backlog.gather(&mut gathered) => {}
                () = signals.stop.cancelled() => {}
            }
            if !self.backlog.seal(gathered) && signals.stop.is_cancelled() {
                return;
            }
        }
        self.backlog.flush_remaining().await;
    }

    /// Sends the oldest batch with as many retries as necessary, until the
    /// deadline.
    async fn send_until_accepted(&mut self, batch: SealedBatch, signals: &ShutdownSignals) {
        let started = Instant::now();
        let mut back_off = back_off::Config::new(INITIAL_BACK_OFF, MAX_BACK_OFF).build();
        let mut warned = false;
        loop {
            let outcome = {
                let mut post = pin!(post(self.client.clone(), batch.body.clone()));
                loop {
                    tokio::select! {
                        biased;
                        outcome = &mut post => break outcome,
                        () = signals.deadline_passed.cancelled() => return,
                        () = self.backlog.wait_for_pressure(started) => self.backlog.spill().await,
                    }
                }
            };
            let error = match outcome {
                PostOutcome::Failed(error) => error,
                settled => {
                    self.count(&settled, u64::from(batch.events));
                    return self.backlog.done().await;
                }
            };
            if !std::mem::replace(&mut warned, true) {
                tracing::warn!(%error, "usage report failed; retrying");
            }
            self.wait(back_off.next_delay(), started, signals).await;
            if signals.deadline_passed.is_cancelled() {
                return;
            }
        }
    }

    /// Waits for an unreadable spill file; only briefly during shutdown.
    async fn pause(&mut self, until: Instant, signals: &ShutdownSignals) {
        let stopped = signals.stop.is_cancelled();
        let last = Instant::now() + LAST_WAIT;
        tokio::select! {
            () = sleep_until(if stopped { until.min(last) } else { until }) => {}
            () = signals.stop.cancelled(), if !stopped => {}
            () = signals.deadline_passed.cancelled() => {}
        }
        if signals.stop.is_cancelled() {
            self.backlog.retry_read_now();
        }
    }

    fn count(&self, outcome: &PostOutcome, events: u64) {
        match outcome {
            PostOutcome::Stored { not_stored } => {
                self.metrics.usage_lost(DropReason::NotStored, *not_stored);
            }
            PostOutcome::Refused(status) => {
                tracing::error!(status, events, "the control plane rejected a usage batch");
                self.metrics.usage_lost(DropReason::BatchRefused, events);
            }
            PostOutcome::Failed(_) => {}
        }
    }

    /// Waits before the next post; only briefly during shutdown.
    async fn wait(&mut self, wait: Duration, started: Instant, signals: &ShutdownSignals) {
        let stopped = signals.stop.is_cancelled();
        let wait = if stopped { wait.min(LAST_WAIT) } else { wait };
        let until = Instant::now() + wait;
        loop {
            tokio::select! {
                () = sleep_until(until) => return,
                () = signals.stop.cancelled(), if !stopped => return,
                () = signals.deadline_passed.cancelled() => return,
                () = self.backlog.wait_for_pressure(started) => self.backlog.spill().await,
            }
        }
    }
}

async fn post(client: ControlClient, body: Bytes) -> PostOutcome {
    match client.post("usage", body, POST_TIMEOUT).await {
        Ok((200, reply)) => match serde_json::from_slice::<UsageReply>(&reply) {
            Ok(reply) => PostOutcome::Stored {
                not_stored: reply.dropped,
            },
            Err(error) => PostOutcome::Failed(ControlError::Unreadable(error.to_string())),
        },
        Ok((status @ (400 | 413 | 415 | 422), _)) => PostOutcome::Refused(status),
        Ok((status, _)) => PostOutcome::Failed(ControlError::Status(status)),
        Err(error) => PostOutcome::Failed(error),
    }
}
