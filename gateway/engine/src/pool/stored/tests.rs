use std::collections::HashSet;
use std::sync::Arc;

use fastllm_contract::{Concurrency, PolicyKind, Timestamp};

use crate::fixture::{model, routing_state, snapshot};
use crate::hash::mix;
use crate::pool::{EndpointIndex, NoSlot, PickContext, Pool};

const AT: Timestamp = Timestamp(0);

/// A pool of three backends, each with one slot.
fn pool(policy: PolicyKind) -> Arc<Pool> {
    let mut described = model("a", &[1, 2, 3]);
    described.policy = Some(policy);
    for backend in &mut described.backends {
        backend.concurrency = Concurrency {
            max: Some(1),
            ..Concurrency::default()
        };
    }
    let state = routing_state(&snapshot(vec![described], Vec::new(), &[]));
    Arc::clone(state.pool("a").unwrap())
}

fn pick(stored: &[u64]) -> PickContext<'_> {
    PickContext {
        at: AT,
        endpoint: EndpointIndex::default(),
        stream: false,
        prompt: &[],
        stored,
    }
}

#[test]
fn the_owner_of_an_object_is_chosen_with_every_policy() {
    for policy in [
        PolicyKind::CacheAffinity,
        PolicyKind::LeastLoaded,
        PolicyKind::RoundRobin,
        PolicyKind::LowestLatency,
    ] {
        let pool = pool(policy);
        for object in 1..100 {
            let owner = usize::try_from(mix(object) % 3).unwrap();
            pool.record_owner(owner, object);
        }
        for object in 1..100 {
            let owner = usize::try_from(mix(object) % 3).unwrap();
            assert!(pool.has_owner(&[object]));
            assert_eq!(pool.choose(&[], &pick(&[object])), Ok(owner));
            // The first one that is known decides.
            assert_eq!(pool.choose(&[], &pick(&[7_000, object])), Ok(owner));
        }
    }
}

#[test]
fn unknown_objects_have_the_same_order_on_every_gateway() {
    let (one, other) = (pool(PolicyKind::RoundRobin), pool(PolicyKind::LeastLoaded));
    let mut first = HashSet::new();
    for object in 1..100 {
        let (mut tried, mut others) = (Vec::new(), Vec::new());
        for _ in 0..3 {
            tried.push(one.choose(&tried, &pick(&[object])).unwrap());
            others.push(other.choose(&others, &pick(&[object])).unwrap());
        }
        assert_eq!(tried, others);
        assert_eq!(one.choose(&tried, &pick(&[object])), Err(NoSlot::Exhausted));
        first.insert(tried[0]);
    }
    assert_eq!(first.len(), 3);
}

#[test]
fn a_full_owner_is_waited_for() {
    let pool = pool(PolicyKind::LeastLoaded);
    pool.record_owner(1, 5);
    let slot = pool.acquire(&[], &pick(&[5])).unwrap();
    assert_eq!(slot.0, 1);
    assert_eq!(pool.acquire(&[], &pick(&[5])).err(), Some(NoSlot::Full));
    let _waiting = pool.wait_for_slot(&[], &pick(&[5])).unwrap();
    let waiting = |index: usize| pool.backends()[index].state().waiting();
    assert_eq!([waiting(0), waiting(1), waiting(2)], [0, 1, 0]);
    // Others are not affected.
    assert_ne!(pool.acquire(&[], &pick(&[])).unwrap().0, 1);
}

#[test]
fn an_unavailable_owner_comes_last() {
    let pool = pool(PolicyKind::LeastLoaded);
    pool.record_owner(1, 5);
    for _ in 0..10 {
        pool.backends()[1].state().record_failure(AT);
    }
    let mut tried = Vec::new();
    for _ in 0..3 {
        tried.push(pool.choose(&tried, &pick(&[5])).unwrap());
    }
    assert_eq!(tried[2], 1);
}

#[test]
fn a_draining_backend_is_no_owner() {
    let mut described = model("a", &[1, 2]);
    described.backends[0].draining = true;
    let state = routing_state(&snapshot(vec![described], Vec::new(), &[]));
    let pool = state.pool("a").unwrap();
    pool.record_owner(0, 5);
    assert!(!pool.has_owner(&[5]));
    assert_eq!(pool.choose(&[], &pick(&[5])), Ok(1));
}
