use fastllm_crds::Phase;
use kube::runtime::watcher::Event;
use serde_json::{Value, json};

use super::{StoredProxy, UndecodableProxies};
use crate::fake_cluster::{FakeCluster, proxy};

fn stored() -> Value {
    let mut proxy = proxy();
    proxy.status = Some(FakeCluster::ready().status());
    serde_json::to_value(proxy).unwrap()
}

fn parse(value: &Value) -> StoredProxy {
    serde_json::from_value(value.clone()).unwrap()
}

fn defect(value: &Value) -> String {
    match parse(value) {
        StoredProxy::Decoded(_) => panic!("{value} decodes"),
        StoredProxy::Undecodable(proxy) => proxy.defect,
    }
}

#[test]
fn a_defect_names_the_field_and_the_expected_form_without_the_value() {
    let cases = [
        (
            "/spec/imagePullPolicy",
            json!("canary"),
            "spec.imagePullPolicy: expected one of `Always`, `IfNotPresent`, `Never`",
        ),
        (
            "/spec/database",
            json!("postgres://user:canary@db, expected/x"),
            "spec.database: expected an object",
        ),
        (
            "/spec/proxy/replicas",
            json!(99_999_999_999_i64),
            "spec.proxy.replicas: expected i32",
        ),
        (
            "/spec/database",
            json!({"name": "db"}),
            "spec.database: missing field `key`",
        ),
        ("/spec", json!(null), "spec: expected an object"),
    ];
    for (pointer, value, expected) in cases {
        let mut bad = stored();
        *bad.pointer_mut(pointer).unwrap() = value;
        assert_eq!(defect(&bad), expected);
    }
}

#[test]
fn a_list_with_an_undecodable_resource_decodes() {
    let mut bad = stored();
    bad["spec"]["imagePullPolicy"] = json!("Sometimes");
    bad["metadata"]["name"] = json!("bad");
    let list: Vec<StoredProxy> = serde_json::from_value(json!([bad, stored()])).unwrap();
    let undecodable = UndecodableProxies::default();
    let mut kept = Vec::new();
    for event in [Event::Init]
        .into_iter()
        .chain(list.into_iter().map(Event::InitApply))
        .chain([Event::InitDone])
    {
        if let Some(Event::InitApply(proxy)) = undecodable.decoded(event) {
            kept.push(proxy.metadata.name.unwrap());
        }
    }
    assert_eq!(kept, ["llm"]);
    assert_eq!(undecodable.count(), 1);
    let found = undecodable.unreported();
    assert_eq!(found[0].metadata.name.as_deref(), Some("bad"));
    assert!(found[0].status.bootstrapped);
}

#[test]
fn a_resource_is_reported_once_per_generation_and_forgotten_when_it_decodes() {
    let mut bad = stored();
    bad["spec"]["imagePullPolicy"] = json!("Sometimes");
    let undecodable = UndecodableProxies::default();
    let apply = |value: &Value| undecodable.decoded(Event::Apply(parse(value)));
    assert!(
        matches!(apply(&bad), Some(Event::Delete(p)) if p.metadata.name.as_deref() == Some("llm"))
    );
    let found = undecodable.unreported();
    undecodable.set_reported(&found[0]);
    // Its own status write.
    bad["metadata"]["resourceVersion"] = json!("12");
    apply(&bad);
    assert_eq!(undecodable.unreported(), []);
    // A new list, as after a disconnected watch.
    for event in [Event::Init, Event::InitApply(parse(&bad)), Event::InitDone] {
        undecodable.decoded(event);
    }
    assert_eq!((undecodable.unreported(), undecodable.count()), (vec![], 1));
    bad["metadata"]["generation"] = json!(2);
    apply(&bad);
    assert_eq!(undecodable.unreported().len(), 1);
    assert!(matches!(apply(&stored()), Some(Event::Apply(_))));
    assert_eq!(undecodable.count(), 0);
    apply(&bad);
    undecodable.decoded(Event::Delete(parse(&bad)));
    assert_eq!(undecodable.count(), 0);
    apply(&bad);
    for event in [Event::Init, Event::InitDone] {
        undecodable.decoded(event);
    }
    assert_eq!(undecodable.count(), 0);
}

#[test]
fn an_unknown_phase_of_a_newer_release_does_not_hide_the_resource() {
    let mut newer = stored();
    newer["status"]["phase"] = json!("Sleeping");
    newer["status"]["conditions"][0]["lastTransitionTime"] = json!(7);
    let StoredProxy::Decoded(proxy) = parse(&newer) else {
        panic!("the resource does not decode");
    };
    let status = proxy.status.unwrap();
    assert_eq!((status.phase, status.conditions.len()), (None, 0));
    assert!(status.bootstrapped);
    let StoredProxy::Decoded(proxy) = parse(&stored()) else {
        panic!("the resource does not decode");
    };
    assert_eq!(proxy.status.unwrap().phase, Some(Phase::Ready));
}
