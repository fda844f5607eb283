use std::sync::Arc;
use std::time::Duration;

use fastllm_contract::{Model, PolicyKind, Timestamp};

use super::{NoSlot, Pool};
use crate::fixture::{model, routing_state, snapshot};
use crate::pool::{EndpointIndex, PickContext};

const PICK: PickContext<'_> = PickContext {
    at: Timestamp(0),
    endpoint: EndpointIndex::new(0),
    stream: false,
    prompt: &[],
    stored: &[],
};

/// Three backends, after a change.
fn pool(change: impl FnOnce(&mut Model)) -> Arc<Pool> {
    let mut described = model("a", &[1, 2, 3]);
    described.policy = Some(PolicyKind::RoundRobin);
    change(&mut described);
    let state = routing_state(&snapshot(vec![described], Vec::new(), &[]));
    Arc::clone(state.pool("a").unwrap())
}

fn limited(model: &mut Model, limits: [Option<u32>; 3]) {
    for (backend, limit) in model.backends.iter_mut().zip(limits) {
        backend.concurrency.max = limit;
    }
}

#[test]
fn full_backend_is_skipped_until_all_are_full() {
    let pool = pool(|model| limited(model, [Some(1), Some(2), Some(1)]));
    let mut places: Vec<_> = (0..4).map(|_| pool.acquire(&[], &PICK).unwrap()).collect();
    let mut taken: Vec<_> = places.iter().map(|(index, _)| *index).collect();
    taken.sort_unstable();
    assert_eq!(taken, [0, 1, 1, 2]);
    assert_eq!(pool.acquire(&[], &PICK).unwrap_err(), NoSlot::Full);
    // One that was tried is no reason to wait.
    assert_eq!(
        pool.acquire(&[0, 1, 2], &PICK).unwrap_err(),
        NoSlot::Exhausted
    );
    let (freed, place) = places.pop().unwrap();
    drop(place);
    assert_eq!(pool.acquire(&[], &PICK).unwrap().0, freed);
}

#[test]
fn queueing_is_preferred_to_an_unhealthy_backend() {
    let pool = pool(|model| limited(model, [Some(1), None, None]));
    for sick in [1, 2] {
        for _ in 0..2 {
            pool.backends()[sick].state().record_probe(false);
        }
    }
    let (index, place) = pool.acquire(&[], &PICK).unwrap();
    assert_eq!(index, 0);
    assert_eq!(pool.acquire(&[], &PICK).unwrap_err(), NoSlot::Full);
    // All of them are tried nevertheless where nothing better is left.
    assert!(pool.acquire(&[0], &PICK).is_ok());
    drop(place);
    let second = Duration::from_secs(1);
    pool.backends()[0].state().back_off(Timestamp(0), second);
    assert_eq!(pool.acquire(&[], &PICK).unwrap().0, 0);
}

#[test]
fn draining_backend_gets_no_requests() {
    let drained = pool(|model| model.backends[1].draining = true);
    for _ in 0..20 {
        assert_ne!(drained.acquire(&[], &PICK).unwrap().0, 1);
    }
    assert!(drained.has_another(&[0]) && !drained.has_another(&[0, 2]));
    assert_eq!(
        drained.acquire(&[0, 2], &PICK).unwrap_err(),
        NoSlot::Exhausted
    );

    let all = pool(|model| {
        for backend in &mut model.backends {
            backend.draining = true;
        }
    });
    assert_eq!(all.acquire(&[], &PICK).unwrap_err(), NoSlot::Exhausted);
    assert!(!all.is_open() && !all.is_available(PICK.at, PICK.endpoint));

    let one = pool(|model| {
        model.backends.truncate(1);
        model.backends[0].draining = true;
    });
    assert_eq!(one.acquire(&[], &PICK).unwrap_err(), NoSlot::Exhausted);
}

#[test]
fn share_grows_back_after_an_ejection() {
    let pool = pool(|model| drop(model.backends.pop()));
    for _ in 0..5 {
        pool.backends()[0].state().record_failure(Timestamp(0));
    }
    let share = |second: i64| {
        let pick = PickContext {
            at: Timestamp(second * 1_000_000),
            ..PICK
        };
        let turns = (0..1_000).filter(|_| pool.choose(&[], &pick) == Ok(0));
        turns.count()
    };
    assert_eq!(share(0), 0);
    let begin = share(1);
    assert!((20..90).contains(&begin), "{begin}");
    let half = share(16);
    assert!((200..350).contains(&half), "{half}");
    assert_eq!(share(31), 500);
}

#[test]
fn returning_backend_is_preferred_to_one_without_weight() {
    let pool = pool(|model| {
        model.backends.pop();
        model.backends[1].weight = 0;
    });
    for _ in 0..5 {
        pool.backends()[0].state().record_failure(Timestamp(0));
    }
    let later = PickContext {
        at: Timestamp(1_000_000),
        ..PICK
    };
    assert!((0..100).all(|_| pool.choose(&[], &later) == Ok(0)));
    assert!((0..100).all(|_| pool.choose(&[], &PICK) == Ok(1)));
    assert!((0..100).all(|_| pool.choose(&[1], &PICK) == Ok(0)));
}
