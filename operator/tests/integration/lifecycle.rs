//! Creation, change and deletion of resources, and objects of other owners.

use fastllm_crds::{ConditionType, FastllmProxy};
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{Service, ServiceAccount};
use kube::ResourceExt as _;
use kube::api::{Api, DeleteParams, PostParams};
use serde_json::json;
use tokio::time::Instant;

use crate::cluster::{TestCluster, is};

#[tokio::test]
async fn a_new_resource_has_a_status_within_two_seconds() {
    let cluster = TestCluster::new("fresh").await;
    let created = cluster.create("llm").await;
    let before = created.status.unwrap();
    assert_eq!(before.observed_generation, Some(-1));
    assert_eq!(before.conditions, []);
    let _operator = cluster.operator().await;
    cluster
        .until("llm", |s| s.observed_generation == Some(1))
        .await;
    let started = Instant::now();
    cluster.create("second").await;
    let status = cluster
        .until("second", |s| s.observed_generation == Some(1))
        .await;
    assert!(started.elapsed().as_secs() < 2, "{:?}", started.elapsed());
    let kinds: Vec<_> = status.conditions.iter().map(|c| c.type_.as_str()).collect();
    let all: Vec<_> = ConditionType::ALL.iter().map(|c| c.as_str()).collect();
    assert_eq!(kinds, all);
    cluster.assert_nothing_forbidden();
}

#[tokio::test]
async fn every_generation_is_observed_even_if_it_fails() {
    let cluster = TestCluster::new("generations").await;
    let _operator = cluster.operator().await;
    cluster.install("llm").await;
    for spec in [
        json!({"image": "fastllm/fastllm-proxy:2"}),
        json!({"imagePullPolicy": "Always"}),
        json!({"database": {"name": "missing"}}),
        json!({"bootstrap": {"name": "changes-no-object"}}),
    ] {
        let generation = cluster.edit("llm", spec.clone()).await;
        let status = cluster
            .until("llm", |s| s.observed_generation == Some(generation))
            .await;
        for condition in &status.conditions {
            assert_eq!(
                condition.observed_generation,
                Some(generation),
                "{spec} {condition:?}"
            );
        }
    }
}

#[tokio::test]
async fn an_object_of_another_owner_is_left_unchanged() {
    let cluster = TestCluster::new("foreign").await;
    let services: Api<Service> = cluster.api();
    let foreign: Service = serde_json::from_value(json!({
        "metadata": {"name": "llm-proxy"},
        "spec": {"ports": [{"port": 80}], "selector": {"app": "theirs"}},
    }))
    .unwrap();
    let before = services
        .create(&PostParams::default(), &foreign)
        .await
        .unwrap();
    let _operator = cluster.operator().await;
    cluster.create("llm").await;
    let status = cluster
        .until("llm", |s| is(s, ConditionType::Stalled, "True", "NotOwned"))
        .await;
    let message = &status.condition(ConditionType::Stalled).unwrap().message;
    assert!(message.contains("Service \"llm-proxy\""), "{message}");
    assert_eq!(services.get("llm-proxy").await.unwrap(), before);
    assert_eq!(cluster.generation("llm-proxy").await, None);
    cluster.assert_nothing_forbidden();
}

#[tokio::test]
async fn a_recreated_resource_starts_from_scratch() {
    let cluster = TestCluster::new("again").await;
    let _operator = cluster.operator().await;
    let old = cluster.install("llm").await;
    assert!(old.bootstrapped);
    let proxies: Api<FastllmProxy> = cluster.api();
    let before = cluster.get("llm").await;
    assert_eq!(before.finalizers(), &[] as &[String]);
    proxies
        .delete("llm", &DeleteParams::default())
        .await
        .unwrap();
    let created = cluster.create("llm").await;
    assert_ne!(created.uid(), before.uid());
    let status = cluster
        .until("llm", |s| s.observed_generation == Some(1))
        .await;
    assert!(
        !status.bootstrapped && !status.is_true(ConditionType::Ready),
        "{status:#?}"
    );
    // The operator does not touch the orphans; the test deletes them in place of the garbage collector.
    let control = cluster.deployment("llm-control", |_| true).await;
    assert_eq!(
        control.metadata.owner_references.unwrap()[0].uid,
        before.uid().unwrap()
    );
    let (now, deployments) = (DeleteParams::default(), cluster.api::<Deployment>());
    for component in ["control", "proxy"] {
        let name = format!("llm-{component}");
        deployments.delete(&name, &now).await.unwrap();
        cluster.api::<Service>().delete(&name, &now).await.unwrap();
        cluster
            .api::<ServiceAccount>()
            .delete(&name, &now)
            .await
            .unwrap();
    }
    cluster
        .api::<Job>()
        .delete("llm-bootstrap", &DeleteParams::background())
        .await
        .unwrap();
    let uid = created.uid().unwrap();
    let control = cluster.deployment("llm-control", |_| true).await;
    assert_eq!(control.metadata.owner_references.unwrap()[0].uid, uid);
    cluster.finish("llm-control").await;
    cluster.finish_job("llm-bootstrap").await;
    cluster.finish("llm-proxy").await;
    cluster
        .until("llm", |s| s.is_true(ConditionType::Ready))
        .await;
    cluster.assert_nothing_forbidden();
}

// The next operator continues from any state that a reconciliation leaves behind.
#[tokio::test]
async fn a_new_operator_continues_a_rollout() {
    let cluster = TestCluster::new("successor").await;
    let first = cluster.operator().await;
    cluster.create("llm").await;
    cluster.deployment("llm-control", |_| true).await;
    drop(first);
    cluster.finish("llm-control").await;
    let _second = cluster.operator().await;
    cluster.finish_job("llm-bootstrap").await;
    cluster.finish("llm-proxy").await;
    cluster
        .until("llm", |s| s.is_true(ConditionType::Ready))
        .await;
    for name in ["llm-control", "llm-proxy"] {
        assert_eq!(
            cluster.generation(name).await,
            Some(1),
            "{name} was rolled twice"
        );
    }
}
