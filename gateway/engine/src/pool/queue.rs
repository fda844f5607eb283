use std::collections::VecDeque;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use parking_lot::Mutex;

use super::backend::ConcurrencyLimit;
use super::{Backend, BackendState, InFlight};

/// The requests queued at one backend, first come, first served.
#[derive(Debug, Default)]
pub(super) struct Queue {
    /// The length, readable without the lock.
    length: AtomicUsize,
    entries: Mutex<VecDeque<QueueEntry>>,
}

#[derive(Debug)]
struct QueueEntry {
    ticket: Arc<Ticket>,
    /// The index of this backend among those that the ticket is queued at.
    index: usize,
    /// Maximum number of requests in flight, this one included.
    max: u64,
}

/// One queued request. It may be in the queues of several backends, and takes
/// the first slot that becomes free.
///
/// Invariant: a queue's lock may be held when a ticket's is taken, never the
/// other way round. No guard is dropped and no task is woken under either.
#[derive(Debug)]
struct Ticket(Mutex<TicketState>);

enum TicketState {
    /// The task to wake; a no-op before the first poll.
    Waiting(Waker),
    Called(usize, InFlight),
    Left,
}

impl fmt::Debug for TicketState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Without the slot: its backend contains the queue again.
        f.write_str(match self {
            Self::Waiting(_) => "Waiting",
            Self::Called(..) => "Called",
            Self::Left => "Left",
        })
    }
}

impl Queue {
    /// The number of queued requests.
    pub(super) fn len(&self) -> usize {
        // Pairs with a request that decrements the counter before it reads
        // this, and with one that queues before it tries to acquire a slot: one
        // of the two sees the other.
        self.length.load(Ordering::SeqCst)
    }

    fn join(&self, entry: QueueEntry, limit: &ConcurrencyLimit) -> bool {
        let mut entries = self.entries.lock();
        if entries.len() >= limit.max_queued {
            return false;
        }
        entries.push_back(entry);
        self.length.store(entries.len(), Ordering::SeqCst);
        true
    }

    fn leave(&self, ticket: &Arc<Ticket>) {
        let mut entries = self.entries.lock();
        entries.retain(|entry| !Arc::ptr_eq(&entry.ticket, ticket));
        self.length.store(entries.len(), Ordering::SeqCst);
    }

    /// Gives a slot to the first queued request, if there is a free one. The
    /// caller must wake the returned task.
    fn call(&self, backend: &Arc<BackendState>) -> Option<Waker> {
        let mut entries = self.entries.lock();
        let called = loop {
            let Some(QueueEntry { ticket, index, max }) = entries.front() else {
                break None;
            };
            let mut state = ticket.0.lock();
            let TicketState::Waiting(waker) = &mut *state else {
                drop(state);
                entries.pop_front();
                continue;
            };
            let Some(place) = backend.acquire_slot(*max) else {
                break None;
            };
            let waker = waker.clone();
            *state = TicketState::Called(*index, place);
            drop(state);
            entries.pop_front();
            break Some(waker);
        };
        self.length.store(entries.len(), Ordering::SeqCst);
        called
    }
}

/// Gives free slots to queued requests.
pub(super) fn grant_free_slots(backend: &Arc<BackendState>) {
    while let Some(waker) = backend.queue().call(backend) {
        waker.wake();
    }
}

/// A request queued at one or more backends, first come, first served. Resolves
/// to the index of the backend in its pool and the slot. Dropping it leaves the
/// queues.
#[derive(Debug)]
#[must_use]
pub struct SlotWait {
    ticket: Arc<Ticket>,
    at: Vec<Arc<BackendState>>,
    timeout: Duration,
}

impl SlotWait {
    /// Queues at the backends whose queues have room; `None` if none has.
    pub(super) fn join<'a>(backends: impl Iterator<Item = (usize, &'a Backend)>) -> Option<Self> {
        let mut waiting = Self {
            ticket: Arc::new(Ticket(Mutex::new(TicketState::Waiting(
                Waker::noop().clone(),
            )))),
            at: Vec::new(),
            timeout: Duration::ZERO,
        };
        for (index, backend) in backends {
            let Some(limit) = backend.limit() else {
                continue;
            };
            let entry = QueueEntry {
                ticket: Arc::clone(&waiting.ticket),
                index,
                max: limit.max,
            };
            if backend.state().queue().join(entry, limit) {
                waiting.timeout = waiting.timeout.max(limit.timeout);
                waiting.at.push(Arc::clone(backend.state()));
            }
        }
        // A slot may have become free before the request was queued.
        waiting.at.iter().for_each(grant_free_slots);
        (!waiting.at.is_empty()).then_some(waiting)
    }

    /// The longest queue timeout of the backends.
    pub fn timeout(&self) -> Duration {
        self.timeout
    }
}

impl Future for SlotWait {
    type Output = (usize, InFlight);

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut state = self.ticket.0.lock();
        match std::mem::replace(&mut *state, TicketState::Left) {
            TicketState::Called(index, place) => Poll::Ready((index, place)),
            TicketState::Waiting(_) => {
                *state = TicketState::Waiting(cx.waker().clone());
                Poll::Pending
            }
            TicketState::Left => Poll::Pending,
        }
    }
}

impl Drop for SlotWait {
    fn drop(&mut self) {
        let left = std::mem::replace(&mut *self.ticket.0.lock(), TicketState::Left);
        for backend in &self.at {
            backend.queue().leave(&self.ticket);
            // The next request may have a higher limit.
            grant_free_slots(backend);
        }
        // An unused slot goes to the next request.
        drop(left);
    }
}

#[cfg(test)]
mod tests;
