//! Pods that fail, and pods that are not the resource's.

use fastllm_crds::{ConditionType, FastllmProxyStatus};
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, DeleteParams, PostParams};
use serde_json::{Value, json};

use crate::cluster::{TestCluster, is};

fn message(status: &FastllmProxyStatus, kind: ConditionType) -> String {
    status.condition(kind).unwrap().message.clone()
}

async fn until_stalled(cluster: &TestCluster, reason: &str) -> String {
    let stalled = |s: &FastllmProxyStatus| is(s, ConditionType::Stalled, "True", reason);
    let status = cluster.until("llm", stalled).await;
    message(&status, ConditionType::Stalled)
}

#[tokio::test]
async fn a_container_that_exits_repeatedly_is_reported_with_its_error() {
    let cluster = TestCluster::new("crash").await;
    let _operator = cluster.operator().await;
    cluster.install("llm").await;
    let control = cluster.generation("llm-control").await;
    let image = json!({"image": "fastllm/fastllm-proxy:2"});
    cluster.edit("llm", image).await;
    let rolled = cluster
        .deployment("llm-control", |d| d.metadata.generation > control)
        .await;
    let log = "starting\nfastllm-control: wrong token canary-token\n";
    let terminated = json!({"exitCode": 2, "reason": "Error", "message": log});
    let status = json!({"phase": "Running", "containerStatuses": [{
        "name": "control", "image": "fastllm/fastllm-proxy:2", "imageID": "", "ready": false,
        "restartCount": 3, "state": {"waiting": {"reason": "CrashLoopBackOff"}},
        "lastState": {"terminated": terminated},
    }]});
    cluster.start_pod(&rolled, "llm-control-new", status).await;
    let message = until_stalled(&cluster, "CrashLoopBackOff").await;
    assert_eq!(
        message,
        "pod \"llm-control-new\": container \"control\" exits repeatedly with code 2: \
         fastllm-control: wrong token [redacted]"
    );
    let gateway = cluster.generation("llm-proxy").await;
    cluster.finish("llm-control").await;
    cluster
        .deployment("llm-proxy", |d| d.metadata.generation > gateway)
        .await;
    cluster.finish("llm-proxy").await;
    let ready = |s: &FastllmProxyStatus| s.is_true(ConditionType::Ready);
    cluster.until("llm", ready).await;
}

#[tokio::test]
async fn a_quota_that_forbids_pods_is_reported() {
    let cluster = TestCluster::new("quota").await;
    let _operator = cluster.operator().await;
    cluster.install("llm").await;
    let condition = json!({
        "type": "ReplicaFailure", "status": "True", "reason": "FailedCreate",
        "message": "pods \"llm-proxy-1\" is forbidden: exceeded quota: small",
    });
    let status =
        json!({"status": {"readyReplicas": 0, "availableReplicas": 0, "conditions": [condition]}});
    cluster.deployment_status("llm-proxy", status).await;
    let message = until_stalled(&cluster, "ReplicaFailure").await;
    assert!(message.contains("exceeded quota: small"), "{message}");
}

#[tokio::test]
async fn a_database_that_does_not_answer_is_reported_during_the_first_installation() {
    let cluster = TestCluster::new("database").await;
    let _operator = cluster.operator().await;
    cluster.create("llm").await;
    let control = cluster.deployment("llm-control", |_| true).await;
    let starting = json!({
        "phase": "Running", "podIP": "127.0.0.1", "podIPs": [{"ip": "127.0.0.1"}],
        "conditions": [{"type": "Ready", "status": "False"}],
    });
    cluster
        .start_pod(&control, "llm-control-starting", starting)
        .await;
    cluster
        .pods
        .set_database_problem(Some("connection refused"));
    let message = until_stalled(&cluster, "DatabaseUnavailable").await;
    assert!(message.ends_with(": connection refused"), "{message}");
    cluster.pods.set_database_problem(None);
    let resumed = |s: &FastllmProxyStatus| is(s, ConditionType::Stalled, "False", "Complete");
    cluster.until("llm", resumed).await;
}

#[tokio::test]
async fn a_service_without_endpoints_is_not_available() {
    let cluster = TestCluster::new("endpoints").await;
    let _operator = cluster.operator().await;
    cluster.install("llm").await;
    let available = |status: &'static str, reason: &'static str| {
        move |s: &FastllmProxyStatus| is(s, ConditionType::Available, status, reason)
    };
    cluster.set_endpoints("llm-proxy", 0).await;
    let none = available("False", "NoEndpoints");
    cluster.until("llm", none).await;
    cluster.set_endpoints("llm-proxy", 1).await;
    let one = available("True", "AllReplicasReady");
    cluster.until("llm", one).await;
}

/// Creates a copy of a pod, without its controller.
async fn copy_pod(cluster: &TestCluster, name: &str, copy: &str) {
    let pods: Api<Pod> = cluster.api();
    let mut pod = pods.get(name).await.unwrap();
    pod.metadata.owner_references = None;
    pod.metadata.resource_version = None;
    pod.metadata.uid = None;
    pod.metadata.name = Some(copy.to_owned());
    let annotations = pod.metadata.annotations.get_or_insert_default();
    annotations.insert("fastllm.io/template-hash".to_owned(), "other".to_owned());
    pods.create(&PostParams::default(), &pod).await.unwrap();
}

#[tokio::test]
async fn a_pod_of_somebody_else_does_not_hold_a_rollout() {
    let cluster = TestCluster::new("foreign").await;
    let _operator = cluster.operator().await;
    cluster.install("llm").await;
    let control = cluster.deployment("llm-control", |_| true).await;
    let generation = control.metadata.generation.unwrap();
    let pod = format!("llm-control-{generation}-0");
    copy_pod(&cluster, &pod, "somebody-elses").await;
    let gateway = cluster.generation("llm-proxy").await;
    let image = json!({"image": "fastllm/fastllm-proxy:2"});
    cluster.edit("llm", image).await;
    let rolled = cluster
        .deployment("llm-control", |d| d.metadata.generation > Some(generation))
        .await;
    // Completes the rollout, but keeps the pod of somebody else.
    let pods: Api<Pod> = cluster.api();
    let now = DeleteParams::default().grace_period(0);
    pods.delete(&pod, &now).await.unwrap();
    let ready: Value =
        json!({"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]});
    cluster.start_pod(&rolled, "llm-control-new", ready).await;
    let status = json!({"status": {
        "observedGeneration": rolled.metadata.generation, "replicas": 1, "updatedReplicas": 1,
        "readyReplicas": 1, "availableReplicas": 1,
    }});
    cluster.deployment_status("llm-control", status).await;
    cluster
        .deployment("llm-proxy", |d| d.metadata.generation > gateway)
        .await;
}
