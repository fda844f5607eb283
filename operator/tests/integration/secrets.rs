//! Created, changed, deleted and unchanged Secrets.

use fastllm_crds::{ConditionType, Phase};
use k8s_openapi::api::core::v1::Secret;
use k8s_openapi::api::events::v1::Event;
use kube::api::{Api, DeleteParams, ListParams};
use serde_json::json;
use tokio::time::Instant;

use crate::cluster::{REACTION, TestCluster, URL, apply, is, poll};

async fn generations(cluster: &TestCluster) -> (Option<i64>, Option<i64>) {
    (
        cluster.generation("llm-control").await,
        cluster.generation("llm-proxy").await,
    )
}

#[tokio::test]
async fn a_deleted_secret_is_reported_and_nothing_is_written() {
    let cluster = TestCluster::new("deleted").await;
    let _operator = cluster.operator().await;
    cluster.install("llm").await;
    let before = (generations(&cluster).await, cluster.writes().len());
    cluster
        .api::<Secret>()
        .delete("db", &DeleteParams::default())
        .await
        .unwrap();
    let status = cluster
        .until("llm", |s| {
            is(s, ConditionType::SecretsResolved, "False", "SecretNotFound")
        })
        .await;
    let message = &status
        .condition(ConditionType::SecretsResolved)
        .unwrap()
        .message;
    for part in ["spec.database", "\"db\"", "\"uri\""] {
        assert!(message.contains(part), "{message}");
    }
    assert!(status.is_true(ConditionType::Stalled));
    assert!(status.is_true(ConditionType::Available));
    assert_eq!(status.phase, Some(Phase::Degraded));
    assert_eq!(generations(&cluster).await, before.0);
    let since = cluster.writes().split_off(before.1);
    assert_eq!(since, ["patch fastllmproxies/status llm"]);
    cluster.assert_nothing_forbidden();
}

#[tokio::test]
async fn a_created_secret_starts_the_rollout() {
    let cluster = TestCluster::new("appears").await;
    cluster
        .api::<Secret>()
        .delete("db", &DeleteParams::default())
        .await
        .unwrap();
    let _operator = cluster.operator().await;
    cluster.create("llm").await;
    let status = cluster
        .until("llm", |s| s.is_true(ConditionType::Stalled))
        .await;
    assert_eq!(status.phase, Some(Phase::Pending));
    assert_eq!(cluster.generation("llm-control").await, None);
    cluster.secret("db", "uri", URL).await;
    cluster.deployment("llm-control", |_| true).await;
    let status = cluster
        .until("llm", |s| {
            is(s, ConditionType::SecretsResolved, "True", "Resolved")
        })
        .await;
    assert!(!status.is_true(ConditionType::Stalled));
    cluster.assert_nothing_forbidden();
}

#[tokio::test]
async fn an_invalid_value_is_reported_without_being_printed() {
    let cluster = TestCluster::new("unusable").await;
    let _operator = cluster.operator().await;
    cluster.install("llm").await;
    let before = generations(&cluster).await;
    cluster
        .secret("db", "uri", "canary-of-a-wrong-content_hash")
        .await;
    cluster
        .until("llm", |s| {
            is(s, ConditionType::SecretsResolved, "False", "InvalidValue")
        })
        .await;
    assert_eq!(generations(&cluster).await, before);
    let everything = serde_json::to_string(&cluster.get("llm").await).unwrap();
    assert!(!everything.contains("canary"), "{everything}");
}

#[tokio::test]
async fn an_unchanged_value_causes_no_write() {
    let cluster = TestCluster::new("annotated").await;
    let _operator = cluster.operator().await;
    cluster.install("llm").await;
    let reads = |cluster: &TestCluster| {
        let audit_log = cluster.audit_log();
        let read = |e: &&serde_json::Value| e["verb"] == "get" && e["objectRef"]["name"] == "db";
        audit_log.iter().filter(read).count()
    };
    let before = (cluster.writes(), reads(&cluster));
    cluster.annotate_secret("db", "once").await;
    let deadline = Instant::now() + REACTION;
    while reads(&cluster) == before.1 {
        assert!(Instant::now() < deadline, "the Secret was not read again");
        poll().await;
    }
    cluster.sentinel("other").await;
    let others: Vec<_> = cluster
        .writes()
        .into_iter()
        .filter(|w| !w.contains(" other"))
        .collect();
    assert_eq!(others, before.0);
}

#[tokio::test]
async fn a_changed_database_url_rolls_out_control_once_with_its_reason() {
    let cluster = TestCluster::new("rotated").await;
    let _operator = cluster.operator().await;
    cluster.install("llm").await;
    let (control, gateway) = generations(&cluster).await;
    cluster
        .secret("db", "uri", "postgres://user:other@db/fastllm")
        .await;
    cluster
        .deployment("llm-control", |d| d.metadata.generation > control)
        .await;
    cluster
        .until("llm", |s| {
            is(s, ConditionType::Upgrading, "True", "RollingControlPlane")
        })
        .await;
    cluster.finish("llm-control").await;
    cluster
        .until("llm", |s| s.is_true(ConditionType::Ready))
        .await;
    assert_eq!(
        generations(&cluster).await,
        (control.map(|g| g + 1), gateway)
    );
    let events: Api<Event> = cluster.api();
    let events = events.list(&ListParams::default()).await.unwrap();
    let notes: Vec<_> = events
        .items
        .iter()
        .filter_map(|e| e.note.as_deref())
        .collect();
    assert!(
        notes
            .iter()
            .any(|n| n.contains("RolloutReason=SecretChanged(db/uri)")),
        "{notes:?}"
    );
    cluster.assert_nothing_forbidden();
}

#[tokio::test]
async fn the_bootstrap_secret_may_be_deleted_once_it_was_used() {
    let cluster = TestCluster::new("login").await;
    let _operator = cluster.operator().await;
    cluster.install("llm").await;
    let before = cluster.writes();
    cluster
        .api::<Secret>()
        .delete("login", &DeleteParams::default())
        .await
        .unwrap();
    cluster.secret("db", "uri", URL).await;
    cluster
        .until("llm", |s| s.is_true(ConditionType::Ready))
        .await;
    cluster.secret("login", "password", "canary-password").await;
    cluster.sentinel("other").await;
    let others: Vec<_> = cluster
        .writes()
        .into_iter()
        .filter(|w| !w.contains(" other"))
        .collect();
    assert_eq!(others, before);
}

#[tokio::test]
async fn secrets_are_watched_as_metadata_and_read_by_name() {
    let cluster = TestCluster::new("metadata").await;
    let _operator = cluster.operator().await;
    cluster.install("llm").await;
    let requests = cluster.requests();
    let (read, listed): (Vec<&String>, Vec<&String>) = requests
        .iter()
        .filter(|r| r.contains("/secrets"))
        .partition(|r| r.contains("/secrets/"));
    assert!(!read.is_empty() && !listed.is_empty(), "{requests:?}");
    for request in listed {
        assert!(request.contains("PartialObjectMetadata"), "{request}");
    }
    for request in read {
        let named = ["db", "token", "key", "login"].iter();
        let named = named.map(|name| format!("/namespaces/{}/secrets/{name} ", cluster.namespace));
        assert!(named.into_iter().any(|n| request.contains(&n)), "{request}");
    }
}

#[tokio::test]
async fn a_forbidden_secret_is_unknown_and_recovers_by_itself() {
    let cluster = TestCluster::new("forbidden").await;
    let manifest = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../config/rbac/cluster_role.yaml"
    );
    let manifest = std::fs::read_to_string(manifest).unwrap();
    let mut role: serde_json::Value = serde_yaml_ng::from_str(&manifest).unwrap();
    let (name, namespace) = (cluster.namespace.clone(), cluster.namespace.clone());
    role["metadata"]["name"] = json!(name);
    let whole = role.clone();
    let rules = role["rules"].as_array_mut().unwrap();
    let secrets = rules
        .iter_mut()
        .find(|r| r["resources"][0] == "secrets")
        .unwrap();
    secrets["verbs"] = json!(["list", "watch"]);
    apply(&cluster.client, role).await;
    apply(
        &cluster.client,
        json!({
            "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding",
            "metadata": {"name": name, "namespace": namespace},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": name},
            "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": name}],
        }),
    )
    .await;
    let _operator = cluster.operator_as(&name).await;
    cluster.create("llm").await;
    let status = cluster
        .until("llm", |s| {
            is(s, ConditionType::SecretsResolved, "Unknown", "Forbidden")
        })
        .await;
    assert!(!status.is_true(ConditionType::Stalled));
    assert_eq!(cluster.writes(), ["patch fastllmproxies/status llm"]);
    apply(&cluster.client, whole).await;
    cluster
        .until("llm", |s| {
            is(s, ConditionType::SecretsResolved, "True", "Resolved")
        })
        .await;
    cluster.deployment("llm-control", |_| true).await;
}
