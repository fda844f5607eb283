mod failures;

use fastllm_crds::{ConditionType, FastllmProxyStatus, Phase};
use k8s_openapi::api::apps::v1::DeploymentCondition;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;

use crate::fake_cluster::{FakeCluster, pull_failure};
use crate::names::Component;
use crate::observe::{ReadFailure, ReadOutcome};

fn condition(status: &FastllmProxyStatus, kind: ConditionType) -> Condition {
    status.condition(kind).unwrap().clone()
}

#[track_caller]
fn assert_condition(
    cluster: &FakeCluster,
    kind: ConditionType,
    status: &str,
    reason: &str,
) -> String {
    let found = condition(&cluster.status(), kind);
    let shown = (found.status.as_str(), found.reason.as_str());
    assert_eq!(shown, (status, reason), "{kind}: {}", found.message);
    found.message
}

#[test]
fn reconciling_an_unchanged_resource_does_not_change_the_status() {
    let mut cluster = FakeCluster::ready();
    let bytes = serde_json::to_vec(&cluster.status()).unwrap();
    let writes = cluster.writes;
    for _ in 0..1000 {
        cluster.reconcile();
        assert_eq!(serde_json::to_vec(&cluster.status()).unwrap(), bytes);
    }
    assert_eq!(cluster.writes, writes);
}

#[test]
fn ready_requires_every_pod() {
    let mut cluster = FakeCluster::ready();
    cluster.edit(|spec| spec.proxy.replicas = 3);
    cluster.reconcile();
    cluster.settle();
    assert_condition(&cluster, ConditionType::Ready, "True", "AllReplicasReady");
    let gateways = cluster
        .pods
        .iter_mut()
        .filter(|p| p.component == Component::Gateway);
    for pod in gateways.skip(1) {
        pod.ready = false;
    }
    let status = cluster
        .children
        .gateway
        .as_mut()
        .unwrap()
        .status
        .as_mut()
        .unwrap();
    status.ready_replicas = Some(1);
    cluster.reconcile();
    let message = assert_condition(&cluster, ConditionType::Ready, "False", "RollingGateway");
    assert!(message.contains("1 of 3"), "{message}");
    assert_condition(&cluster, ConditionType::Available, "True", "RollingGateway");
    assert_condition(&cluster, ConditionType::Upgrading, "False", "Complete");
    assert_eq!(cluster.status().proxy_replicas.as_deref(), Some("1/3"));
    assert_eq!(cluster.status().phase, Some(Phase::Degraded));
}

#[test]
fn an_image_pull_failure_is_reported_with_its_pod() {
    let mut cluster = FakeCluster::ready();
    cluster.edit(|spec| spec.image = "fastllm:missing".to_owned());
    cluster.settle();
    let message = assert_condition(&cluster, ConditionType::Stalled, "True", "ImagePullFailed");
    assert!(
        message.contains("\"fastllm:missing\"") && message.contains("llm-control-"),
        "{message}"
    );
    assert_condition(
        &cluster,
        ConditionType::Available,
        "True",
        "AllReplicasReady",
    );
    assert_condition(
        &cluster,
        ConditionType::Reconciling,
        "False",
        "ImagePullFailed",
    );
    let status = cluster.status();
    assert_eq!(
        status.observed_image.as_deref(),
        Some("fastllm/fastllm-proxy:1")
    );
    assert_eq!(status.phase, Some(Phase::Degraded));
    // Restoring the image removes every trace of the failure.
    cluster.edit(|spec| spec.image = "fastllm/fastllm-proxy:1".to_owned());
    cluster.settle();
    assert_condition(&cluster, ConditionType::Stalled, "False", "Complete");
    assert_eq!(cluster.status().phase, Some(Phase::Ready));
    assert!(
        !serde_json::to_string(&cluster.status())
            .unwrap()
            .contains("missing")
    );
}

#[test]
fn a_failed_gateway_rollout_reports_both_images() {
    let mut cluster = FakeCluster::ready();
    cluster.edit(|spec| spec.image = "fastllm:2".to_owned());
    while cluster
        .reconcile()
        .0
        .steps
        .iter()
        .all(|s| !s.to_string().contains("llm-proxy"))
    {
        cluster.tick();
    }
    for _ in 0..30 {
        cluster.tick();
        let fresh = |p: &&mut crate::observe::PodView| {
            p.component == Component::Gateway && p.image == "fastllm:2"
        };
        for pod in cluster.pods.iter_mut().filter(fresh) {
            pod.ready = false;
            pod.failure = Some(pull_failure(&pod.image));
        }
        let gateway = cluster.children.gateway.as_mut().unwrap();
        let ready = cluster
            .pods
            .iter()
            .filter(|p| p.component == Component::Gateway && p.ready);
        gateway.status.as_mut().unwrap().ready_replicas =
            Some(i32::try_from(ready.count()).unwrap());
        cluster.reconcile();
    }
    let message = assert_condition(&cluster, ConditionType::Upgrading, "True", "RollingGateway");
    assert!(
        message.contains("fastllm:2") && message.contains("fastllm/fastllm-proxy:1"),
        "{message}"
    );
    assert_condition(&cluster, ConditionType::Stalled, "True", "ImagePullFailed");
    assert_eq!(
        cluster.status().observed_image.as_deref(),
        Some("fastllm/fastllm-proxy:1")
    );
}

#[test]
fn an_installation_without_models_is_ready_and_reports_it() {
    let mut cluster = FakeCluster::ready();
    cluster.reports.models = ReadOutcome::Known(0);
    cluster.reconcile();
    let message = assert_condition(&cluster, ConditionType::Ready, "True", "AllReplicasReady");
    assert!(message.contains("NoModels"), "{message}");
    assert_condition(&cluster, ConditionType::ModelsServed, "False", "NoModels");
    cluster.reports.models = ReadOutcome::Known(3);
    cluster.reconcile();
    assert_condition(&cluster, ConditionType::ModelsServed, "True", "Served");
    cluster.reports.models = ReadOutcome::Unknown(ReadFailure::Failed(
        "the gateway's status port did not respond",
    ));
    cluster.reconcile();
    assert_condition(
        &cluster,
        ConditionType::ModelsServed,
        "Unknown",
        "ReadFailed",
    );
    assert_condition(&cluster, ConditionType::Ready, "True", "AllReplicasReady");
}

#[test]
fn a_missing_secret_stalls_while_running_pods_stay_available() {
    let mut cluster = FakeCluster::ready();
    let saved = cluster.secrets.remove("db").unwrap();
    let writes = cluster.writes;
    cluster.reconcile();
    assert_eq!(cluster.writes, writes);
    let message = assert_condition(
        &cluster,
        ConditionType::SecretsResolved,
        "False",
        "SecretNotFound",
    );
    for part in ["spec.database", "\"db\"", "\"uri\""] {
        assert!(message.contains(part), "{message}");
    }
    assert_condition(&cluster, ConditionType::Stalled, "True", "SecretNotFound");
    assert_condition(&cluster, ConditionType::Ready, "False", "SecretNotFound");
    assert_condition(
        &cluster,
        ConditionType::Available,
        "True",
        "AllReplicasReady",
    );
    assert_eq!(cluster.status().phase, Some(Phase::Degraded));
    cluster.secrets.insert("db".to_owned(), saved);
    cluster.reconcile();
    assert_condition(&cluster, ConditionType::SecretsResolved, "True", "Resolved");
    assert_condition(&cluster, ConditionType::Stalled, "False", "Complete");
    assert_eq!(cluster.status().phase, Some(Phase::Ready));
    assert!(
        !serde_json::to_string(&cluster.status())
            .unwrap()
            .contains("does not exist")
    );
}

#[test]
fn an_unreadable_secret_is_unknown_and_not_stalled() {
    let mut cluster = FakeCluster::ready();
    let mut observed = cluster.observe();
    observed.secrets.insert(
        "db".to_owned(),
        ReadOutcome::Unknown(ReadFailure::Forbidden),
    );
    cluster.reconcile_with(&observed);
    assert_condition(
        &cluster,
        ConditionType::SecretsResolved,
        "Unknown",
        "Forbidden",
    );
    assert_condition(&cluster, ConditionType::Ready, "Unknown", "Forbidden");
    assert_condition(&cluster, ConditionType::Stalled, "False", "Complete");
    assert_condition(&cluster, ConditionType::Reconciling, "True", "Forbidden");
}

#[test]
fn a_rollout_without_progress_stalls() {
    let mut cluster = FakeCluster::ready();
    let control = cluster.children.control.as_mut().unwrap();
    control.status.as_mut().unwrap().conditions = Some(vec![DeploymentCondition {
        type_: Some("Progressing".to_owned()),
        status: Some("False".to_owned()),
        reason: Some("ProgressDeadlineExceeded".to_owned()),
        ..DeploymentCondition::default()
    }]);
    cluster.reconcile();
    assert_condition(
        &cluster,
        ConditionType::Stalled,
        "True",
        "ProgressDeadlineExceeded",
    );
}

#[test]
fn an_invalid_stored_resource_is_reported_and_not_applied() {
    let mut cluster = FakeCluster::new();
    cluster.edit(|spec| spec.proxy.replicas = -1);
    cluster.reconcile();
    assert_eq!(cluster.writes, 0);
    let message = assert_condition(&cluster, ConditionType::Stalled, "True", "InvalidValue");
    assert_eq!(message, "spec.proxy.replicas: must be between 0 and 10000");
    assert_condition(&cluster, ConditionType::SecretsResolved, "True", "Resolved");
}

#[test]
fn zero_gateway_replicas_stop_the_gateway() {
    let mut cluster = FakeCluster::ready();
    cluster.edit(|spec| spec.proxy.replicas = 0);
    cluster.settle();
    let message = assert_condition(&cluster, ConditionType::Ready, "True", "AllReplicasReady");
    assert!(message.contains("stopped"), "{message}");
    assert_condition(
        &cluster,
        ConditionType::Available,
        "False",
        "RollingGateway",
    );
}

#[test]
fn phases_of_an_installation_and_an_upgrade() {
    let mut cluster = FakeCluster::new();
    let mut phases = Vec::new();
    let mut note = |cluster: &FakeCluster| {
        let phase = cluster.status().phase.unwrap();
        if phases.last() != Some(&phase) {
            phases.push(phase);
        }
    };
    for _ in 0..40 {
        cluster.reconcile();
        note(&cluster);
        cluster.tick();
    }
    cluster.edit(|spec| spec.image = "fastllm:2".to_owned());
    for _ in 0..40 {
        cluster.reconcile();
        note(&cluster);
        cluster.tick();
    }
    let install = [
        Phase::Pending,
        Phase::Bootstrapping,
        Phase::Pending,
        Phase::Degraded,
    ];
    let upgrade = [Phase::Ready, Phase::Upgrading, Phase::Ready];
    assert_eq!(phases, [&install[..], &upgrade[..]].concat());
}
