use std::collections::BTreeSet;

use fastllm_contract::Timestamp;
use proptest::prelude::*;

use super::{granted_models, resolve};
use crate::fixture::{key, model, principal, snapshot};
use crate::{Caller, Refusal, Tables, identify};

const NAMES: [&str; 6] = ["a", "b", "c", "A", "a/b", "a "];

fn tables_and_caller(models: &[&str], granted: &[&str]) -> (Tables, Caller) {
    let models = models.iter().map(|name| model(name, &[1, 2])).collect();
    let snapshot = snapshot(models, vec![principal(1, granted)], &[key("sk", 1)]);
    let tables = Tables::build(&snapshot, None).unwrap().tables;
    let caller = identify(&tables, Some(b"sk"), Timestamp(0)).unwrap();
    (tables, caller)
}

#[test]
fn a_name_nobody_serves_is_404_before_grants_are_asked() {
    let (tables, _) = tables_and_caller(&["a"], &["b"]);
    assert_eq!(resolve(&tables, "b").unwrap_err(), Refusal::ModelNotFound);
}

#[test]
fn a_model_without_a_grant_is_403() {
    let (tables, caller) = tables_and_caller(&["a", "b"], &["b"]);
    let refusal = resolve(&tables, "a")
        .unwrap()
        .authorise(&caller)
        .unwrap_err();
    assert_eq!(refusal, Refusal::ModelAccessDenied);
}

fn subset() -> impl Strategy<Value = Vec<&'static str>> {
    proptest::sample::subsequence(NAMES.as_slice(), 0..=NAMES.len())
}

proptest! {
    #[test]
    fn never_an_ungranted_model(
        models in subset(),
        granted in subset(),
        requested in proptest::sample::select(NAMES.as_slice()),
    ) {
        let (tables, caller) = tables_and_caller(&models, &granted);
        let outcome = resolve(&tables, requested).and_then(|found| found.authorise(&caller));
        match outcome {
            Ok(chain) => {
                prop_assert!(!chain.pools().is_empty());
                for pool in chain.pools() {
                    prop_assert!(granted.contains(&pool.model().as_str()));
                }
            }
            Err(Refusal::ModelNotFound) => prop_assert!(!models.contains(&requested)),
            Err(refusal) => {
                prop_assert_eq!(refusal, Refusal::ModelAccessDenied);
                prop_assert!(!granted.contains(&requested));
            }
        }
        let listed: BTreeSet<_> = granted_models(&tables, &caller).collect();
        let expected: BTreeSet<_> =
            models.iter().copied().filter(|name| granted.contains(name)).collect();
        prop_assert_eq!(listed, expected);
    }

    #[test]
    fn a_choice_is_untried_healthy_where_possible_and_least_loaded(
        load in proptest::collection::vec(0_u64..4, 1..6),
        sick in proptest::collection::vec(any::<bool>(), 6),
        tried in proptest::collection::vec(0_usize..6, 0..6),
    ) {
        let ids: Vec<u64> = (1..=load.len() as u64).collect();
        let snapshot = snapshot(vec![model("a", &ids)], Vec::new(), &[]);
        let tables = Tables::build(&snapshot, None).unwrap().tables;
        let pool = tables.pool("a").unwrap();
        let mut guards = Vec::new();
        for (index, backend) in pool.backends().iter().enumerate() {
            guards.extend((0..load[index]).map(|_| backend.live().begin()));
            if sick[index] {
                backend.live().probed(false);
                backend.live().probed(false);
            }
        }
        let untried: Vec<usize> =
            (0..load.len()).filter(|index| !tried.contains(index)).collect();
        let well: Vec<usize> = untried.iter().copied().filter(|index| !sick[*index]).collect();
        let best = if well.is_empty() { &untried } else { &well };
        let least = best.iter().map(|index| load[*index]).min();
        match pool.choose(&tried) {
            Some(chosen) => {
                prop_assert!(best.contains(&chosen));
                prop_assert_eq!(Some(load[chosen]), least);
            }
            None => prop_assert!(untried.is_empty()),
        }
    }
}

#[test]
fn equally_loaded_backends_take_turns() {
    let snapshot = snapshot(vec![model("a", &[1, 2, 3])], Vec::new(), &[]);
    let tables = Tables::build(&snapshot, None).unwrap().tables;
    let pool = tables.pool("a").unwrap();
    let mut chosen = [0; 3];
    for _ in 0..30 {
        chosen[pool.choose(&[]).unwrap()] += 1;
    }
    assert_eq!(chosen, [10, 10, 10]);
}
