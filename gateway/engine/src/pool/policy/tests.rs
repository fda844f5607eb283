use std::sync::Arc;
use std::time::Duration;

use fastllm_contract::{PolicyKind, Timestamp};
use proptest::prelude::*;

use crate::RoutingState;
use crate::fixture::{model, routing_state, snapshot};
use crate::hash::mix;
use crate::pool::{BackendState, Boundary, EndpointIndex, InFlight, PickContext, Pool, Tuning};

const PICK: PickContext<'_> = PickContext {
    at: Timestamp(0),
    endpoint: EndpointIndex::new(0),
    stream: false,
    prompt: &[],
    stored: &[],
};

/// A pool of as many backends as there are weights.
fn pool_of(policy: PolicyKind, weights: &[u32]) -> Arc<Pool> {
    let ids: Vec<u64> = (1..=weights.len() as u64).collect();
    let mut described = model("a", &ids);
    described.policy = Some(policy);
    for (backend, weight) in described.backends.iter_mut().zip(weights) {
        backend.weight = *weight;
    }
    let state = routing_state(&snapshot(vec![described], Vec::new(), &[]));
    Arc::clone(state.pool("a").unwrap())
}

fn backend_state(pool: &Pool, index: usize) -> &Arc<BackendState> {
    pool.backends()[index].state()
}

fn busy(pool: &Pool, index: usize, requests: usize) -> Vec<InFlight> {
    (0..requests)
        .map(|_| backend_state(pool, index).acquire())
        .collect()
}

fn counts<const N: usize>(pool: &Pool, turns: usize) -> [usize; N] {
    let mut counts = [0; N];
    for _ in 0..turns {
        counts[pool.choose(&[], &PICK).unwrap()] += 1;
    }
    counts
}

/// The boundaries of a prompt of messages of 100 bytes.
fn prompt(messages: &[u64]) -> Vec<Boundary> {
    let mut hash = 0_u64;
    let ends = messages.iter().zip(1..).map(|(message, count)| {
        hash = mix(hash).wrapping_add(mix(message.wrapping_add(1)));
        Boundary {
            hash,
            bytes: count * 100,
        }
    });
    ends.collect()
}

fn choose(pool: &Pool, messages: &[u64]) -> usize {
    let prompt = prompt(messages);
    let pick = PickContext {
        prompt: &prompt,
        ..PICK
    };
    pool.choose(&[], &pick).unwrap()
}

fn policy() -> impl Strategy<Value = PolicyKind> {
    proptest::sample::select(PolicyKind::ALL.as_slice())
}

proptest! {
    #[test]
    fn whatever_the_policy_a_choice_is_untried_and_as_fit_as_can_be(
        policy in policy(),
        load in proptest::collection::vec(0_usize..4, 1..6),
        sick in proptest::collection::vec(any::<bool>(), 6),
        paused in proptest::collection::vec(any::<bool>(), 6),
        weight in proptest::collection::vec(0_u32..3, 6),
        tried in proptest::collection::vec(0_usize..6, 0..6),
        messages in proptest::collection::vec(any::<u64>(), 0..3),
    ) {
        let pool = pool_of(policy, &weight[..load.len()]);
        let mut guards = Vec::new();
        for (index, requests) in load.iter().enumerate() {
            guards.extend(busy(&pool, index, *requests));
            for _ in 0..if sick[index] { 2 } else { 0 } {
                backend_state(&pool, index).record_probe(false);
            }
            if paused[index] {
                backend_state(&pool, index).back_off(Timestamp(0), Duration::from_secs(1));
            }
        }
        let untried: Vec<usize> = (0..load.len()).filter(|index| !tried.contains(index)).collect();
        let only = |fit: &dyn Fn(usize) -> bool| -> Vec<usize> {
            untried.iter().copied().filter(|index| fit(*index)).collect()
        };
        let tiers = [
            only(&|index| !sick[index] && !paused[index] && weight[index] > 0),
            only(&|index| !sick[index] && !paused[index]),
            only(&|index| !sick[index]),
            untried.clone(),
        ];
        let best = tiers.into_iter().find(|tier| !tier.is_empty());
        let prompt = prompt(&messages);
        let chosen = pool.choose(&tried, &PickContext { prompt: &prompt, ..PICK }).ok();
        match (chosen, best) {
            (Some(chosen), Some(best)) => {
                prop_assert!(best.contains(&chosen));
                if policy == PolicyKind::LeastLoaded {
                    let of = |index: usize| (load[index] as u64 + 1) * 1_000 / u64::from(weight[index].max(1));
                    prop_assert_eq!(Some(of(chosen)), best.iter().map(|index| of(*index)).min());
                }
            }
            (chosen, best) => prop_assert_eq!(chosen.is_some(), best.is_some()),
        }
    }

    #[test]
    fn a_conversation_stays_where_it_began(
        system in proptest::option::of(any::<u64>()),
        turns in proptest::collection::vec(any::<u64>(), 1..20),
        backends in 2_usize..5,
    ) {
        let pool = pool_of(PolicyKind::CacheAffinity, &vec![1; backends]);
        let all: Vec<u64> = system.into_iter().chain(turns).collect();
        let first = choose(&pool, &all[..1]);
        for end in 2..=all.len() {
            prop_assert_eq!(choose(&pool, &all[..end]), first);
        }
    }
}

#[test]
fn equal_backends_rotate() {
    for policy in [
        PolicyKind::LeastLoaded,
        PolicyKind::RoundRobin,
        PolicyKind::LowestLatency,
    ] {
        let pool = pool_of(policy, &[1, 1, 1]);
        assert_eq!(pool.policy(), policy);
        assert_eq!(counts(&pool, 30), [10, 10, 10], "{policy}");
    }
    // Without a prompt there is no affinity.
    assert_eq!(
        counts(&pool_of(PolicyKind::CacheAffinity, &[1, 1, 1]), 30),
        [10, 10, 10]
    );
}

#[test]
fn heavier_backend_gets_more_requests() {
    let turns = pool_of(PolicyKind::RoundRobin, &[3, 1]);
    let [heavy, light] = counts(&turns, 400);
    assert!(
        (295..=305).contains(&heavy) && heavy + light == 400,
        "{heavy}"
    );
    // Evenly spread: no four turns without the light backend.
    let mut since = 0;
    for _ in 0..100 {
        since = if turns.choose(&[], &PICK) == Ok(1) {
            0
        } else {
            since + 1
        };
        assert!(since <= 5);
    }

    let loaded = pool_of(PolicyKind::LeastLoaded, &[3, 1]);
    let mut guards = Vec::new();
    for _ in 0..40 {
        let chosen = loaded.choose(&[], &PICK).unwrap();
        guards.extend(busy(&loaded, chosen, 1));
    }
    assert_eq!(
        [0, 1].map(|index| backend_state(&loaded, index).in_flight()),
        [30, 10]
    );
}

#[test]
fn conversations_are_spread_and_sticky() {
    let pool = pool_of(PolicyKind::CacheAffinity, &[1, 1]);
    let chosen: Vec<usize> = (0..10).map(|who| choose(&pool, &[who, 1])).collect();
    assert_eq!(chosen.iter().sum::<usize>(), 5);
    for (who, chosen) in (0..10).zip(&chosen) {
        assert_eq!(choose(&pool, &[who, 1, 2, 3]), *chosen);
    }
}

#[test]
fn affinity_ends_at_eight_more_requests() {
    let pool = pool_of(PolicyKind::CacheAffinity, &[1, 1]);
    let home = choose(&pool, &[1]);
    let mut guards = busy(&pool, home, 8);
    assert_eq!(choose(&pool, &[1]), home);
    guards.extend(busy(&pool, home, 1));
    assert_ne!(choose(&pool, &[1]), home);
    // What was known stays known.
    drop(guards);
    assert_eq!(choose(&pool, &[1]), home);

    // The least load counts, too: half of 20 more.
    let _base = [busy(&pool, 0, 20), busy(&pool, 1, 20)];
    let mut guards = busy(&pool, home, 10);
    assert_eq!(choose(&pool, &[1]), home);
    guards.extend(busy(&pool, home, 1));
    assert_ne!(choose(&pool, &[1]), home);
}

#[test]
fn diverted_conversation_stays_where_it_went() {
    let pool = pool_of(PolicyKind::CacheAffinity, &[1, 1]);
    let home = choose(&pool, &[1]);
    let guards = busy(&pool, home, 9);
    let away = choose(&pool, &[1, 2, 3]);
    assert_ne!(away, home);
    drop(guards);
    assert_eq!(choose(&pool, &[1, 2, 3, 4]), away);
    assert_eq!(choose(&pool, &[1]), home);
}

#[test]
fn short_shared_prefix_does_not_attract_requests() {
    let pool = pool_of(PolicyKind::CacheAffinity, &[1, 1]);
    let home = choose(&pool, &[1]);
    assert_eq!(choose(&pool, &[1, 20, 30, 40]), home);
    let _guard = busy(&pool, home, 1);
    assert_ne!(choose(&pool, &[1, 21, 31, 41]), home);
    assert_eq!(choose(&pool, &[1, 20, 30, 40, 50]), home);
}

#[test]
fn conversation_moves_on_failure_and_stays() {
    let pool = pool_of(PolicyKind::CacheAffinity, &[1, 1]);
    let home = choose(&pool, &[1]);
    for _ in 0..2 {
        backend_state(&pool, home).record_probe(false);
    }
    let away = choose(&pool, &[1, 2]);
    assert_ne!(away, home);
    backend_state(&pool, home).record_probe(true);
    assert_eq!(choose(&pool, &[1, 2, 3]), away);
}

#[test]
fn prefixes_are_per_model_and_outlive_snapshots() {
    let named = |name: &str| model(name, &[1, 2]);
    let first = snapshot(vec![named("a"), named("b")], Vec::new(), &[]);
    let first = routing_state(&first);
    let pool = |state: &RoutingState, name: &str| Arc::clone(state.pool(name).unwrap());
    let home = choose(&pool(&first, "a"), &[1]);
    let _guard = busy(&pool(&first, "a"), home, 1);
    // Both models are served by the same two, so the load is shared.
    assert_ne!(choose(&pool(&first, "b"), &[1]), home);

    let second = snapshot(vec![named("a"), named("c")], Vec::new(), &[]);
    let second = RoutingState::build(&second, Some(&first), &Tuning::default()).unwrap();
    assert_eq!(choose(&pool(&second.state, "a"), &[1]), home);
}

#[test]
fn fastest_and_nearly_fastest_backends_get_requests() {
    let pool = pool_of(PolicyKind::LowestLatency, &[1, 1, 1]);
    for (index, micros) in [(0, 800), (1, 900), (2, 901)] {
        backend_state(&pool, index).record_latency(false, Duration::from_micros(micros));
    }
    assert_eq!(counts(&pool, 62), [31, 31, 0]);
    // Streams are measured apart: nothing is known of them.
    let streamed = PickContext {
        stream: true,
        ..PICK
    };
    let _busy = [busy(&pool, 0, 1), busy(&pool, 1, 1)];
    assert_eq!(pool.choose(&[], &streamed), Ok(2));
}

#[test]
fn slow_backend_is_measured_again() {
    let pool = pool_of(PolicyKind::LowestLatency, &[1, 1]);
    backend_state(&pool, 0).record_latency(false, Duration::from_micros(1));
    backend_state(&pool, 1).record_latency(false, Duration::from_secs(1));
    let [fast, slow] = counts(&pool, 640);
    assert!((1..=10).contains(&slow) && fast + slow == 640, "{slow}");
}

#[test]
fn default_policy_applies_without_a_policy() {
    let snapshot = snapshot(vec![model("a", &[1, 2])], Vec::new(), &[]);
    let tuning = Tuning {
        policy: PolicyKind::RoundRobin,
        ..Tuning::default()
    };
    let state = RoutingState::build(&snapshot, None, &tuning).unwrap().state;
    assert_eq!(state.pool("a").unwrap().policy(), PolicyKind::RoundRobin);
    assert_eq!(state.policy(), PolicyKind::RoundRobin);
}
