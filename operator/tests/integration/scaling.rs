//! Deployments that a `HorizontalPodAutoscaler` scales.

use fastllm_crds::{ConditionType, FastllmProxyStatus};
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::autoscaling::v2::HorizontalPodAutoscaler;
use kube::api::{Api, DeleteParams, Patch, PatchParams};
use serde_json::json;

use crate::cluster::{TestCluster, apply};

/// Scales a Deployment as the controller of autoscalers does.
async fn scale(cluster: &TestCluster, name: &str, replicas: i32) {
    let deployments: Api<Deployment> = cluster.api();
    let params = PatchParams {
        field_manager: Some("kube-controller-manager".to_owned()),
        ..PatchParams::default()
    };
    let patch = Patch::Merge(json!({"spec": {"replicas": replicas}}));
    deployments
        .patch_scale(name, &params, &patch)
        .await
        .unwrap();
}

fn ready_with(pods: &'static str, autoscaler: bool) -> impl Fn(&FastllmProxyStatus) -> bool {
    move |status| {
        let Some(ready) = status.condition(ConditionType::Ready) else {
            return false;
        };
        ready.status == "True"
            && status.proxy_replicas.as_deref() == Some(pods)
            && ready
                .message
                .contains("HorizontalPodAutoscaler \"traffic\"")
                == autoscaler
    }
}

#[tokio::test]
async fn the_number_of_an_autoscaler_is_not_overwritten() {
    let cluster = TestCluster::new("autoscaler").await;
    let _operator = cluster.operator().await;
    cluster.install("llm").await;
    let autoscaler = json!({
        "apiVersion": "autoscaling/v2", "kind": "HorizontalPodAutoscaler",
        "metadata": {"name": "traffic", "namespace": cluster.namespace},
        "spec": {
            "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "llm-proxy"},
            "minReplicas": 2, "maxReplicas": 5,
        },
    });
    apply(&cluster.client, autoscaler).await;
    cluster.until("llm", ready_with("2/2", true)).await;
    let before = cluster.generation("llm-proxy").await.unwrap();
    scale(&cluster, "llm-proxy", 3).await;
    // The second change is the operator's, which no longer manages the number.
    let released = cluster
        .deployment("llm-proxy", |d| d.metadata.generation == Some(before + 2))
        .await;
    assert_eq!(released.spec.replicas, Some(3));
    cluster.finish("llm-proxy").await;
    cluster.until("llm", ready_with("3/3", true)).await;
    // Another change does not overwrite the number either.
    let gateway = cluster.generation("llm-proxy").await;
    let edit = json!({"image": "fastllm/fastllm-proxy:2", "proxy": {"replicas": 2}});
    cluster.edit("llm", edit).await;
    cluster
        .deployment("llm-control", |d| d.metadata.generation > Some(1))
        .await;
    cluster.finish("llm-control").await;
    let rolled = cluster
        .deployment("llm-proxy", |d| d.metadata.generation > gateway)
        .await;
    assert_eq!(rolled.spec.replicas, Some(3));
    cluster.finish("llm-proxy").await;
    cluster.until("llm", ready_with("3/3", true)).await;
    let autoscalers: Api<HorizontalPodAutoscaler> = cluster.api();
    autoscalers
        .delete("traffic", &DeleteParams::default())
        .await
        .unwrap();
    cluster
        .deployment("llm-proxy", |d| d.spec.replicas == Some(2))
        .await;
    cluster.finish("llm-proxy").await;
    cluster.until("llm", ready_with("2/2", false)).await;
    cluster.assert_nothing_forbidden();
}
