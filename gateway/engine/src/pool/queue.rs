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

/// The requests that wait for a place at one backend, in the order in which
/// they came.
#[derive(Debug, Default)]
pub(super) struct Queue {
    /// How many there are, for those who need not lock.
    length: AtomicUsize,
    entries: Mutex<VecDeque<QueueEntry>>,
}

#[derive(Debug)]
struct QueueEntry {
    ticket: Arc<Ticket>,
    /// Which backend this is among those that the ticket waits at.
    index: usize,
    /// The most requests that may be under way, this one included.
    most: u64,
}

/// One waiting request. It may stand in the queues of several backends, and
/// takes the first place that becomes free at any of them.
///
/// Invariant: a queue's lock may be held when a ticket's is taken, never the
/// other way round; no guard is dropped and nobody is woken under either.
#[derive(Debug)]
struct Ticket(Mutex<TicketState>);

enum TicketState {
    /// With whom to wake; nobody before it was looked at.
    Waiting(Waker),
    Called(usize, InFlight),
    Left,
}

impl fmt::Debug for TicketState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Not what was handed over: its backend holds the queue again.
        f.write_str(match self {
            Self::Waiting(_) => "Waiting",
            Self::Called(..) => "Called",
            Self::Left => "Left",
        })
    }
}

impl Queue {
    /// How many requests stand in it.
    pub(super) fn len(&self) -> usize {
        // Pairs with whoever counts its request as ended before it asks this,
        // and with whoever queues before it asks for a place: one of the two
        // sees the other.
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

    /// Gives the first one that still waits a place, if there is one. Whoever
    /// it is has to be woken.
    fn call(&self, backend: &Arc<BackendState>) -> Option<Waker> {
        let mut entries = self.entries.lock();
        let called = loop {
            let Some(QueueEntry {
                ticket,
                index,
                most,
            }) = entries.front()
            else {
                break None;
            };
            let mut state = ticket.0.lock();
            let TicketState::Waiting(waker) = &mut *state else {
                drop(state);
                entries.pop_front();
                continue;
            };
            let Some(place) = backend.acquire_slot(*most) else {
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

/// Gives free places to those who wait for them.
pub(super) fn grant_free_slots(backend: &Arc<BackendState>) {
    while let Some(waker) = backend.queue().call(backend) {
        waker.wake();
    }
}

/// A request that waits for a place at one of several backends: first come,
/// first served. Resolves to the backend's index in its pool and the place.
/// Dropping it leaves the queues.
#[derive(Debug)]
#[must_use]
pub struct SlotWait {
    ticket: Arc<Ticket>,
    at: Vec<Arc<BackendState>>,
    timeout: Duration,
}

impl SlotWait {
    /// Queues at those of the backends that let it; nothing where none does.
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
                most: limit.most,
            };
            if backend.state().queue().join(entry, limit) {
                waiting.timeout = waiting.timeout.max(limit.timeout);
                waiting.at.push(Arc::clone(backend.state()));
            }
        }
        // A place may have become free before anybody stood here to be called.
        waiting.at.iter().for_each(grant_free_slots);
        (!waiting.at.is_empty()).then_some(waiting)
    }

    /// How long it should wait at most: as the most patient of the backends
    /// says.
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
            // Whoever stood behind it may be content with less room.
            grant_free_slots(backend);
        }
        // A place that it was given and never took goes to the next.
        drop(left);
    }
}

#[cfg(test)]
mod tests;
