use std::collections::VecDeque;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use fastllm_contract::UsageBatch;
use fastllm_process::back_off::{self, BackOff};
use parking_lot::Mutex;
use tokio::task::spawn_blocking;
use tokio::time::{Instant, sleep};

use super::SpillConfig;
use super::queue::{HIGH_MARK, QueuedUsage, UsageReceiver};
use super::sealed_batch::{BatchIdentity, SealedBatch};
use super::spill::{Spill, SpillContents, SpillError};
use crate::telemetry::{DropReason, Metrics};

/// The longest time that an event waits for its batch to fill.
const FLUSH_EVERY: Duration = Duration::from_secs(5);

/// How often the queues are checked. Waking the reporter for every event would
/// cost the request threads a system call each; they wake it only when many
/// events are queued.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// The number of events in memory above which full batches are spilled: enough
/// for a slow control plane, few to lose in a crash.
const MARK: usize = 2 * UsageBatch::MAX_EVENTS;

/// A batch that is accepted sooner does not cause a spill.
const SLOW: Duration = Duration::from_secs(1);

/// The wait before a spill file is used again after a failed write.
const RETRY_SPILL: Duration = Duration::from_secs(5);

/// The wait before a spill file is read again after a failure: the first, and
/// the longest.
const FIRST_REREAD: Duration = Duration::from_secs(1);
const LAST_REREAD: Duration = Duration::from_secs(30);

/// The age of a read failure after which the file may be abandoned if newer
/// usage would otherwise be lost.
const UNREADABLE: Duration = Duration::from_mins(10);

/// The number of batches that are written before a sync, which takes much longer
/// than the writes.
const BATCHES_PER_SYNC: usize = 8;

/// The usage that control has not accepted yet, oldest first.
///
/// Invariant: batches in the spill file are older than sealed batches in memory,
/// which are older than queued events; the order never changes. So the batches
/// of one start reach control in the order of their numbers.
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
    /// Set since the file failed or was full.
    not_before: Option<Instant>,
    rereads: BackOff,
    /// Since when the file cannot be read.
    unread_since: Option<Instant>,
}

/// The next step of the reporter.
#[derive(Debug)]
pub(super) enum NextBatch {
    Send(SealedBatch),
    /// No sealed batch is pending.
    Gather,
    /// The oldest batch cannot be read before this time, and no other may be
    /// sent.
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

    /// The next batch to send, if any.
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
                // The process is exiting.
                None => return NextBatch::Wait(Instant::now() + FIRST_REREAD),
            }
        }
        self.sealed
            .front()
            .cloned()
            .map_or(NextBatch::Gather, NextBatch::Send)
    }

    /// The next batch does not have to be sent any more.
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

    /// Allows an unreadable file to be read again at once.
    pub(super) fn retry_read_now(&mut self) {
        if let Some(spill) = &mut self.spill {
            spill.not_before = None;
        }
    }

    /// Waits for a first event, then until the batch is full or the time is
    /// over. Cancel-safe: gathered events are in `batch`.
    pub(super) async fn gather(&mut self, batch: &mut Vec<QueuedUsage>) {
        let since = self.receiver.take(batch).await;
        let due = since + FLUSH_EVERY;
        while batch.len() < UsageBatch::MAX_EVENTS && Instant::now() < due {
            sleep(LOOK_EVERY).await;
            self.receiver.drain_into(batch);
        }
    }

    /// Seals the gathered events, topped up from the queues; false if there are
    /// none.
    pub(super) fn seal(&mut self, mut batch: Vec<QueuedUsage>) -> bool {
        self.receiver.drain_into(&mut batch);
        let is_some = !batch.is_empty();
        let lost = self.identity.seal(batch, &mut self.sealed);
        self.metrics.usage_lost(DropReason::BatchRefused, lost);
        is_some
    }

    /// Ready once a batch in flight since `began` delays so many events that
    /// they should be spilled; never ready without a spill file.
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

    /// Spills full batches of queued events if older batches are spilled
    /// already, or too many events are queued.
    pub(super) async fn spill_if_needed(&mut self) {
        if self.is_under_pressure(self.has_spilled()) {
            self.spill().await;
        }
    }

    /// Whether the number of queued events requires a spill, if one is possible;
    /// fewer are sufficient if they wait `long`.
    fn is_under_pressure(&self, long: bool) -> bool {
        let mark = if long { MARK } else { HIGH_MARK };
        let spill = self.spill.as_ref();
        let may = spill.is_some_and(|spill| {
            let due = |at| Instant::now() >= at;
            // A file that is not open yet may hold batches of another start that
            // are older than the batch in flight.
            spill.is_open && spill.not_before.is_none_or(due)
        });
        may && self.receiver.len() >= mark
    }

    /// Spills sealed batches and full batches of queued events. What does not
    /// fit stays in memory.
    pub(super) async fn spill(&mut self) {
        loop {
            while self.sealed.len() < BATCHES_PER_SYNC
                && self.receiver.len() >= UsageBatch::MAX_EVENTS
            {
                self.seal(Vec::new());
            }
            let all = self.spill_frozen().await;
            if !all || self.receiver.len() < UsageBatch::MAX_EVENTS {
                return;
            }
        }
    }

    /// Spills everything at shutdown; what does not fit is lost.
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
            tracing::warn!(
                events = lost,
                "usage could not be sent before shutdown and was dropped"
            );
            self.metrics.usage_lost(DropReason::Shutdown, lost);
        }
    }

    fn has_spilled(&self) -> bool {
        self.spill
            .as_ref()
            .is_some_and(|spill| spill.contents.events > 0)
    }

    /// Spills the sealed batches; true if all were written.
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

    /// Sets the reason for later losses: the file is full or unusable, or
    /// neither.
    fn set_drop_reason(&mut self, reason: Option<DropReason>) {
        self.receiver
            .set_drop_reason(reason.unwrap_or(DropReason::QueueFull));
        if let Some(spill) = &mut self.spill {
            spill.not_before = reason.map(|_| Instant::now() + RETRY_SPILL);
        }
    }

    /// Opens the file unless it is open or in back-off: an earlier start may
    /// have left usage.
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

    /// The file is closed now, and is opened again later.
    fn record_read_error(&mut self, error: &SpillError) {
        self.warn(error);
        self.receiver.set_drop_reason(DropReason::SpillFailed);
        if let Some(spill) = &mut self.spill {
            let now = Instant::now();
            spill.unread_since.get_or_insert(now);
            spill.not_before = Some(now + spill.rereads.next_delay());
        }
    }

    /// Whether newer usage must no longer wait for the contents of the file.
    fn may_give_up(&self) -> bool {
        let spill = self.spill.as_ref();
        let since = spill.and_then(|spill| spill.unread_since);
        since.is_some_and(|since| since.elapsed() >= UNREADABLE) && self.receiver.is_full()
    }

    /// If its batches become readable later, they follow newer ones: control
    /// treats those of this start as duplicates and stores none twice.
    async fn give_up(&mut self) {
        if let Some(Ok(lost)) = self.with_file(|spill| Ok(spill.give_up())).await {
            tracing::error!(
                events = lost,
                "usage in the spill file cannot be read and is dropped"
            );
            self.metrics.usage_lost(DropReason::SpillFailed, lost);
        }
    }

    fn warn(&self, error: &SpillError) {
        let path = self.spill.as_ref().map(|spill| spill.path.display());
        let path = path.map(tracing::field::display);
        tracing::warn!(path, %error, "cannot use the usage spill file");
    }

    /// Runs an operation on the file on a blocking thread; nothing if there is
    /// no file.
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
            tracing::warn!(
                events = damaged,
                "usage in the spill file was damaged and is dropped"
            );
        }
        let spill = self.spill.as_mut()?;
        (spill.contents, spill.is_open) = (contents, is_open);
        Some(result)
    }
}

#[cfg(test)]
mod tests;
