use std::collections::VecDeque;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use parking_lot::Mutex;

use super::backend::Limit;
use super::{Backend, InFlight, Live};

/// The requests that wait for a place at one backend, in the order in which
/// they came.
#[derive(Debug, Default)]
pub(super) struct Queue {
    /// How many there are, for those who need not lock.
    length: AtomicUsize,
    entries: Mutex<VecDeque<Entry>>,
}

#[derive(Debug)]
struct Entry {
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
struct Ticket(Mutex<State>);

enum State {
    /// With whom to wake; nobody before it was looked at.
    Waiting(Waker),
    Called(usize, InFlight),
    Left,
}

impl fmt::Debug for State {
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

    fn join(&self, entry: Entry, limit: &Limit) -> bool {
        let mut entries = self.entries.lock();
        if entries.len() >= limit.most_waiting {
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
    fn call(&self, live: &Arc<Live>) -> Option<Waker> {
        let mut entries = self.entries.lock();
        let called = loop {
            let Some(Entry {
                ticket,
                index,
                most,
            }) = entries.front()
            else {
                break None;
            };
            let mut state = ticket.0.lock();
            let State::Waiting(waker) = &mut *state else {
                drop(state);
                entries.pop_front();
                continue;
            };
            let Some(place) = live.take_place(*most) else {
                break None;
            };
            let waker = waker.clone();
            *state = State::Called(*index, place);
            drop(state);
            entries.pop_front();
            break Some(waker);
        };
        self.length.store(entries.len(), Ordering::SeqCst);
        called
    }
}

/// Gives free places to those who wait for them.
pub(super) fn call_waiting(live: &Arc<Live>) {
    while let Some(waker) = live.queue().call(live) {
        waker.wake();
    }
}

/// A request that waits for a place at one of several backends: first come,
/// first served. Resolves to the backend's index in its pool and the place.
/// Dropping it leaves the queues.
#[derive(Debug)]
#[must_use]
pub struct Waiting {
    ticket: Arc<Ticket>,
    at: Vec<Arc<Live>>,
    patience: Duration,
}

impl Waiting {
    /// Queues at those of the backends that let it; nothing where none does.
    pub(super) fn join<'a>(backends: impl Iterator<Item = (usize, &'a Backend)>) -> Option<Self> {
        let mut waiting = Self {
            ticket: Arc::new(Ticket(Mutex::new(State::Waiting(Waker::noop().clone())))),
            at: Vec::new(),
            patience: Duration::ZERO,
        };
        for (index, backend) in backends {
            let Some(limit) = backend.limit() else {
                continue;
            };
            let entry = Entry {
                ticket: Arc::clone(&waiting.ticket),
                index,
                most: limit.most,
            };
            if backend.live().queue().join(entry, limit) {
                waiting.patience = waiting.patience.max(limit.patience);
                waiting.at.push(Arc::clone(backend.live()));
            }
        }
        // A place may have become free before anybody stood here to be called.
        waiting.at.iter().for_each(call_waiting);
        (!waiting.at.is_empty()).then_some(waiting)
    }

    /// How long it should wait at most: as the most patient of the backends
    /// says.
    pub fn patience(&self) -> Duration {
        self.patience
    }
}

impl Future for Waiting {
    type Output = (usize, InFlight);

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut state = self.ticket.0.lock();
        match std::mem::replace(&mut *state, State::Left) {
            State::Called(index, place) => Poll::Ready((index, place)),
            State::Waiting(_) => {
                *state = State::Waiting(cx.waker().clone());
                Poll::Pending
            }
            State::Left => Poll::Pending,
        }
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        let left = std::mem::replace(&mut *self.ticket.0.lock(), State::Left);
        for live in &self.at {
            live.queue().leave(&self.ticket);
            // Whoever stood behind it may be content with less room.
            call_waiting(live);
        }
        // A place that it was given and never took goes to the next.
        drop(left);
    }
}

#[cfg(test)]
mod tests;
