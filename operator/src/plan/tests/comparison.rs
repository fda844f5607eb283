//! The comparison of live objects with manifests.

use serde_json::{Value, json};

use crate::fake_cluster::FakeCluster;
use crate::plan::{covers, plan};

#[test]
fn quantities_are_compared_by_value() {
    let limits = |cpu: &str| json!({"limits": {"cpu": cpu}, "args": ["1000m"]});
    for (api, user) in [
        ("500m", "0.5"),
        ("1", "1000m"),
        ("1Gi", "1024Mi"),
        ("1k", "1e3"),
        ("1536Mi", "1.5Gi"),
        ("100M", "0.1G"),
    ] {
        assert!(covers(&limits(api), &limits(user)), "{api} {user}");
    }
    for (api, user) in [("500m", "5"), ("1Gi", "1G"), ("1", "x")] {
        assert!(!covers(&limits(api), &limits(user)), "{api} {user}");
    }
    let other = json!({"limits": {"cpu": "1"}, "args": ["1"]});
    assert!(!covers(&other, &limits("1")));
}

fn manifest() -> Value {
    json!({"spec": {
        "selector": {"app": "x"},
        "labels": {"app": "x"},
        "template": {
            "args": ["a"],
            "topologySpreadConstraints": [{
                "topologyKey": "host", "whenUnsatisfiable": "ScheduleAnyway", "maxSkew": 1,
                "labelSelector": {"matchLabels": {"app": "x"}},
            }],
            "containers": [{
                "name": "c",
                "env": [{"name": "E", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}],
                "ports": [{"containerPort": 80, "protocol": "TCP"}],
                "volumeMounts": [{"name": "v", "mountPath": "/v"}],
            }],
        },
        "ports": [{"port": 80, "protocol": "TCP", "name": "http"}],
        "ownerReferences": [{"uid": "u", "name": "llm"}],
    }})
}

#[test]
fn additional_members_count_where_server_side_apply_would_remove_them() {
    let desired = manifest();
    let constraint = "/spec/template/topologySpreadConstraints/0";
    let cases = [
        ("/spec/selector", "other", json!("y"), false),
        ("/spec/labels", "other", json!("y"), true),
        (
            &format!("{constraint}/labelSelector/matchLabels"),
            "other",
            json!("y"),
            false,
        ),
        (
            &format!("{constraint}/labelSelector"),
            "matchExpressions",
            json!([]),
            false,
        ),
        (constraint, "minDomains", json!(2), true),
        (
            "/spec/template/containers/0/env/0/valueFrom/secretKeyRef",
            "optional",
            json!(true),
            false,
        ),
        ("/spec/template/containers/0", "tty", json!(true), true),
        ("/spec/template", "nodeSelector", json!({"zone": "a"}), true),
    ];
    for (pointer, member, value, same) in cases {
        let mut live = desired.clone();
        live.pointer_mut(pointer).unwrap()[member] = value;
        assert_eq!(covers(&live, &desired), same, "{pointer} {member}");
    }
}

#[test]
fn additional_items_count_where_server_side_apply_would_remove_them() {
    let desired = manifest();
    let lists = [
        ("/spec/template/args", json!("b"), false),
        (
            "/spec/template/topologySpreadConstraints",
            json!({"topologyKey": "zone", "whenUnsatisfiable": "ScheduleAnyway"}),
            true,
        ),
        (
            "/spec/template/containers",
            json!({"name": "injected"}),
            true,
        ),
        (
            "/spec/template/containers/0/env",
            json!({"name": "X"}),
            true,
        ),
        (
            "/spec/template/containers/0/ports",
            json!({"containerPort": 81}),
            true,
        ),
        (
            "/spec/template/containers/0/volumeMounts",
            json!({"mountPath": "/w"}),
            true,
        ),
        ("/spec/ports", json!({"port": 81, "protocol": "TCP"}), true),
        (
            "/spec/ownerReferences",
            json!({"uid": "other", "name": "llm"}),
            true,
        ),
    ];
    for (pointer, item, same) in lists {
        for first in [true, false] {
            let mut live = desired.clone();
            let Some(Value::Array(items)) = live.pointer_mut(pointer) else {
                panic!("{pointer} is not a list");
            };
            items.insert(if first { 0 } else { items.len() }, item.clone());
            assert_eq!(covers(&live, &desired), same, "{pointer}");
        }
    }
}

#[test]
fn an_additional_label_in_the_selector_of_a_service_is_removed() {
    let mut cluster = FakeCluster::ready();
    let service = cluster.children.gateway_service.as_mut().unwrap();
    let selector = service.spec.as_mut().unwrap().selector.as_mut().unwrap();
    selector.insert("no".to_owned(), "endpoints".to_owned());
    let steps = plan(&cluster.proxy, &cluster.observe()).steps;
    assert_eq!(super::kinds(&steps), ["apply Service llm-proxy (Restore)"]);
}
