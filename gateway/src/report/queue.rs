use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use fastllm_contract::{UsageBatch, UsageEvent};
use tokio::sync::mpsc::{self, Receiver, Sender};

use crate::telemetry::{DropReason, Metrics};

/// Billable events that wait at most.
const BILLABLE: usize = 10_000;

/// Refusals that wait at most: a storm of them displaces nothing billable.
const REFUSED: usize = 1_000;

/// Where requests leave their usage events. Never waits; what does not fit is
/// lost and counted. Cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct UsageQueue {
    /// Nothing where nobody takes events: the access log is all there is.
    queues: Option<Queues>,
    metrics: Arc<Metrics>,
}

#[derive(Debug, Clone)]
struct Queues {
    billable: Sender<UsageEvent>,
    refused: Sender<UsageEvent>,
    held_up: Arc<HeldUp>,
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

/// The other end of [`UsageQueue`].
#[derive(Debug)]
pub(crate) struct Waiting {
    billable: Receiver<UsageEvent>,
    refused: Receiver<UsageEvent>,
    held_up: Arc<HeldUp>,
}

/// Both ends of the queues of usage events.
pub(crate) fn queue(metrics: &Arc<Metrics>) -> (UsageQueue, Waiting) {
    let (billable, billable_waiting) = mpsc::channel(BILLABLE);
    let (refused, refused_waiting) = mpsc::channel(REFUSED);
    let held_up = Arc::new(HeldUp::default());
    let queue = UsageQueue {
        queues: Some(Queues {
            billable,
            refused,
            held_up: Arc::clone(&held_up),
        }),
        metrics: Arc::clone(metrics),
    };
    let waiting = Waiting {
        billable: billable_waiting,
        refused: refused_waiting,
        held_up,
    };
    (queue, waiting)
}

impl UsageQueue {
    /// For a gateway that reports to nobody.
    pub(crate) fn nowhere(metrics: &Arc<Metrics>) -> Self {
        Self {
            queues: None,
            metrics: Arc::clone(metrics),
        }
    }

    pub(crate) fn push(&self, event: UsageEvent) {
        let Some(queues) = &self.queues else {
            return;
        };
        let (queue, reason) = match event.refusal {
            None => (&queues.billable, queues.held_up.reason()),
            Some(_) => (&queues.refused, DropReason::RefusedQueueFull),
        };
        if queue.try_send(event).is_err() {
            self.metrics.usage_lost(reason, 1);
        }
    }

    /// How many events wait.
    pub(crate) fn len(&self) -> usize {
        let queues = self.queues.iter();
        queues
            .flat_map(|queues| [&queues.billable, &queues.refused])
            .map(|queue| queue.max_capacity() - queue.capacity())
            .sum()
    }
}

impl Waiting {
    /// How many wait.
    pub(crate) fn len(&self) -> usize {
        self.billable.len() + self.refused.len()
    }

    /// Says what billable events are lost for while nobody takes them.
    pub(crate) fn held_up_by(&self, reason: DropReason) {
        self.held_up.set(reason);
    }

    /// Waits for an event and adds what waits to a batch that is not full,
    /// billable events first. Safe to cancel: no event is lost.
    pub(crate) async fn take(&mut self, batch: &mut Vec<UsageEvent>) {
        tokio::select! {
            biased;
            Some(event) = self.billable.recv() => batch.push(event),
            Some(event) = self.refused.recv() => batch.push(event),
            else => std::future::pending().await,
        }
        self.take_waiting(batch);
    }

    /// Adds what waits right now.
    pub(crate) fn take_waiting(&mut self, batch: &mut Vec<UsageEvent>) {
        for queue in [&mut self.billable, &mut self.refused] {
            while batch.len() < UsageBatch::MAX_EVENTS {
                match queue.try_recv() {
                    Ok(event) => batch.push(event),
                    Err(_) => break,
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use fastllm_contract::{RefusalKind, UsageBatch};

    use super::{BILLABLE, REFUSED, UsageQueue, queue};
    use crate::report::fixture::event;
    use crate::telemetry::{DropReason, Metrics};

    #[test]
    fn nowhere_holds_nothing_and_loses_nothing() {
        let metrics = Arc::new(Metrics::new().unwrap());
        let nowhere = UsageQueue::nowhere(&metrics);
        for _ in 0..=BILLABLE {
            nowhere.push(event(None));
        }
        assert_eq!(nowhere.len(), 0);
        assert_eq!(metrics.process(0).usage_dropped, 0);
    }

    #[test]
    fn a_storm_of_refusals_displaces_nothing_billable() {
        let metrics = Arc::new(Metrics::new().unwrap());
        let (queue, mut waiting) = queue(&metrics);
        for _ in 0..REFUSED + 7 {
            queue.push(event(Some(RefusalKind::Authorisation)));
        }
        assert_eq!(metrics.process(0).usage_dropped, 7);
        for _ in 0..BILLABLE + 5 {
            queue.push(event(None));
        }
        assert_eq!(metrics.process(0).usage_dropped, 12);
        assert_eq!(queue.len(), BILLABLE + REFUSED);
        assert_eq!(waiting.len(), BILLABLE + REFUSED);
        waiting.held_up_by(DropReason::SpillFull);
        queue.push(event(None));
        let text = String::from_utf8(metrics.render(None, 0)).unwrap();
        assert!(text.contains("reason=\"spill_full\"} 1\n"), "{text}");

        let mut batch = Vec::new();
        waiting.take_waiting(&mut batch);
        assert_eq!(batch.len(), UsageBatch::MAX_EVENTS);
        assert!(batch.iter().all(|event| event.refusal.is_none()));
    }
}
