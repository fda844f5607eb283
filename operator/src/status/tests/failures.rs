//! Failures of pods and rollouts that the status reports by their reason.

use fastllm_crds::{ConditionType, Reason};
use k8s_openapi::api::apps::v1::DeploymentCondition;

use super::assert_condition;
use crate::fake_cluster::{FakeCluster, KEY};
use crate::names::Component;
use crate::observe::PodFailure;

fn condition(kind: &str, status: &str, reason: &str, message: &str) -> DeploymentCondition {
    DeploymentCondition {
        type_: Some(kind.to_owned()),
        status: Some(status.to_owned()),
        reason: Some(reason.to_owned()),
        message: Some(message.to_owned()),
        ..DeploymentCondition::default()
    }
}

fn set_condition(cluster: &mut FakeCluster, component: Component, new: DeploymentCondition) {
    let deployment = cluster.deployment_mut(component).as_mut().unwrap();
    deployment.status.as_mut().unwrap().conditions = Some(vec![new]);
}

/// A resource whose first gateway pod fails.
fn with_failure(reason: Reason, message: &str) -> FakeCluster {
    let mut cluster = FakeCluster::ready();
    let mut gateways = cluster.pods.iter_mut();
    let pod = gateways
        .find(|p| p.component == Component::Gateway)
        .unwrap();
    pod.ready = false;
    pod.failure = Some(PodFailure {
        reason,
        message: message.to_owned(),
    });
    cluster.reconcile();
    cluster
}

#[test]
fn every_failure_of_a_pod_is_reported_with_its_reason_and_pod() {
    for reason in [
        Reason::ImagePullFailed,
        Reason::CreateContainerError,
        Reason::CrashLoopBackOff,
        Reason::OOMKilled,
        Reason::Unschedulable,
    ] {
        let cluster = with_failure(reason, "what happened");
        for (kind, status) in [
            (ConditionType::Stalled, "True"),
            (ConditionType::Ready, "False"),
        ] {
            let message = assert_condition(&cluster, kind, status, reason.as_str());
            assert!(
                message.starts_with("pod \"llm-proxy-") && message.ends_with(": what happened"),
                "{message}"
            );
        }
    }
}

#[test]
fn several_pods_with_one_failure_are_counted() {
    let mut cluster = with_failure(Reason::CrashLoopBackOff, "what happened");
    let mut failing = cluster.pods.clone();
    failing.retain(|pod| pod.failure.is_some());
    cluster.pods.extend(failing);
    cluster.reconcile();
    let message = assert_condition(&cluster, ConditionType::Stalled, "True", "CrashLoopBackOff");
    assert!(message.contains("(and 1 more pods)"), "{message}");
}

#[test]
fn secret_values_in_messages_are_redacted() {
    let text = format!("the key {KEY} and canary-token\nsecond line");
    let cluster = with_failure(Reason::CrashLoopBackOff, &text);
    let message = assert_condition(&cluster, ConditionType::Stalled, "True", "CrashLoopBackOff");
    assert!(
        message.ends_with("the key [redacted] and [redacted] second line"),
        "{message}"
    );
}

#[test]
fn a_failure_of_another_template_is_not_reported() {
    let mut cluster = with_failure(Reason::CrashLoopBackOff, "what happened");
    cluster.edit(|spec| spec.image = "fastllm:2".to_owned());
    cluster.reconcile();
    assert_condition(&cluster, ConditionType::Stalled, "False", "Complete");
}

#[test]
fn a_failure_of_the_live_template_is_reported_beside_a_problem() {
    let mut cluster = with_failure(Reason::CrashLoopBackOff, "what happened");
    cluster.set_secret("key", "key", &"a".repeat(64));
    cluster.reconcile();
    let reason = "EncryptionKeyChanged";
    let message = assert_condition(&cluster, ConditionType::Stalled, "True", reason);
    assert!(message.ends_with(": what happened"), "{message}");
}

#[test]
fn a_failure_to_create_pods_is_reported_with_its_message() {
    for (kind, status, reason) in [
        ("ReplicaFailure", "True", "FailedCreate"),
        ("Progressing", "False", "ReplicaSetCreateError"),
    ] {
        let mut cluster = FakeCluster::ready();
        let message = "pods \"llm-proxy-1\" is forbidden: exceeded quota: small";
        let failed = condition(kind, status, reason, message);
        set_condition(&mut cluster, Component::Gateway, failed);
        cluster.reconcile();
        let found = assert_condition(&cluster, ConditionType::Stalled, "True", "ReplicaFailure");
        let expected = format!("gateway: pods cannot be created: {message}");
        assert_eq!(found, expected);
    }
}

#[test]
fn conditions_of_another_template_are_not_reported() {
    for failed in [
        condition("Progressing", "False", "ProgressDeadlineExceeded", ""),
        condition("ReplicaFailure", "True", "FailedCreate", "quota"),
    ] {
        let mut cluster = FakeCluster::ready();
        set_condition(&mut cluster, Component::Gateway, failed);
        cluster.reconcile();
        assert!(cluster.status().is_true(ConditionType::Stalled));
        // The fix rolls the control plane first. The gateway's condition remains until then.
        cluster.edit(|spec| spec.image = "fastllm:2".to_owned());
        cluster.reconcile();
        assert_condition(&cluster, ConditionType::Stalled, "False", "Complete");
        let reason = "RollingControlPlane";
        assert_condition(&cluster, ConditionType::Reconciling, "True", reason);
    }
}

#[test]
fn an_unavailable_database_is_reported() {
    let mut cluster = FakeCluster::new();
    cluster.reconcile();
    cluster.tick();
    cluster.reports.database_problem = Some("connection refused by db:5432".to_owned());
    cluster.reconcile();
    let message = assert_condition(
        &cluster,
        ConditionType::Stalled,
        "True",
        "DatabaseUnavailable",
    );
    assert_eq!(
        message,
        "control plane: the database is unavailable: connection refused by db:5432"
    );
    cluster.reports.database_problem = None;
    cluster.settle();
    assert_condition(&cluster, ConditionType::Ready, "True", "AllReplicasReady");
}

#[test]
fn ready_pods_without_endpoints_are_not_available() {
    let mut cluster = FakeCluster::ready();
    cluster.selects_nothing = true;
    cluster.reconcile();
    assert_condition(&cluster, ConditionType::Available, "False", "NoEndpoints");
}

#[test]
fn a_control_pod_that_does_not_terminate_is_named_and_not_waited_for_without_end() {
    let mut cluster = FakeCluster::ready();
    let mut old = cluster.pods[0].clone();
    assert_eq!(old.component, Component::Control);
    old.name = "llm-control-old".to_owned();
    old.template_hash = Some("old".to_owned());
    old.terminating = true;
    cluster.pods.push(old);
    cluster.reconcile();
    let message = assert_condition(
        &cluster,
        ConditionType::Ready,
        "False",
        "RollingControlPlane",
    );
    let expected = "control plane: 1 of 1 pods ready, 1 updated; \
                    waiting until pod \"llm-control-old\" of another template has terminated";
    assert_eq!(message, expected);
    cluster.pods.last_mut().unwrap().overdue = true;
    cluster.reconcile();
    assert_condition(&cluster, ConditionType::Ready, "True", "AllReplicasReady");
}
