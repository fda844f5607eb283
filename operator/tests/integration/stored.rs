//! Resources that do not decode.

use std::sync::atomic::Ordering;

use fastllm_crds::{ConditionType, FastllmProxy, Phase};
use k8s_openapi::api::events::v1::Event;
use kube::api::{ListParams, PostParams};
use serde_json::json;
use tokio::time::Instant;

use crate::cluster::{REACTION, TestCluster, UNDECODABLE, is, poll};

async fn create(cluster: &TestCluster, name: &str) {
    let mut proxy = cluster.proxy(name);
    UNDECODABLE.clone_into(&mut proxy.spec.image);
    let api = cluster.api::<FastllmProxy>();
    api.create(&PostParams::default(), &proxy).await.unwrap();
}

/// Notes of the Events about a resource.
async fn notes(cluster: &TestCluster, name: &str) -> Vec<String> {
    let events = cluster.api::<Event>();
    let all = events.list(&ListParams::default()).await.unwrap();
    let about = all.into_iter().filter(|event| {
        let regarding = event.regarding.as_ref();
        regarding.and_then(|r| r.name.as_deref()) == Some(name)
    });
    about.filter_map(|event| event.note).collect()
}

#[tokio::test]
async fn an_older_definition_is_reported_with_its_missing_fields() {
    let cluster = TestCluster::new("outdated").await;
    cluster.outdated.store(true, Ordering::Relaxed);
    let operator = cluster.operator().await;
    cluster.create("llm").await;
    let status = cluster
        .until("llm", |s| {
            is(s, ConditionType::Stalled, "True", "SchemaOutdated")
        })
        .await;
    let message = &status.condition(ConditionType::Stalled).unwrap().message;
    for part in [
        "fastllmproxies.fastllm.io",
        "spec.imagePullPolicy",
        "kubectl apply",
    ] {
        assert!(message.contains(part), "{message}");
    }
    assert_eq!(cluster.generation("llm-control").await, None);
    let metrics = operator.metrics.render();
    assert!(
        metrics.contains("fastllm_operator_crd_schema_outdated 1"),
        "{metrics}"
    );
    drop(operator);
    cluster.outdated.store(false, Ordering::Relaxed);
    let _operator = cluster.operator().await;
    cluster.install("llm-2").await;
    cluster.assert_nothing_forbidden();
}

// One of them exists before the operator starts, the other one is created later.
#[tokio::test]
async fn an_undecodable_resource_is_reported_and_does_not_affect_the_others() {
    let cluster = TestCluster::new("undecodable").await;
    create(&cluster, "listed").await;
    let operator = cluster.operator().await;
    create(&cluster, "watched").await;
    cluster.install("llm").await;
    for name in ["listed", "watched"] {
        let status = cluster
            .until(name, |s| {
                is(s, ConditionType::Stalled, "True", "InvalidValue")
            })
            .await;
        let message = &status.condition(ConditionType::Ready).unwrap().message;
        assert!(
            message.contains("spec.image: expected a string"),
            "{message}"
        );
        assert!(!message.contains("canary"), "{message}");
        assert_eq!(status.observed_generation, Some(1));
        let deadline = Instant::now() + REACTION;
        while notes(&cluster, name).await.is_empty() {
            assert!(Instant::now() < deadline, "{name} has no Event");
            poll().await;
        }
        let notes = notes(&cluster, name).await;
        assert!(
            notes[0].contains("spec.image: expected a string"),
            "{notes:?}"
        );
        assert_eq!(cluster.generation(&format!("{name}-control")).await, None);
    }
    let metrics = operator.metrics.render();
    assert!(
        metrics.contains("fastllm_operator_undecodable_resources 2"),
        "{metrics}"
    );
    // A correction is reconciled like any other change.
    cluster
        .edit("listed", json!({"image": "fastllm/fastllm-proxy:1"}))
        .await;
    cluster.deployment("listed-control", |_| true).await;
    let status = cluster
        .until("listed", |s| s.observed_generation == Some(2))
        .await;
    assert_eq!(status.phase, Some(Phase::Pending));
    assert!(!serde_json::to_string(&status).unwrap().contains("expected"));
    cluster.assert_nothing_forbidden();
}
