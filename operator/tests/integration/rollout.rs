//! The order of rollouts, and rollouts that do not complete.

use std::sync::atomic::Ordering;
use std::time::Duration;

use fastllm_crds::{ConditionType, Phase};
use serde_json::json;
use tokio::time::Instant;

use crate::cluster::{REACTION, TestCluster, apply, is, poll};

#[tokio::test]
async fn the_gateway_waits_for_the_complete_control_rollout() {
    let cluster = TestCluster::new("order").await;
    let _operator = cluster.operator().await;
    cluster.install("llm").await;
    let control = cluster.generation("llm-control").await;
    let before = cluster.deployment("llm-proxy", |_| true).await;
    cluster
        .edit(
            "llm",
            json!({"image": "fastllm/fastllm-proxy:2", "observability": {"logLevel": "debug"}}),
        )
        .await;
    let desired = cluster
        .deployment("llm-control", |d| d.metadata.generation > control)
        .await;
    let status = cluster
        .until("llm", |s| s.phase == Some(Phase::Upgrading))
        .await;
    assert_eq!(
        status.observed_image.as_deref(),
        Some("fastllm/fastllm-proxy:1")
    );
    // Half-way: a new pod is ready, and the old one still exists.
    let ready = json!({"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]});
    cluster
        .start_pod(&desired, "llm-control-half-way", ready)
        .await;
    let status = json!({"status": {
        "observedGeneration": desired.metadata.generation,
        "replicas": 2, "updatedReplicas": 1, "readyReplicas": 2, "availableReplicas": 2,
    }});
    cluster.deployment_status("llm-control", status).await;
    cluster.sentinel("other").await;
    let held = cluster.deployment("llm-proxy", |_| true).await;
    assert_eq!(held.spec, before.spec);
    cluster.finish("llm-control").await;
    let after = cluster
        .deployment("llm-proxy", |d| {
            d.metadata.generation > before.metadata.generation
        })
        .await;
    let container = &after.spec.template.spec.as_ref().unwrap().containers[0];
    assert_eq!(container.image.as_deref(), Some("fastllm/fastllm-proxy:2"));
    assert!(
        container
            .args
            .as_ref()
            .unwrap()
            .contains(&"--log=debug".to_owned())
    );
    cluster.finish("llm-proxy").await;
    let status = cluster
        .until("llm", |s| s.is_true(ConditionType::Ready))
        .await;
    assert_eq!(
        status.observed_image.as_deref(),
        Some("fastllm/fastllm-proxy:2")
    );
    cluster.assert_nothing_forbidden();
}

#[tokio::test]
async fn an_image_pull_failure_is_reported_and_can_be_reverted() {
    let cluster = TestCluster::new("image").await;
    let _operator = cluster.operator().await;
    cluster.install("llm").await;
    let control = cluster.generation("llm-control").await;
    cluster
        .edit("llm", json!({"image": "fastllm/fastllm-proxy:missing"}))
        .await;
    let stuck = cluster
        .deployment("llm-control", |d| d.metadata.generation > control)
        .await;
    let waiting = json!({
        "phase": "Pending",
        "containerStatuses": [{
            "name": "control", "image": "fastllm/fastllm-proxy:missing", "imageID": "",
            "ready": false, "restartCount": 0,
            "state": {"waiting": {"reason": "ImagePullBackOff", "message": "no such image"}},
        }],
    });
    cluster
        .start_pod(&stuck, "llm-control-stuck", waiting)
        .await;
    let status = cluster
        .until("llm", |s| {
            is(s, ConditionType::Stalled, "True", "ImagePullFailed")
        })
        .await;
    let message = &status.condition(ConditionType::Stalled).unwrap().message;
    assert!(message.contains("llm-control-stuck"), "{message}");
    assert!(
        message.contains("fastllm/fastllm-proxy:missing"),
        "{message}"
    );
    assert!(status.is_true(ConditionType::Available));
    assert_eq!(
        status.observed_image.as_deref(),
        Some("fastllm/fastllm-proxy:1")
    );
    cluster
        .edit("llm", json!({"image": "fastllm/fastllm-proxy:1"}))
        .await;
    cluster
        .deployment("llm-control", |d| {
            d.metadata.generation > stuck.metadata.generation
        })
        .await;
    cluster.finish("llm-control").await;
    let status = cluster
        .until("llm", |s| s.is_true(ConditionType::Ready))
        .await;
    assert!(!serde_json::to_string(&status).unwrap().contains("missing"));
}

#[tokio::test]
async fn scaling_is_complete_when_every_pod_is_ready() {
    let cluster = TestCluster::new("scale").await;
    let _operator = cluster.operator().await;
    cluster.install("llm").await;
    cluster.edit("llm", json!({"proxy": {"replicas": 3}})).await;
    cluster
        .deployment("llm-proxy", |d| d.spec.replicas == Some(3))
        .await;
    let status = cluster
        .until("llm", |s| s.proxy_replicas.as_deref() == Some("2/3"))
        .await;
    let ready = status.condition(ConditionType::Ready).unwrap();
    assert_eq!(ready.status, "False");
    assert!(ready.message.contains("2 of 3"), "{}", ready.message);
    cluster.finish("llm-proxy").await;
    cluster
        .until("llm", |s| s.is_true(ConditionType::Ready))
        .await;
    let scale = cluster
        .api::<fastllm_crds::FastllmProxy>()
        .get_scale("llm")
        .await
        .unwrap();
    assert_eq!(scale.spec.unwrap().replicas, Some(3));
    assert!(
        scale
            .status
            .unwrap()
            .selector
            .unwrap()
            .contains("component=proxy")
    );
}

#[tokio::test]
async fn an_installation_without_models_is_ready() {
    let cluster = TestCluster::new("models").await;
    cluster.pods.set_models(0);
    let _operator = cluster.operator().await;
    let status = cluster.install("llm").await;
    assert!(
        is(&status, ConditionType::ModelsServed, "False", "NoModels"),
        "{status:#?}"
    );
    assert!(
        is(&status, ConditionType::Ready, "True", "AllReplicasReady"),
        "{status:#?}"
    );
}

#[tokio::test]
async fn a_changed_number_of_models_is_reported() {
    let cluster = TestCluster::new("served").await;
    cluster.pods.set_models(0);
    let _operator = cluster.operator().await;
    cluster.install("llm").await;
    for (count, value, reason) in [(3, "True", "Served"), (0, "False", "NoModels")] {
        cluster.pods.set_models(count);
        cluster
            .until("llm", |s| is(s, ConditionType::ModelsServed, value, reason))
            .await;
    }
}

#[tokio::test]
async fn an_owned_field_is_restored_and_a_foreign_one_is_kept() {
    use k8s_openapi::api::apps::v1::Deployment;
    use kube::api::{Api, Patch, PatchParams};
    let cluster = TestCluster::new("edited").await;
    let _operator = cluster.operator().await;
    cluster.install("llm").await;
    let api: Api<Deployment> = cluster.api();
    let patch = Patch::Merge(json!({
        "metadata": {"annotations": {"example.com/theirs": "kept"}},
        "spec": {"replicas": 5},
    }));
    api.patch("llm-proxy", &PatchParams::default(), &patch)
        .await
        .unwrap();
    let restored = cluster
        .deployment("llm-proxy", |d| d.spec.replicas == Some(2))
        .await;
    let annotations = restored.metadata.annotations.unwrap();
    assert_eq!(annotations["example.com/theirs"], "kept");
    assert!(annotations.contains_key("fastllm.io/applied-hash"));
}

// The API server's response differs from the applied manifest.
#[tokio::test]
async fn a_field_that_the_api_server_rewrites_is_written_once() {
    let cluster = TestCluster::new("mirror").await;
    let namespace = &cluster.namespace;
    let policy = format!("{namespace}.mirror");
    let image = r#"[JSONPatch{op: "replace", path: "/spec/template/spec/containers/0/image",
        value: object.spec.template.spec.containers[0].image.startsWith("mirror/")
            ? object.spec.template.spec.containers[0].image
            : "mirror/" + object.spec.template.spec.containers[0].image}]"#;
    let group = "admissionregistration.k8s.io/v1";
    apply(
        &cluster.client,
        json!({
            "apiVersion": group, "kind": "MutatingAdmissionPolicy", "metadata": {"name": policy},
            "spec": {
                "failurePolicy": "Fail",
                "reinvocationPolicy": "Never",
                "matchConstraints": {
                    "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": namespace}},
                    "resourceRules": [{
                        "apiGroups": ["apps"], "apiVersions": ["v1"],
                        "operations": ["CREATE", "UPDATE"], "resources": ["deployments"],
                    }],
                },
                "mutations": [{"patchType": "JSONPatch", "jsonPatch": {"expression": image}}],
            },
        }),
    )
    .await;
    apply(
        &cluster.client,
        json!({
            "apiVersion": group, "kind": "MutatingAdmissionPolicyBinding",
            "metadata": {"name": policy}, "spec": {"policyName": policy},
        }),
    )
    .await;
    cluster.rewrites("probe", "mirror/").await;
    let _operator = cluster.operator().await;
    cluster.install("llm").await;
    let control = cluster.deployment("llm-control", |_| true).await;
    let image = &control.spec.template.spec.unwrap().containers[0].image;
    assert_eq!(image.as_deref(), Some("mirror/fastllm/fastllm-proxy:1"));
    let before = cluster.writes();
    let written = before
        .iter()
        .filter(|w| w.ends_with(" deployments llm-control"));
    assert_eq!(written.count(), 1, "{before:#?}");
    cluster
        .annotate_secret("db", "one more reconciliation")
        .await;
    cluster.sentinel("other").await;
    let others: Vec<_> = cluster
        .writes()
        .into_iter()
        .filter(|w| !w.contains(" other"))
        .collect();
    assert_eq!(others, before);
}

// A failed reconciliation is retried after its back-off, not triggered by its own status.
#[tokio::test]
async fn an_error_with_a_changing_message_is_retried_with_back_off() {
    let cluster = TestCluster::new("messages").await;
    cluster.rejecting.store(true, Ordering::Relaxed);
    let _operator = cluster.operator().await;
    let started = Instant::now();
    cluster.create("llm").await;
    let attempts = || {
        let requests = cluster.requests();
        requests
            .iter()
            .filter(|r| r.contains("/deployments/not-"))
            .count()
    };
    // Objects that were created before may trigger additional reconciliations.
    while attempts() < 4 {
        assert!(started.elapsed() < REACTION * 4, "{} attempts", attempts());
        poll().await;
    }
    assert!(
        started.elapsed() > Duration::from_secs(2),
        "{:?}",
        started.elapsed()
    );
    assert!(attempts() < 8);
    cluster
        .until("llm", |s| {
            is(s, ConditionType::Stalled, "True", "ApplyRejected")
        })
        .await;
    cluster.rejecting.store(false, Ordering::Relaxed);
    cluster
        .edit("llm", json!({"image": "fastllm/fastllm-proxy:2"}))
        .await;
    cluster.deployment("llm-control", |_| true).await;
}
