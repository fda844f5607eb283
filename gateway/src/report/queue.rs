use std::cell::Cell;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicUsize, Ordering};
use std::thread::available_parallelism;

use fastllm_contract::{UsageBatch, UsageEvent};
use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::telemetry::{DropReason, Metrics};

/// Billable events that wait at most, beside what threads hold.
pub(super) const BILLABLE: usize = 10_000;

/// Refusals that wait at most, likewise: a storm of them displaces nothing
/// billable.
const REFUSED: usize = 1_000;

/// So many of each a thread hands over at once.
pub(super) const HANDFUL: usize = 50;

/// Whoever takes events is woken when so many billable ones wait.
pub(super) const HIGH_MARK: usize = BILLABLE / 2;

/// Where requests leave their usage events. Never waits; what does not fit is
/// lost and counted. Cheap to clone.
///
/// Each thread lays its events into a tray of its own and hands over a full one,
/// so that threads touch nothing in common but once in [`HANDFUL`] requests;
/// whoever takes them empties the trays, too.
#[derive(Debug, Clone)]
pub(crate) struct UsageQueue {
    /// Nothing where nobody takes events: the access log is all there is.
    shared: Option<Arc<Shared>>,
}

/// The other end of [`UsageQueue`].
#[derive(Debug)]
pub(crate) struct Waiting {
    shared: Arc<Shared>,
    /// When nothing waited.
    pub(super) emptied: Instant,
}

#[derive(Debug)]
struct Shared {
    trays: Box<[Tray]>,
    handed: Mutex<Handed>,
    /// Nobody looks for events before he is woken.
    asleep: AtomicBool,
    wake: Notify,
    /// Nobody takes events any more.
    over: AtomicBool,
    held_up: HeldUp,
    metrics: Arc<Metrics>,
}

/// What threads hold that have the same place, as a rule one: in cache lines of
/// its own.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Tray(Mutex<Held>);

#[derive(Debug, Default)]
struct Held {
    billable: Vec<UsageEvent>,
    refused: Vec<UsageEvent>,
}

#[derive(Debug, Default)]
struct Handed {
    billable: VecDeque<UsageEvent>,
    refused: VecDeque<UsageEvent>,
}

/// Why nobody takes what waits.
#[derive(Debug, Default)]
struct HeldUp(AtomicU8);

impl HeldUp {
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

/// Both ends of the queues of usage events.
pub(crate) fn queue(metrics: &Arc<Metrics>) -> (UsageQueue, Waiting) {
    let trays = available_parallelism().map_or(1, usize::from);
    let shared = Arc::new(Shared {
        trays: (0..trays).map(|_| Tray::default()).collect(),
        handed: Mutex::default(),
        asleep: AtomicBool::new(false),
        wake: Notify::new(),
        over: AtomicBool::new(false),
        held_up: HeldUp::default(),
        metrics: Arc::clone(metrics),
    });
    let queue = UsageQueue {
        shared: Some(Arc::clone(&shared)),
    };
    let emptied = Instant::now();
    (queue, Waiting { shared, emptied })
}

impl UsageQueue {
    /// For a gateway that reports to nobody.
    pub(crate) const fn nowhere() -> Self {
        Self { shared: None }
    }

    pub(crate) fn push(&self, event: UsageEvent) {
        if let Some(shared) = &self.shared {
            shared.push(event);
        }
    }

    /// How many events wait.
    pub(crate) fn len(&self) -> usize {
        self.shared.as_ref().map_or(0, |shared| shared.len())
    }
}

impl Shared {
    fn push(&self, event: UsageEvent) {
        let refused = event.refusal.is_some();
        if self.over.load(Ordering::Relaxed) || !self.lay(event, refused) {
            let reason = if refused {
                DropReason::RefusedQueueFull
            } else {
                self.held_up.reason()
            };
            self.metrics.usage_lost(reason, 1);
            return;
        }
        // Whoever goes to sleep says so before he looks into this tray the last
        // time: either he has seen the event, or this sees that he sleeps.
        if self.asleep.load(Ordering::Relaxed) && self.asleep.swap(false, Ordering::Relaxed) {
            self.wake.notify_one();
        }
    }

    /// False where there is no room.
    fn lay(&self, event: UsageEvent, refused: bool) -> bool {
        let Some(Tray(tray)) = self.trays.get(place() % self.trays.len()) else {
            return false;
        };
        let mut tray = tray.lock();
        let Held {
            billable,
            refused: refusals,
        } = &mut *tray;
        let held = if refused { refusals } else { billable };
        if held.len() >= HANDFUL && !self.hand_over(held, refused) {
            return false;
        }
        held.push(event);
        true
    }

    /// Invariant: a tray is locked before what was handed over is, never after.
    fn hand_over(&self, held: &mut Vec<UsageEvent>, refused: bool) -> bool {
        let mut handed = self.handed.lock();
        let Handed {
            billable,
            refused: refusals,
        } = &mut *handed;
        let (queue, most) = if refused {
            (refusals, REFUSED)
        } else {
            (billable, BILLABLE)
        };
        let (before, after) = (queue.len(), queue.len() + held.len());
        if after > most {
            return false;
        }
        queue.extend(held.drain(..));
        drop(handed);
        if !refused && before < HIGH_MARK && after >= HIGH_MARK {
            self.wake.notify_one();
        }
        true
    }

    fn len(&self) -> usize {
        let trays = self.trays.iter().map(|Tray(tray)| tray.lock().len());
        let laid: usize = trays.sum();
        laid + self.handed.lock().len()
    }

    fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl Held {
    fn len(&self) -> usize {
        self.billable.len() + self.refused.len()
    }
}

impl Handed {
    fn len(&self) -> usize {
        self.billable.len() + self.refused.len()
    }
}

impl Waiting {
    /// How many wait.
    pub(super) fn len(&self) -> usize {
        self.shared.len()
    }

    /// Whether billable events are lost, or will be soon.
    pub(super) fn is_full(&self) -> bool {
        self.shared.handed.lock().billable.len() + HANDFUL > BILLABLE
    }

    /// Says what billable events are lost for while nobody takes them.
    pub(super) fn held_up_by(&self, reason: DropReason) {
        self.shared.held_up.set(reason);
    }

    /// Waits for an event and adds what waits to a batch that is not full; gives
    /// a time before which none of them came. Safe to cancel: no event is lost.
    pub(super) async fn take(&mut self, batch: &mut Vec<UsageEvent>) -> Instant {
        let mut since = self.emptied;
        loop {
            self.take_waiting(batch);
            if !batch.is_empty() {
                return since;
            }
            self.shared.asleep.store(true, Ordering::Relaxed);
            if self.shared.is_empty() {
                self.shared.wake.notified().await;
            }
            self.shared.asleep.store(false, Ordering::Relaxed);
            since = Instant::now();
        }
    }

    /// Waits until many wait, or until it is time to look again.
    pub(super) async fn many(&self, look_again: Instant) {
        tokio::select! {
            () = self.shared.wake.notified() => {}
            () = tokio::time::sleep_until(look_again) => {}
        }
    }

    /// Adds what waits right now to a batch that is not full: billable events
    /// first, and those of a thread in their order.
    pub(crate) fn take_waiting(&mut self, batch: &mut Vec<UsageEvent>) {
        while !self.has_taken(batch) {}
    }

    /// False where it has to begin anew: something was handed over meanwhile
    /// that is older than what is in the tray.
    fn has_taken(&mut self, batch: &mut Vec<UsageEvent>) -> bool {
        let Shared { trays, handed, .. } = &*self.shared;
        let now = Instant::now();
        take(&mut handed.lock().billable, batch);
        for Tray(tray) in trays {
            let mut tray = tray.lock();
            if room(batch) > 0 && !handed.lock().billable.is_empty() {
                return false;
            }
            take_laid(&mut tray.billable, batch);
        }
        take(&mut handed.lock().refused, batch);
        for Tray(tray) in trays {
            take_laid(&mut tray.lock().refused, batch);
        }
        if room(batch) > 0 {
            self.emptied = now;
        }
        true
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        self.shared.over.store(true, Ordering::Relaxed);
        let left = self.shared.len() as u64;
        self.shared.metrics.usage_lost(DropReason::Shutdown, left);
    }
}

fn room(batch: &[UsageEvent]) -> usize {
    UsageBatch::MAX_EVENTS.saturating_sub(batch.len())
}

fn take(queue: &mut VecDeque<UsageEvent>, batch: &mut Vec<UsageEvent>) {
    let count = room(batch).min(queue.len());
    batch.extend(queue.drain(..count));
}

fn take_laid(held: &mut Vec<UsageEvent>, batch: &mut Vec<UsageEvent>) {
    let count = room(batch).min(held.len());
    batch.extend(held.drain(..count));
}

/// A number for each thread that asks, counting up.
fn place() -> usize {
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

    use super::{BILLABLE, HANDFUL, HIGH_MARK, REFUSED, UsageQueue, queue};
    use crate::report::fixture::event;
    use crate::telemetry::{DropReason, Metrics};

    /// Longer than anything here takes.
    const PATIENCE: Duration = Duration::from_secs(30);

    #[test]
    fn nowhere_holds_nothing() {
        let nowhere = UsageQueue::nowhere();
        for _ in 0..=BILLABLE {
            nowhere.push(event(None));
        }
        assert_eq!(nowhere.len(), 0);
    }

    #[tokio::test]
    async fn a_storm_of_refusals_displaces_nothing_billable() {
        let metrics = Arc::new(Metrics::new().unwrap());
        let (queue, mut waiting) = queue(&metrics);
        for _ in 0..REFUSED + HANDFUL + 7 {
            queue.push(event(Some(RefusalKind::Authorisation)));
        }
        assert_eq!(metrics.process(0).usage_dropped, 7);
        assert!(!waiting.is_full());
        for _ in 0..BILLABLE + HANDFUL + 5 {
            queue.push(event(None));
        }
        assert!(waiting.is_full());
        assert_eq!(metrics.process(0).usage_dropped, 12);
        assert_eq!(queue.len(), BILLABLE + REFUSED + 2 * HANDFUL);
        assert_eq!(waiting.len(), queue.len());
        waiting.held_up_by(DropReason::SpillFull);
        queue.push(event(None));
        let text = String::from_utf8(metrics.render(None, 0)).unwrap();
        assert!(text.contains("reason=\"spill_full\"} 1\n"), "{text}");

        let mut batch = Vec::new();
        waiting.take_waiting(&mut batch);
        assert_eq!(batch.len(), UsageBatch::MAX_EVENTS);
        assert!(batch.iter().all(|event| event.refusal.is_none()));
        drop(waiting);
        queue.push(event(None));
        let text = String::from_utf8(metrics.render(None, 0)).unwrap();
        let left = BILLABLE + REFUSED + 2 * HANDFUL - UsageBatch::MAX_EVENTS;
        assert!(
            text.contains(&format!("reason=\"shutdown\"}} {left}\n")),
            "{text}"
        );
        assert!(text.contains("reason=\"spill_full\"} 2\n"), "{text}");
    }

    /// However threads and whoever takes come together: each event once, and
    /// those of a thread in their order.
    #[tokio::test]
    async fn events_of_many_threads_all_come_and_wake_whoever_sleeps() {
        const EACH: u32 = 20_000;
        let metrics = Arc::new(Metrics::new().unwrap());
        let (queue, mut waiting) = queue(&metrics);
        let threads = [0, 1, 2].map(|thread| {
            let queue = queue.clone();
            std::thread::spawn(move || {
                for number in 0..EACH {
                    while queue.len() > BILLABLE / 2 {
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
            let taken = timeout(PATIENCE, waiting.take(&mut batch)).await;
            taken.unwrap_or_else(|_| panic!("nobody woke it at {next:?}"));
            for event in batch {
                let thread = usize::try_from(event.principal_id.0).unwrap();
                assert_eq!(event.duration_ms, Some(next[thread]));
                next[thread] += 1;
            }
        }
        for thread in threads {
            thread.join().unwrap();
        }
        assert_eq!((waiting.len(), metrics.process(0).usage_dropped), (0, 0));
    }

    #[tokio::test]
    async fn many_events_wake_whoever_has_other_things_to_do() {
        let metrics = Arc::new(Metrics::new().unwrap());
        let (queue, waiting) = queue(&metrics);
        let push = |count| (0..count).for_each(|_| queue.push(event(None)));
        // Polled once.
        let woken = async || {
            let many = waiting.many(Instant::now() + PATIENCE);
            timeout(Duration::ZERO, many).await.is_ok()
        };
        push(HIGH_MARK);
        assert!(!woken().await);
        push(1);
        assert!(woken().await);
        // Once: they are many still.
        push(HANDFUL);
        assert!(!woken().await);
        waiting.many(Instant::now()).await;
    }

    #[tokio::test]
    async fn the_time_of_a_batch_counts_from_before_its_first_event() {
        let metrics = Arc::new(Metrics::new().unwrap());
        let (queue, mut waiting) = queue(&metrics);
        let first = Instant::now();
        queue.push(event(None));
        // It came while nobody looked, maybe long ago.
        assert!(waiting.take(&mut Vec::new()).await <= first);
        let second = Instant::now();
        queue.push(event(None));
        let since = waiting.take(&mut Vec::new()).await;
        assert!(first < since && since <= second);
        let third = Instant::now();
        let mut batch = Vec::new();
        let later = async { queue.push(event(None)) };
        let (since, ()) = tokio::join!(waiting.take(&mut batch), later);
        assert!(third < since);
    }
}
