//! Deployments that an autoscaler scales.

use fastllm_crds::ConditionType;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{FieldsV1, ManagedFieldsEntry};
use serde_json::json;

use crate::fake_cluster::FakeCluster;
use crate::names::Component;

fn replicas(cluster: &FakeCluster) -> Option<i32> {
    cluster.children.gateway.as_ref().unwrap().spec.replicas
}

/// Scales the gateway as an autoscaler does.
fn scale(cluster: &mut FakeCluster, replicas: i32) {
    let gateway = cluster.children.gateway.as_mut().unwrap();
    gateway.spec.replicas = Some(replicas);
    *gateway.metadata.generation.as_mut().unwrap() += 1;
    gateway.metadata.managed_fields = Some(vec![ManagedFieldsEntry {
        manager: Some("kube-controller-manager".to_owned()),
        fields_v1: Some(FieldsV1(json!({"f:spec": {"f:replicas": {}}}))),
        ..ManagedFieldsEntry::default()
    }]);
}

fn autoscaled(replicas: i32) -> FakeCluster {
    let mut cluster = FakeCluster::ready();
    let name = "traffic".to_owned();
    cluster.autoscalers.insert(Component::Gateway, name);
    let writes = cluster.writes;
    cluster.reconcile();
    assert_eq!(
        cluster.writes, writes,
        "the autoscaler alone caused a write"
    );
    scale(&mut cluster, replicas);
    cluster.settle();
    cluster
}

#[test]
fn the_number_of_an_autoscaler_is_kept() {
    let mut cluster = autoscaled(7);
    let writes = cluster.writes;
    for _ in 0..100 {
        cluster.reconcile();
    }
    assert_eq!((cluster.writes, replicas(&cluster)), (writes, Some(7)));
    let status = cluster.status();
    assert!(status.is_true(ConditionType::Ready), "{status:#?}");
    let message = &status.condition(ConditionType::Ready).unwrap().message;
    assert!(
        message.contains("HorizontalPodAutoscaler \"traffic\""),
        "{message}"
    );
    assert_eq!(status.proxy_replicas.as_deref(), Some("7/7"));
    cluster.edit(|spec| {
        spec.image = "fastllm:2".to_owned();
        spec.proxy.replicas = 4;
    });
    cluster.settle();
    assert_eq!(replicas(&cluster), Some(7));
    assert!(cluster.status().is_true(ConditionType::Ready));
}

#[test]
fn the_live_number_is_kept_until_an_autoscaler_manages_it() {
    let mut cluster = FakeCluster::ready();
    cluster.edit(|spec| spec.proxy.replicas = 5);
    cluster.settle();
    let name = "traffic".to_owned();
    cluster.autoscalers.insert(Component::Gateway, name);
    cluster.edit(|spec| {
        spec.image = "fastllm:2".to_owned();
        spec.proxy.replicas = 1;
    });
    cluster.settle();
    assert_eq!(replicas(&cluster), Some(5));
}

#[test]
fn the_specification_decides_again_without_an_autoscaler() {
    let mut cluster = autoscaled(7);
    cluster.edit(|spec| spec.proxy.replicas = 3);
    cluster.settle();
    assert_eq!(replicas(&cluster), Some(7));
    cluster.autoscalers.clear();
    cluster.settle();
    assert_eq!(replicas(&cluster), Some(3));
    assert!(cluster.status().is_true(ConditionType::Ready));
}
