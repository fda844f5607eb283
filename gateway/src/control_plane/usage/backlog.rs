use std::collections::VecDeque;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use fastllm_contract::{UsageBatch, UsageEvent};
use fastllm_process::back_off::{self, BackOff};
use parking_lot::Mutex;
use tokio::task::spawn_blocking;
use tokio::time::{Instant, sleep};

use super::SpillConfig;
use super::queue::{HIGH_MARK, UsageReceiver};
use super::sealed_batch::{BatchIdentity, SealedBatch};
use super::spill::{Spill, SpillContents, SpillError};
use crate::telemetry::{DropReason, Metrics};

/// The longest that an event waits for others before it is sent.
const FLUSH_EVERY: Duration = Duration::from_secs(5);

/// How often it is looked for further events: to be woken by each of them would
/// cost the threads that serve requests a system call for each. They wake it
/// where many wait.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// So many events wait in memory before full batches go to the disk: enough for
/// a control plane that is only slow, and few to lose in a crash.
const MARK: usize = 2 * UsageBatch::MAX_EVENTS;

/// A batch that is answered sooner is no reason to write to the disk.
const SLOW: Duration = Duration::from_secs(1);

/// How long a file that could not be written is left alone.
const RETRY_SPILL: Duration = Duration::from_secs(5);

/// How long one that could not be read is left alone: at first, and at most.
const FIRST_REREAD: Duration = Duration::from_secs(1);
const LAST_REREAD: Duration = Duration::from_secs(30);

/// A file that could not be read for so long may be given up, once newer usage
/// would be lost for it.
const UNREADABLE: Duration = Duration::from_mins(10);

/// So many batches are written to the disk before it is waited for: that takes
/// much longer than to write them.
const AT_ONCE: usize = 8;

/// What control has not taken yet, oldest first.
///
/// Invariant: what is in the spill is older than what is frozen in memory, and
/// that is older than what waits in the queues; nothing changes places. So the
/// batches of one start reach control in the order of their numbers.
#[derive(Debug)]
pub(crate) struct Backlog {
    receiver: UsageReceiver,
    identity: BatchIdentity,
    sealed: VecDeque<SealedBatch>,
    spill: Option<SpillState>,
    metrics: Arc<Metrics>,
}

#[derive(Debug)]
struct SpillState {
    path: PathBuf,
    file: Arc<Mutex<Spill>>,
    contents: SpillContents,
    is_open: bool,
    /// Since it has failed or was full.
    not_before: Option<Instant>,
    rereads: BackOff,
    /// Since when nothing that it holds could be read.
    unread_since: Option<Instant>,
}

/// What is to be done next.
#[derive(Debug)]
pub(super) enum NextBatch {
    Send(SealedBatch),
    /// Nothing waits that is frozen.
    Gather,
    /// What is oldest cannot be read before then, and nothing else may be sent.
    Wait(Instant),
}

impl Backlog {
    /// Without `spill`, all usage stays in memory.
    pub(crate) fn new(
        receiver: UsageReceiver,
        identity: BatchIdentity,
        spill: Option<SpillConfig>,
        metrics: Arc<Metrics>,
    ) -> Self {
        let spill = spill.map(|SpillConfig { path, max_bytes }| SpillState {
            file: Arc::new(Mutex::new(Spill::new(path.clone(), max_bytes))),
            path,
            contents: SpillContents::default(),
            is_open: false,
            not_before: None,
            rereads: back_off::Config::new(FIRST_REREAD, LAST_REREAD).build(),
            unread_since: None,
        });
        Self {
            receiver,
            identity,
            sealed: VecDeque::new(),
            spill,
            metrics,
        }
    }

    /// The batch that is to be sent next, if there is one.
    pub(super) async fn next(&mut self) -> NextBatch {
        self.open().await;
        while let Some(spill) = self
            .spill
            .as_mut()
            .filter(|spill| spill.contents.events > 0)
        {
            if let (false, Some(due)) = (spill.is_open, spill.not_before) {
                if !self.may_give_up() {
                    return NextBatch::Wait(due);
                }
                self.give_up().await;
                break;
            }
            match self.with_file(Spill::oldest).await {
                Some(Ok(batch)) => {
                    self.record_read();
                    if let Some(batch) = batch {
                        return NextBatch::Send(batch);
                    }
                }
                Some(Err(error)) => self.record_read_error(&error),
                // The process ends.
                None => return NextBatch::Wait(Instant::now() + FIRST_REREAD),
            }
        }
        self.sealed
            .front()
            .cloned()
            .map_or(NextBatch::Gather, NextBatch::Send)
    }

    /// The batch that was to be sent next need not be sent any more.
    pub(super) async fn done(&mut self) {
        if !self.has_spilled() {
            self.sealed.pop_front();
            return;
        }
        match self.with_file(Spill::done).await {
            Some(Err(error)) => self.record_read_error(&error),
            _ if !self.has_spilled() => self.set_drop_reason(None),
            _ => {}
        }
    }

    /// Lets a file that could not be read be read at once.
    pub(super) fn retry_read_now(&mut self) {
        if let Some(spill) = &mut self.spill {
            spill.not_before = None;
        }
    }

    /// Waits for a first event, then until a batch is full or time is up. Safe
    /// to cancel, and what was gathered is in `batch`.
    pub(super) async fn gather(&mut self, batch: &mut Vec<UsageEvent>) {
        let since = self.receiver.take(batch).await;
        let due = since + FLUSH_EVERY;
        while batch.len() < UsageBatch::MAX_EVENTS && Instant::now() < due {
            sleep(LOOK_EVERY).await;
            self.receiver.drain_into(batch);
        }
    }

    /// Makes batches of what was gathered, topped up with what waits; false where
    /// that is nothing.
    pub(super) fn seal(&mut self, mut batch: Vec<UsageEvent>) -> bool {
        self.receiver.drain_into(&mut batch);
        let is_some = !batch.is_empty();
        let lost = self.identity.seal(batch, &mut self.sealed);
        self.metrics.usage_lost(DropReason::BatchRefused, lost);
        is_some
    }

    /// Ready while a batch that is being sent since `began` holds up so many
    /// events that they should go to the disk; never without a spill.
    pub(super) async fn wait_for_pressure(&self, began: Instant) {
        if self.spill.is_none() {
            return std::future::pending().await;
        }
        loop {
            self.receiver
                .wait_for_many(Instant::now() + LOOK_EVERY)
                .await;
            if self.is_under_pressure(Instant::now() >= began + SLOW) {
                return;
            }
        }
    }

    /// Puts what waits to the disk, as far as it fills batches, where many wait
    /// behind others that are there already, or too many wait.
    pub(super) async fn spill_if_needed(&mut self) {
        if self.is_under_pressure(self.has_spilled()) {
            self.spill().await;
        }
    }

    /// Whether so many events wait that they should go to the disk, if that can
    /// be; fewer are enough where they wait `long`.
    fn is_under_pressure(&self, long: bool) -> bool {
        let mark = if long { MARK } else { HIGH_MARK };
        let spill = self.spill.as_ref();
        let may = spill.is_some_and(|spill| {
            let due = |at| Instant::now() >= at;
            // Another start's batches may be in a file that is not open yet, and
            // older than the one that is being sent.
            spill.is_open && spill.not_before.is_none_or(due)
        });
        may && self.receiver.len() >= mark
    }

    /// Puts what is frozen and what waits to the disk, as far as it fills
    /// batches. What has no room there stays in memory.
    pub(super) async fn spill(&mut self) {
        loop {
            while self.sealed.len() < AT_ONCE && self.receiver.len() >= UsageBatch::MAX_EVENTS {
                self.seal(Vec::new());
            }
            let all = self.spill_frozen().await;
            if !all || self.receiver.len() < UsageBatch::MAX_EVENTS {
                return;
            }
        }
    }

    /// The gateway ends: everything goes to the disk, or is lost.
    pub(super) async fn flush_remaining(&mut self) {
        while self.seal(Vec::new()) {}
        if self.sealed.is_empty() {
            return;
        }
        let _all = self.spill_frozen().await;
        let lost = self
            .sealed
            .iter()
            .map(|batch| u64::from(batch.events))
            .sum();
        if lost > 0 {
            tracing::warn!(events = lost, "usage could not be sent before the end");
            self.metrics.usage_lost(DropReason::Shutdown, lost);
        }
    }

    fn has_spilled(&self) -> bool {
        self.spill
            .as_ref()
            .is_some_and(|spill| spill.contents.events > 0)
    }

    /// Puts the frozen batches to the disk; true where it has taken all.
    async fn spill_frozen(&mut self) -> bool {
        let batches: Vec<SealedBatch> = self.sealed.iter().cloned().collect();
        let count = batches.len();
        let Some(appended) = self.with_file(move |spill| spill.append(&batches)).await else {
            return false;
        };
        let reason = match appended {
            Ok(appended) => {
                self.sealed.drain(..appended.min(count));
                (appended < count).then_some(DropReason::SpillFull)
            }
            Err(error) => {
                self.warn(&error);
                Some(DropReason::SpillFailed)
            }
        };
        self.set_drop_reason(reason);
        reason.is_none()
    }

    /// What is lost from now on is lost since the file is full or unusable, if
    /// it is.
    fn set_drop_reason(&mut self, reason: Option<DropReason>) {
        self.receiver
            .set_drop_reason(reason.unwrap_or(DropReason::QueueFull));
        if let Some(spill) = &mut self.spill {
            spill.not_before = reason.map(|_| Instant::now() + RETRY_SPILL);
        }
    }

    /// Opens the file, unless it is open or was left alone: an earlier start may
    /// have left something.
    async fn open(&mut self) {
        let due = self.spill.as_ref().is_some_and(|spill| {
            let due = |at| Instant::now() >= at;
            !spill.is_open && spill.not_before.is_none_or(due)
        });
        if !due {
            return;
        }
        match self.with_file(Spill::open).await {
            Some(Ok(())) => {
                self.set_drop_reason(None);
                if !self.has_spilled() {
                    self.record_read();
                }
            }
            Some(Err(error)) => self.record_read_error(&error),
            None => {}
        }
    }

    fn record_read(&mut self) {
        if let Some(spill) = &mut self.spill {
            spill.unread_since = None;
            spill.rereads.reset();
        }
    }

    /// The file is closed by now, and looked at again later.
    fn record_read_error(&mut self, error: &SpillError) {
        self.warn(error);
        self.receiver.set_drop_reason(DropReason::SpillFailed);
        if let Some(spill) = &mut self.spill {
            let now = Instant::now();
            spill.unread_since.get_or_insert(now);
            spill.not_before = Some(now + spill.rereads.next_delay());
        }
    }

    /// Whether newer usage shall not wait any longer for what the file holds.
    fn may_give_up(&self) -> bool {
        let spill = self.spill.as_ref();
        let since = spill.and_then(|spill| spill.unread_since);
        since.is_some_and(|since| since.elapsed() >= UNREADABLE) && self.receiver.is_full()
    }

    /// Its batches come behind newer ones if they can be read after all: control
    /// takes those of this start for repetitions then, and stores none twice.
    async fn give_up(&mut self) {
        if let Some(Ok(lost)) = self.with_file(|spill| Ok(spill.give_up())).await {
            tracing::error!(events = lost, "usage in the spill cannot be read");
            self.metrics.usage_lost(DropReason::SpillFailed, lost);
        }
    }

    fn warn(&self, error: &SpillError) {
        let path = self.spill.as_ref().map(|spill| spill.path.display());
        let path = path.map(tracing::field::display);
        tracing::warn!(path, %error, "the usage spill cannot be used");
    }

    /// Does something with the file where that holds up nobody; nothing where
    /// there is none.
    async fn with_file<R: Send + 'static>(
        &mut self,
        work: impl FnOnce(&mut Spill) -> Result<R, SpillError> + Send + 'static,
    ) -> Option<Result<R, SpillError>> {
        let file = Arc::clone(&self.spill.as_ref()?.file);
        let done = spawn_blocking(move || {
            let mut spill = file.lock();
            let result = work(&mut spill);
            (
                result,
                spill.contents(),
                spill.is_open(),
                spill.take_damaged(),
            )
        });
        let (result, contents, is_open, damaged) = done.await.ok()?;
        self.metrics.usage_lost(DropReason::SpillDamaged, damaged);
        self.metrics.usage_spilled(contents.events, contents.bytes);
        if damaged > 0 {
            tracing::warn!(events = damaged, "usage in the spill was damaged");
        }
        let spill = self.spill.as_mut()?;
        (spill.contents, spill.is_open) = (contents, is_open);
        Some(result)
    }
}

#[cfg(test)]
mod tests;
