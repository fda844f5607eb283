use std::sync::Arc;

use fastllm_contract::{Backend, BackendId, PrincipalId, Secret};

use super::{InvalidSnapshot, RoutingState};
use crate::caller::hash_key;
use crate::fixture::{key, model, name, principal, snapshot, virtual_model, with_virtual};
use crate::pool::{InvalidBackend, Tuning};

#[test]
fn invalid_backend_is_skipped_alone() {
    let mut pair = model("a", &[1, 2]);
    pair.backends[0].api_base = "not an address".to_owned();
    let snapshot = snapshot(vec![pair, model("b", &[3])], Vec::new(), &[]);
    let built = RoutingState::build(&snapshot, None, &Tuning::default()).unwrap();
    assert_eq!(built.skipped_backends.len(), 1);
    assert_eq!(built.skipped_backends[0].backend, BackendId(1));
    assert_eq!(built.skipped_backends[0].reason, InvalidBackend::Address);
    let served: Vec<_> = built
        .state
        .backends()
        .map(|(_, backend)| backend.id())
        .collect();
    assert_eq!(served, [BackendId(2), BackendId(3)]);
}

#[test]
fn counters_and_health_of_unchanged_backends_outlive_snapshots() {
    let first = snapshot(vec![model("a", &[1, 2])], Vec::new(), &[]);
    let first = RoutingState::build(&first, None, &Tuning::default())
        .unwrap()
        .state;
    for (_, backend) in first.backends() {
        drop(backend.state().acquire());
        backend.state().record_probe(false);
        backend.state().record_probe(false);
    }

    let mut changed = model("a", &[1, 2]);
    changed.backends[1].api_key = Some(Secret::new("new"));
    let second = snapshot(vec![changed, model("c", &[4])], Vec::new(), &[]);
    let second = RoutingState::build(&second, Some(&first), &Tuning::default())
        .unwrap()
        .state;
    let seen: Vec<_> = second
        .backends()
        .map(|(_, backend)| (backend.state().requests(), backend.state().healthy()))
        .collect();
    assert_eq!(seen, [(1, false), (0, true), (0, true)]);
}

#[test]
fn settings_that_keep_a_backend_identity() {
    let first = snapshot(vec![model("a", &[1])], Vec::new(), &[]);
    let first = RoutingState::build(&first, None, &Tuning::default())
        .unwrap()
        .state;
    let live_after = |change: fn(&mut Backend)| {
        let mut changed = model("a", &[1]);
        change(&mut changed.backends[0]);
        let next = snapshot(vec![changed], Vec::new(), &[]);
        let next = RoutingState::build(&next, Some(&first), &Tuning::default()).unwrap();
        let (_, backend) = next.state.backends().next().unwrap();
        Arc::clone(backend.state())
    };
    let (_, before) = first.backends().next().unwrap();
    let kept: [fn(&mut Backend); 4] = [
        |backend| backend.concurrency.max = Some(3),
        |backend| backend.draining = true,
        |backend| backend.weight = 7,
        |backend| backend.health.enabled = false,
    ];
    for change in kept {
        assert!(Arc::ptr_eq(before.state(), &live_after(change)));
    }
    let others: [fn(&mut Backend); 3] = [
        |backend| backend.request_options.path_template = Some("/x{sub_path}".to_owned()),
        |backend| {
            let query = &mut backend.request_options.query;
            query.insert("a".to_owned(), "b".to_owned());
        },
        |backend| {
            let header = ("x-a".to_owned(), Secret::new("b"));
            backend.request_options.headers.extend([header]);
        },
    ];
    for change in others {
        assert!(!Arc::ptr_eq(before.state(), &live_after(change)));
    }
}

#[test]
fn one_address_under_two_models_shares_its_state() {
    let snapshot = snapshot(vec![model("a", &[1]), model("b", &[1])], Vec::new(), &[]);
    let state = RoutingState::build(&snapshot, None, &Tuning::default())
        .unwrap()
        .state;
    let lives: Vec<_> = state
        .backends()
        .map(|(_, backend)| backend.state())
        .collect();
    assert!(Arc::ptr_eq(lives[0], lives[1]));
}

#[test]
fn unchanged_sections_are_shared() {
    let one = snapshot(
        vec![model("a", &[1])],
        vec![principal(1, &["a"])],
        &[key("sk-one", 1), key("sk-two", 1)],
    );
    let two = snapshot(
        vec![model("a", &[1])],
        vec![principal(1, &[])],
        &[key("sk-one", 1), key("sk-three", 1)],
    );
    let held = RoutingState::build(&one, None, &Tuning::default())
        .unwrap()
        .state;
    let next = RoutingState::build(&two, Some(&held), &Tuning::default())
        .unwrap()
        .state;
    assert!(Arc::ptr_eq(&held.models, &next.models));
    assert!(!Arc::ptr_eq(&held.principals, &next.principals));
    assert!(!next.principal(PrincipalId(1)).unwrap().may_use("a"));

    let shard = |secret: &str| hash_key(secret.as_bytes()).0[0];
    assert!(next.keys().shares_shard(held.keys(), shard("sk-one")));
    assert!(!next.keys().shares_shard(held.keys(), shard("sk-three")));
    assert!(next.keys().get(&hash_key(b"sk-two")).is_none());
    assert!(next.keys().get(&hash_key(b"sk-three")).is_some());
}

#[test]
fn virtual_models_are_shared_and_must_have_unique_names() {
    let build = |names: &[&str], models: &[&str], held: Option<&RoutingState>| {
        let models = models.iter().map(|name| model(name, &[1])).collect();
        let stands = names
            .iter()
            .map(|name| virtual_model(name, Vec::new(), &[("a", 1)]));
        let snapshot = with_virtual(snapshot(models, Vec::new(), &[]), stands.collect());
        RoutingState::build(&snapshot, held, &Tuning::default()).map(|built| built.state)
    };
    let held = build(&["v", "w"], &["a"], None).unwrap();
    let same = build(&["v", "w"], &["a", "b"], Some(&held)).unwrap();
    assert!(Arc::ptr_eq(&held.virtual_models, &same.virtual_models));
    assert!(Arc::ptr_eq(&held.affinity, &same.affinity));
    let other = build(&["v"], &["a"], Some(&held)).unwrap();
    assert!(other.virtual_model("w").is_none() && held.virtual_model("w").is_some());

    // Also where the part is taken over and only the models changed.
    for held in [None, Some(&held)] {
        let clash = build(&["v", "w"], &["a", "w"], held).unwrap_err();
        assert_eq!(clash, InvalidSnapshot::DuplicateModel(name("w")));
    }
    let twice = build(&["v", "v"], &["a"], None).unwrap_err();
    assert_eq!(twice, InvalidSnapshot::DuplicateModel(name("v")));
}

#[test]
fn contradictory_or_incomplete_snapshot_is_rejected() {
    let twice = snapshot(vec![model("a", &[1]), model("a", &[2])], Vec::new(), &[]);
    assert_eq!(
        RoutingState::build(&twice, None, &Tuning::default()).unwrap_err(),
        InvalidSnapshot::DuplicateModel(name("a"))
    );

    let twice = snapshot(
        Vec::new(),
        vec![principal(1, &[]), principal(1, &["a"])],
        &[],
    );
    assert_eq!(
        RoutingState::build(&twice, None, &Tuning::default()).unwrap_err(),
        InvalidSnapshot::DuplicatePrincipal(PrincipalId(1))
    );

    let mut format = snapshot(Vec::new(), Vec::new(), &[]);
    format.format = 0;
    assert_eq!(
        RoutingState::build(&format, None, &Tuning::default()).unwrap_err(),
        InvalidSnapshot::Format(0)
    );

    let whole = snapshot(vec![model("a", &[1])], Vec::new(), &[]);
    assert_eq!(
        RoutingState::build(&whole.digests(), None, &Tuning::default()).unwrap_err(),
        InvalidSnapshot::Incomplete("models")
    );
}
