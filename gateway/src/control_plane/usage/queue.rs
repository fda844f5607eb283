use std::cell::Cell;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::thread::available_parallelism;

use fastllm_contract::{UsageBatch, UsageEvent};
use fastllm_engine::Settlement;
use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::telemetry::{DropReason, Metrics};

/// The maximum number of queued billable events, besides those in thread
/// buffers.
pub(super) const BILLABLE: usize = 10_000;

/// The maximum number of queued refusals. They have a queue of their own, so
/// that many refusals displace no billable events.
const REFUSED: usize = 1_000;

/// The number of events of each kind that a thread flushes at once.
pub(super) const FLUSH_SIZE: usize = 50;

/// The number of billable events at which the reporter is woken.
pub(super) const HIGH_MARK: usize = BILLABLE / 2;

/// A usage event, and what its request added to budgets at this gateway.
#[derive(Debug, Clone)]
pub(crate) struct QueuedUsage {
    pub(crate) event: UsageEvent,
    pub(crate) settlement: Settlement,
}

/// Of a request without budgets.
impl From<UsageEvent> for QueuedUsage {
    fn from(event: UsageEvent) -> Self {
        Self {
            event,
            settlement: Settlement::default(),
        }
    }
}

/// The queues that requests push usage events into. Never waits; events that do
/// not fit are dropped and counted. Cheap to clone.
///
/// Each thread collects events in a buffer of its own and flushes it when it is
/// full, so that threads share state only once in [`FLUSH_SIZE`] requests; the
/// receiver drains the buffers, too.
#[derive(Debug, Clone)]
pub(crate) struct UsageQueue {
    /// `None` if events are not reported: only the access log records them.
    shared: Option<Arc<SharedQueue>>,
}

/// The receiving end of [`UsageQueue`].
#[derive(Debug)]
pub(crate) struct UsageReceiver {
    shared: Arc<SharedQueue>,
    /// When the queue was last empty.
    pub(super) emptied: Instant,
}

#[derive(Debug)]
struct SharedQueue {
    shards: Box<[ShardBuffer]>,
    flushed: Mutex<FlushedEvents>,
    /// The receiver sleeps until it is woken.
    receiver_waiting: AtomicBool,
    wake: Notify,
    /// The receiver is gone.
    closed: AtomicBool,
    drop_cause: DropCause,
    metrics: Arc<Metrics>,
}

/// The buffer of the threads with the same index, usually one thread; it has
/// cache lines of its own.
#[derive(Debug, Default)]
#[repr(align(128))]
struct ShardBuffer(Mutex<ShardEvents>);

#[derive(Debug, Default)]
struct ShardEvents {
    billable: Vec<QueuedUsage>,
    refused: Vec<QueuedUsage>,
}

#[derive(Debug, Default)]
struct FlushedEvents {
    billable: VecDeque<QueuedUsage>,
    refused: VecDeque<QueuedUsage>,
}

/// Why queued events are not drained.
#[derive(Debug, Default)]
struct DropCause(AtomicU8);

impl DropCause {
    const BY: [DropReason; 3] = [
        DropReason::QueueFull,
        DropReason::SpillFull,
        DropReason::SpillFailed,
    ];

    fn reason(&self) -> DropReason {
        let index = usize::from(self.0.load(Ordering::Relaxed));
        Self::BY
            .get(index)
            .copied()
            .unwrap_or(DropReason::QueueFull)
    }

    fn set(&self, reason: DropReason) {
        let index = Self::BY.iter().position(|by| *by == reason);
        let index = index.and_then(|index| u8::try_from(index).ok());
        self.0.store(index.unwrap_or(0), Ordering::Relaxed);
    }
}

/// Creates both ends of the usage queues.
pub(crate) fn usage_queue(metrics: &Arc<Metrics>) -> (UsageQueue, UsageReceiver) {
    let shards = available_parallelism().map_or(1, usize::from);
    let shared = Arc::new(SharedQueue {
        shards: (0..shards).map(|_| ShardBuffer::default()).collect(),
        flushed: Mutex::default(),
        receiver_waiting: AtomicBool::new(false),
        wake: Notify::new(),
        closed: AtomicBool::new(false),
        drop_cause: DropCause::default(),
        metrics: Arc::clone(metrics),
    });
    let queue = UsageQueue {
        shared: Some(Arc::clone(&shared)),
    };
    let emptied = Instant::now();
    (queue, UsageReceiver { shared, emptied })
}

impl UsageQueue {
    /// A queue for a gateway that does not report usage.
    pub(crate) const fn disabled() -> Self {
        Self { shared: None }
    }

    pub(crate) fn push(&self, usage: impl Into<QueuedUsage>) {
        if let Some(shared) = &self.shared {
            shared.push(usage.into());
        }
    }

    /// Measures the number of queued events, without keeping the queue alive.
    pub(crate) fn length(&self) -> impl Fn() -> usize + Send + Sync + use<> {
        let shared = self.shared.as_ref().map(Arc::downgrade);
        move || {
            let shared = shared.as_ref().and_then(Weak::upgrade);
            shared.map_or(0, |shared| shared.len())
        }
    }
}

impl SharedQueue {
    fn push(&self, usage: QueuedUsage) {
        let refused = usage.event.refusal.is_some();
        if self.closed.load(Ordering::Relaxed) || !self.enqueue(usage, refused) {
            let reason = if refused {
                DropReason::RefusedQueueFull
            } else {
                self.drop_cause.reason()
            };
            self.metrics.usage_lost(reason, 1);
            return;
        }
        // The receiver sets the sleeping flag before it checks this buffer the
        // last time: either it has seen the event, or this thread sees the flag.
        if self.receiver_waiting.load(Ordering::Relaxed)
            && self.receiver_waiting.swap(false, Ordering::Relaxed)
        {
            self.wake.notify_one();
        }
    }

    /// False if the queue is full.
    fn enqueue(&self, usage: QueuedUsage, refused: bool) -> bool {
        let Some(ShardBuffer(shard)) = self.shards.get(thread_number() % self.shards.len()) else {
            return false;
        };
        let mut shard = shard.lock();
        let ShardEvents {
            billable,
            refused: refusals,
        } = &mut *shard;
        let events = if refused { refusals } else { billable };
        if events.len() >= FLUSH_SIZE && !self.flush(events, refused) {
            return false;
        }
        events.push(usage);
        true
    }

    /// Invariant: a thread buffer is locked before the shared queue, never after
    /// it.
    fn flush(&self, events: &mut Vec<QueuedUsage>, refused: bool) -> bool {
        let mut flushed = self.flushed.lock();
        let FlushedEvents {
            billable,
            refused: refusals,
        } = &mut *flushed;
        let (queue, most) = if refused {
            (refusals, REFUSED)
        } else {
            (billable, BILLABLE)
        };
        let (before, after) = (queue.len(), queue.len() + events.len());
        if after > most {
            return false;
        }
        queue.extend(events.drain(..));
        drop(flushed);
        if !refused && before < HIGH_MARK && after >= HIGH_MARK {
            self.wake.notify_one();
        }
        true
    }

    fn len(&self) -> usize {
        let shards = self
            .shards
            .iter()
            .map(|ShardBuffer(shard)| shard.lock().len());
        let buffered: usize = shards.sum();
        buffered + self.flushed.lock().len()
    }

    fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl ShardEvents {
    fn len(&self) -> usize {
        self.billable.len() + self.refused.len()
    }
}

impl FlushedEvents {
    fn len(&self) -> usize {
        self.billable.len() + self.refused.len()
    }
}

impl UsageReceiver {
    /// The number of queued events.
    pub(super) fn len(&self) -> usize {
        self.shared.len()
    }

    /// Whether billable events are dropped, or will be soon.
    pub(super) fn is_full(&self) -> bool {
        self.shared.flushed.lock().billable.len() + FLUSH_SIZE > BILLABLE
    }

    /// Sets the reason that is counted for dropped billable events.
    pub(super) fn set_drop_reason(&self, reason: DropReason) {
        self.shared.drop_cause.set(reason);
    }

    /// Waits for an event and adds queued events to a batch that is not full;
    /// returns a time that precedes all of them. Cancel-safe: no event is lost.
    pub(super) async fn take(&mut self, batch: &mut Vec<QueuedUsage>) -> Instant {
        let mut since = self.emptied;
        loop {
            self.drain_into(batch);
            if !batch.is_empty() {
                return since;
            }
            self.shared.receiver_waiting.store(true, Ordering::Relaxed);
            if self.shared.is_empty() {
                self.shared.wake.notified().await;
            }
            self.shared.receiver_waiting.store(false, Ordering::Relaxed);
            since = Instant::now();
        }
    }

    /// Waits until many events are queued, or until the next check is due.
    pub(super) async fn wait_for_many(&self, look_again: Instant) {
        tokio::select! {
            () = self.shared.wake.notified() => {}
            () = tokio::time::sleep_until(look_again) => {}
        }
    }

    /// Adds the events that are queued now to a batch that is not full: billable
    /// events first, and the events of a thread in their order.
    pub(crate) fn drain_into(&mut self, batch: &mut Vec<QueuedUsage>) {
        while !self.try_drain_into(batch) {}
    }

    /// False if draining must start again: older events were flushed in the
    /// meantime than those in the thread buffer.
    fn try_drain_into(&mut self, batch: &mut Vec<QueuedUsage>) -> bool {
        let SharedQueue {
            shards, flushed, ..
        } = &*self.shared;
        let now = Instant::now();
        take(&mut flushed.lock().billable, batch);
        for ShardBuffer(shard) in shards {
            let mut shard = shard.lock();
            if capacity_left(batch) > 0 && !flushed.lock().billable.is_empty() {
                return false;
            }
            drain_shard(&mut shard.billable, batch);
        }
        take(&mut flushed.lock().refused, batch);
        for ShardBuffer(shard) in shards {
            drain_shard(&mut shard.lock().refused, batch);
        }
        if capacity_left(batch) > 0 {
            self.emptied = now;
        }
        true
    }
}

impl Drop for UsageReceiver {
    fn drop(&mut self) {
        self.shared.closed.store(true, Ordering::Relaxed);
        let left = self.shared.len() as u64;
        self.shared.metrics.usage_lost(DropReason::Shutdown, left);
    }
}

fn capacity_left(batch: &[QueuedUsage]) -> usize {
    UsageBatch::MAX_EVENTS.saturating_sub(batch.len())
}

fn take(queue: &mut VecDeque<QueuedUsage>, batch: &mut Vec<QueuedUsage>) {
    let count = capacity_left(batch).min(queue.len());
    batch.extend(queue.drain(..count));
}

fn drain_shard(events: &mut Vec<QueuedUsage>, batch: &mut Vec<QueuedUsage>) {
    let count = capacity_left(batch).min(events.len());
    batch.extend(events.drain(..count));
}

/// The index of the calling thread, assigned at its first call.
fn thread_number() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    thread_local! {
        static PLACE: Cell<usize> = Cell::new(NEXT.fetch_add(1, Ordering::Relaxed));
    }
    PLACE.with(Cell::get)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use fastllm_contract::{PrincipalId, RefusalKind, UsageBatch, UsageEvent};
    use tokio::time::{Instant, timeout};

    use super::{BILLABLE, FLUSH_SIZE, HIGH_MARK, QueuedUsage, REFUSED, UsageQueue, usage_queue};
    use crate::control_plane::usage::fixture::event;
    use crate::telemetry::{DropReason, Metrics};

    /// Longer than any operation in these tests takes.
    const TEST_TIMEOUT: Duration = Duration::from_secs(30);

    #[test]
    fn a_disabled_queue_stores_no_events() {
        let disabled = UsageQueue::disabled();
        for _ in 0..=BILLABLE {
            disabled.push(event(None));
        }
        assert_eq!(disabled.length()(), 0);
    }

    #[tokio::test]
    async fn a_burst_of_refusals_displaces_no_billable_events() {
        let metrics = Arc::new(Metrics::new().unwrap());
        let (queue, mut receiver) = usage_queue(&metrics);
        for _ in 0..REFUSED + FLUSH_SIZE + 7 {
            queue.push(event(Some(RefusalKind::Authorisation)));
        }
        assert_eq!(metrics.process().usage_dropped, 7);
        assert!(!receiver.is_full());
        for _ in 0..BILLABLE + FLUSH_SIZE + 5 {
            queue.push(event(None));
        }
        assert!(receiver.is_full());
        assert_eq!(metrics.process().usage_dropped, 12);
        assert_eq!(queue.length()(), BILLABLE + REFUSED + 2 * FLUSH_SIZE);
        assert_eq!(receiver.len(), queue.length()());
        receiver.set_drop_reason(DropReason::SpillFull);
        queue.push(event(None));
        let text = String::from_utf8(metrics.render(None)).unwrap();
        assert!(text.contains("reason=\"spill_full\"} 1\n"), "{text}");

        let mut batch = Vec::new();
        receiver.drain_into(&mut batch);
        assert_eq!(batch.len(), UsageBatch::MAX_EVENTS);
        assert!(batch.iter().all(|usage| usage.event.refusal.is_none()));
        drop(receiver);
        queue.push(event(None));
        let text = String::from_utf8(metrics.render(None)).unwrap();
        let left = BILLABLE + REFUSED + 2 * FLUSH_SIZE - UsageBatch::MAX_EVENTS;
        assert!(
            text.contains(&format!("reason=\"shutdown\"}} {left}\n")),
            "{text}"
        );
        assert!(text.contains("reason=\"spill_full\"} 2\n"), "{text}");
    }

    /// For every interleaving of senders and receiver: each event arrives once,
    /// and those of one thread in order.
    #[tokio::test]
    async fn events_of_many_threads_all_arrive_and_wake_the_receiver() {
        const EACH: u32 = 20_000;
        let metrics = Arc::new(Metrics::new().unwrap());
        let (queue, mut receiver) = usage_queue(&metrics);
        let threads = [0, 1, 2].map(|thread| {
            let queue = queue.clone();
            std::thread::spawn(move || {
                for number in 0..EACH {
                    while queue.length()() > BILLABLE / 2 {
                        std::thread::yield_now();
                    }
                    queue.push(UsageEvent {
                        principal_id: PrincipalId(thread),
                        duration_ms: Some(number),
                        ..event(None)
                    });
                }
            })
        });
        let mut next = [0; 3];
        while next != [EACH; 3] {
            let mut batch = Vec::new();
            let taken = timeout(TEST_TIMEOUT, receiver.take(&mut batch)).await;
            taken.unwrap_or_else(|_| panic!("the receiver was not woken at {next:?}"));
            for QueuedUsage { event, .. } in batch {
                let thread = usize::try_from(event.principal_id.0).unwrap();
                assert_eq!(event.duration_ms, Some(next[thread]));
                next[thread] += 1;
            }
        }
        for thread in threads {
            thread.join().unwrap();
        }
        assert_eq!((receiver.len(), metrics.process().usage_dropped), (0, 0));
    }

    #[tokio::test]
    async fn many_events_wake_a_busy_receiver() {
        let metrics = Arc::new(Metrics::new().unwrap());
        let (queue, receiver) = usage_queue(&metrics);
        let push = |count| (0..count).for_each(|_| queue.push(event(None)));
        // Polled once.
        let woken = async || {
            let wait_for_many = receiver.wait_for_many(Instant::now() + TEST_TIMEOUT);
            timeout(Duration::ZERO, wait_for_many).await.is_ok()
        };
        push(HIGH_MARK);
        assert!(!woken().await);
        push(1);
        assert!(woken().await);
        // Woken once although the queue stays above the threshold.
        push(FLUSH_SIZE);
        assert!(!woken().await);
        receiver.wait_for_many(Instant::now()).await;
    }

    #[tokio::test]
    async fn the_age_of_a_batch_counts_from_before_its_first_event() {
        let metrics = Arc::new(Metrics::new().unwrap());
        let (queue, mut receiver) = usage_queue(&metrics);
        let first = Instant::now();
        queue.push(event(None));
        // The event was pushed while the receiver was busy, possibly long ago.
        assert!(receiver.take(&mut Vec::new()).await <= first);
        let second = Instant::now();
        queue.push(event(None));
        let since = receiver.take(&mut Vec::new()).await;
        assert!(first < since && since <= second);
        let third = Instant::now();
        let mut batch = Vec::new();
        let later = async { queue.push(event(None)) };
        let (since, ()) = tokio::join!(receiver.take(&mut batch), later);
        assert!(third < since);
    }
}
