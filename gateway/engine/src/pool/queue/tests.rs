use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};

use fastllm_contract::{Concurrency, PolicyKind, Timestamp};
use proptest::prelude::*;

use super::SlotWait;
use crate::fixture::{model, routing_state, snapshot};
use crate::pool::{EndpointIndex, InFlight, NoSlot, PickContext, Pool};

const AT: Timestamp = Timestamp(0);

const PICK: PickContext<'_> = PickContext {
    at: AT,
    endpoint: EndpointIndex::new(0),
    stream: false,
    prompt: &[],
    stored: &[],
};

/// A pool of backends with these limits and queues.
fn pool(limits: &[(u32, u32)]) -> Arc<Pool> {
    let ids: Vec<u64> = (1..=limits.len() as u64).collect();
    let mut described = model("a", &ids);
    described.policy = Some(PolicyKind::LeastLoaded);
    for (backend, (max, max_queue)) in described.backends.iter_mut().zip(limits) {
        backend.concurrency = Concurrency {
            max: Some(*max),
            max_queue: *max_queue,
            ..Concurrency::default()
        };
    }
    let state = routing_state(&snapshot(vec![described], Vec::new(), &[]));
    Arc::clone(state.pool("a").unwrap())
}

fn poll(waiting: &mut SlotWait) -> Poll<(usize, InFlight)> {
    Pin::new(waiting).poll(&mut Context::from_waker(Waker::noop()))
}

fn served(waiting: &mut SlotWait) -> bool {
    poll(waiting).is_ready()
}

#[test]
fn queue_is_first_come_first_served() {
    let pool = pool(&[(1, 2)]);
    let (_, place) = pool.acquire(&[], &PICK).unwrap();
    assert_eq!(pool.acquire(&[], &PICK).unwrap_err(), NoSlot::Full);
    let mut first = pool.wait_for_slot(&[], &PICK).unwrap();
    let mut second = pool.wait_for_slot(&[], &PICK).unwrap();
    assert!(pool.wait_for_slot(&[], &PICK).is_none());
    assert_eq!(pool.backends()[0].state().waiting(), 2);
    assert!(!served(&mut first) && !served(&mut second));

    drop(place);
    assert_eq!(pool.acquire(&[], &PICK).unwrap_err(), NoSlot::Full);
    assert!(!served(&mut second));
    let Poll::Ready((index, place)) = poll(&mut first) else {
        panic!("not served");
    };
    assert_eq!(index, 0);
    drop(place);
    assert!(served(&mut second));
    assert!(pool.acquire(&[], &PICK).is_ok());
}

#[test]
fn slot_of_a_dropped_request_goes_to_the_next() {
    let pool = pool(&[(1, 5)]);
    let (_, place) = pool.acquire(&[], &PICK).unwrap();
    let gone = pool.wait_for_slot(&[], &PICK).unwrap();
    let called = pool.wait_for_slot(&[], &PICK).unwrap();
    let mut last = pool.wait_for_slot(&[], &PICK).unwrap();
    drop(gone);
    assert_eq!(pool.backends()[0].state().waiting(), 2);
    drop(place);
    // It was called, and leaves without looking.
    drop(called);
    assert!(served(&mut last));
    drop(last);
    let backend = pool.backends()[0].state();
    assert_eq!((backend.waiting(), backend.in_flight()), (0, 0));
}

#[test]
fn first_free_backend_serves() {
    let pool = pool(&[(1, 1), (1, 1)]);
    let (one, first) = pool.acquire(&[], &PICK).unwrap();
    let (two, second) = pool.acquire(&[], &PICK).unwrap();
    assert_ne!(one, two);
    let mut waiting = pool.wait_for_slot(&[], &PICK).unwrap();
    drop(second);
    let Poll::Ready((index, place)) = poll(&mut waiting) else {
        panic!("not served");
    };
    assert_eq!(index, two);
    drop(waiting);
    assert_eq!(pool.backends()[one].state().waiting(), 0);
    drop((first, place));
}

#[test]
fn tried_and_unavailable_backends_are_not_queued_at() {
    let pool = pool(&[(1, 5), (1, 5)]);
    let places = [(); 2].map(|()| pool.acquire(&[], &PICK).unwrap());
    let waiting = pool.wait_for_slot(&[0], &PICK).unwrap();
    let queued = |index: usize| pool.backends()[index].state().waiting();
    assert_eq!((queued(0), queued(1)), (0, 1));
    drop(waiting);
    let second = std::time::Duration::from_secs(1);
    pool.backends()[1].state().back_off(AT, second);
    let waiting = pool.wait_for_slot(&[], &PICK).unwrap();
    assert_eq!((queued(0), queued(1)), (1, 0));
    drop((waiting, places));
}

/// What happens to a pool.
#[derive(Debug, Clone)]
enum Event {
    Begin,
    End(usize),
    Queue,
    Leave(usize),
    Look(usize),
}

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        Just(Event::Begin),
        (0_usize..8).prop_map(Event::End),
        Just(Event::Queue),
        (0_usize..8).prop_map(Event::Leave),
        (0_usize..8).prop_map(Event::Look),
    ]
}

/// Takes out the item at `index`, counted round.
fn take<T>(items: &mut Vec<T>, index: usize) -> Option<T> {
    (!items.is_empty()).then(|| items.remove(index % items.len()))
}

proptest! {
    #[test]
    fn limits_hold_and_nobody_waits_beside_a_free_place(
        limits in proptest::collection::vec((1_u32..4, 0_u32..4), 1..4),
        events in proptest::collection::vec(event(), 0..80),
    ) {
        let pool = pool(&limits);
        let mut places: Vec<InFlight> = Vec::new();
        let mut queue: Vec<SlotWait> = Vec::new();
        for event in events {
            match event {
                Event::Begin => places.extend(pool.acquire(&[], &PICK).ok().map(|(_, place)| place)),
                Event::End(index) => drop(take(&mut places, index)),
                Event::Queue => queue.extend(pool.wait_for_slot(&[], &PICK)),
                Event::Leave(index) => drop(take(&mut queue, index)),
                Event::Look(index) => if let Some(mut waiting) = take(&mut queue, index) {
                    match poll(&mut waiting) {
                        Poll::Ready((_, place)) => places.push(place),
                        Poll::Pending => queue.insert(index % (queue.len() + 1), waiting),
                    }
                },
            }
            for (backend, (max, max_queue)) in pool.backends().iter().zip(&limits) {
                let backend = backend.state();
                prop_assert!(backend.in_flight() <= u64::from(*max));
                prop_assert!(backend.waiting() <= *max_queue as usize);
            }
            // A queued request is either called already or is at
            // full backends only.
            let room = pool.backends().iter().zip(&limits);
            let room = room.filter(|(backend, (max, _))| backend.state().in_flight() < u64::from(*max));
            let room: Vec<_> = room.map(|(backend, _)| backend.state()).collect();
            for waiting in &queue {
                let beside = waiting.at.iter().any(|at| room.iter().any(|backend| Arc::ptr_eq(at, backend)));
                let called = matches!(*waiting.ticket.0.lock(), super::TicketState::Called(..));
                prop_assert!(called || !beside);
            }
        }
        drop((places, queue));
        for backend in pool.backends() {
            prop_assert_eq!((backend.state().in_flight(), backend.state().waiting()), (0, 0));
        }
    }
}

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

fn wait(mut waiting: SlotWait) -> InFlight {
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    let mut cx = Context::from_waker(&waker);
    loop {
        match Pin::new(&mut waiting).poll(&mut cx) {
            Poll::Ready((_, place)) => return place,
            Poll::Pending => thread::park(),
        }
    }
}

/// Ends only if no wake-up is lost.
#[test]
fn concurrent_requests_respect_the_limit_and_finish() {
    const MOST: u64 = 3;
    let pool = pool(&[(2, 100), (1, 100)]);
    let (now, most) = (AtomicU64::new(0), AtomicU64::new(0));
    thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                for _ in 0..2_000 {
                    let place = match pool.acquire(&[], &PICK) {
                        Ok((_, place)) => place,
                        Err(_) => wait(pool.wait_for_slot(&[], &PICK).unwrap()),
                    };
                    let count = now.fetch_add(1, Ordering::SeqCst) + 1;
                    most.fetch_max(count, Ordering::SeqCst);
                    thread::yield_now();
                    now.fetch_sub(1, Ordering::SeqCst);
                    drop(place);
                }
            });
        }
    });
    let most = most.into_inner();
    assert!((1..=MOST).contains(&most), "{most}");
    for backend in pool.backends() {
        assert_eq!(
            (backend.state().in_flight(), backend.state().waiting()),
            (0, 0)
        );
    }
}
