use fastllm_crds::Reason;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use serde_json::{Value, json};

use super::PodView;
use crate::names::{Component, labels};

const NOW: i64 = 1_800_000_000;

fn pod(owner: &Value, status: &Value) -> Pod {
    let mut labels = labels("llm", Component::Control);
    labels.insert("pod-template-hash".to_owned(), "abc12".to_owned());
    serde_json::from_value(json!({
        "metadata": {"name": "llm-control-abc12-xyz", "labels": labels, "ownerReferences": owner},
        "spec": {"containers": [{"name": "control", "image": "fastllm:1"}]},
        "status": status,
    }))
    .unwrap()
}

fn owner(kind: &str, name: &str) -> Value {
    json!([{"apiVersion": "v1", "kind": kind, "name": name, "uid": "1", "controller": true}])
}

fn view(pod: &Pod) -> Option<PodView> {
    PodView::of(pod, "llm", Timestamp::from_second(NOW).unwrap())
}

#[test]
fn only_pods_of_the_resources_objects_count() {
    let not_controlling = json!([{"apiVersion": "v1", "kind": "ReplicaSet", "name": "llm-control-abc12", "uid": "1"}]);
    for (owners, expected) in [
        (owner("ReplicaSet", "llm-control-abc12"), true),
        (owner("ReplicaSet", "llm-control-other"), false),
        (owner("ReplicaSet", "another-abc12"), false),
        (owner("StatefulSet", "llm-control-abc12"), false),
        (owner("Job", "llm-bootstrap"), false),
        (not_controlling, false),
        (json!([]), false),
    ] {
        let found = view(&pod(&owners, &json!({"phase": "Running"})));
        assert_eq!(found.is_some(), expected, "{owners}");
    }
}

#[test]
fn the_pod_of_the_bootstrap_job_counts() {
    let mut pod = pod(&owner("Job", "llm-bootstrap"), &json!({"phase": "Running"}));
    pod.metadata.labels = Some(labels("llm", Component::Bootstrap));
    assert!(view(&pod).is_some());
    pod.metadata.owner_references.as_mut().unwrap()[0].name = "other".to_owned();
    assert!(view(&pod).is_none());
}

#[test]
fn a_pod_is_overdue_a_minute_after_its_grace_period() {
    let mut pod = pod(
        &owner("ReplicaSet", "llm-control-abc12"),
        &json!({"phase": "Running"}),
    );
    for (ago, terminating, overdue) in [
        (None, false, false),
        (Some(-40), true, false),
        (Some(60), true, false),
        (Some(61), true, true),
    ] {
        let at = ago.map(|ago| Timestamp::from_second(NOW - ago).unwrap());
        pod.metadata.deletion_timestamp =
            at.map(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time);
        let view = view(&pod).unwrap();
        assert_eq!((view.terminating, view.overdue), (terminating, overdue));
    }
}

fn container(name: &str, restarts: i32, state: &Value, last: &Value) -> Value {
    json!({
        "name": name, "image": "fastllm:1", "imageID": "", "ready": false,
        "restartCount": restarts, "state": state, "lastState": last,
    })
}

fn waiting(reason: &str, message: &str) -> Value {
    let state = json!({"waiting": {"reason": reason, "message": message}});
    json!({"containerStatuses": [container("control", 0, &state, &json!({}))]})
}

fn exit(code: i32, reason: &str, seconds: i64, message: &str) -> Value {
    let at = |second| Timestamp::from_second(second).unwrap();
    json!({"terminated": {
        "exitCode": code, "reason": reason, "message": message,
        "startedAt": at(NOW - seconds), "finishedAt": at(NOW),
    }})
}

fn running() -> Value {
    json!({"running": {}})
}

#[track_caller]
fn assert_failure(status: &Value, expected: Option<(Reason, &str)>) {
    let pod = pod(&owner("ReplicaSet", "llm-control-abc12"), status);
    let found = view(&pod).unwrap().failure;
    let found = found.as_ref().map(|f| (f.reason, f.message.as_str()));
    assert_eq!(found, expected, "{status}");
}

#[test]
fn every_failure_of_a_waiting_container_has_a_reason() {
    for (name, reason) in super::failure::WAITING {
        let message = match reason {
            Reason::ImagePullFailed => {
                "container \"control\" cannot pull image \"fastllm:1\": detail".to_owned()
            }
            _ => format!("container \"control\" cannot be created ({name}): detail"),
        };
        assert_failure(&waiting(name, "detail"), Some((reason, &message)));
    }
    for name in ["ContainerCreating", "PodInitializing"] {
        assert_failure(&waiting(name, "detail"), None);
    }
}

#[test]
fn the_back_off_of_a_pull_does_not_change_the_message() {
    let message = "container \"control\" cannot pull image \"fastllm:1\": not found";
    let expected = Some((Reason::ImagePullFailed, message));
    assert_failure(&waiting("ErrImagePull", "not found"), expected);
    let back_off = "Back-off pulling image \"fastllm:1\": ErrImagePull: not found";
    assert_failure(&waiting("ImagePullBackOff", back_off), expected);
    let message = "container \"control\" cannot pull image \"fastllm:1\"";
    let back_off = waiting("ImagePullBackOff", "Back-off pulling image \"fastllm:1\"");
    assert_failure(&back_off, Some((Reason::ImagePullFailed, message)));
}

#[test]
fn a_container_that_exits_repeatedly_fails_with_the_end_of_its_log() {
    let log = "{\"level\":\"INFO\"}\nfastllm-control: the key is another one\n\n";
    let failed = exit(2, "Error", 1, log);
    let back_off = json!({"waiting": {"reason": "CrashLoopBackOff"}});
    let message = "container \"control\" exits repeatedly with code 2: \
                   fastllm-control: the key is another one";
    let expected = Some((Reason::CrashLoopBackOff, message));
    let none = json!({});
    let stable = exit(2, "Error", 601, log);
    let status = |restarts, state: &Value, last: &Value| json!({"containerStatuses": [container("control", restarts, state, last)]});
    for (restarts, state, last, expected) in [
        (0, &failed, &none, None),
        (1, &running(), &failed, None),
        (1, &failed, &failed, expected),
        (1, &back_off, &failed, expected),
        (2, &running(), &failed, expected),
        (2, &running(), &stable, None),
        (2, &running(), &exit(0, "Completed", 1, ""), None),
    ] {
        assert_failure(&status(restarts, state, last), expected);
    }
    let unknown = "container \"control\" exits repeatedly";
    let expected = Some((Reason::CrashLoopBackOff, unknown));
    assert_failure(&status(1, &back_off, &none), expected);
    let killed = exit(137, "OOMKilled", 1, "");
    let message = "container \"control\" exceeds its memory limit repeatedly";
    let expected = Some((Reason::OOMKilled, message));
    assert_failure(&status(1, &back_off, &killed), expected);
}

#[test]
fn init_containers_and_sidecars_count() {
    let back_off = json!({"waiting": {"reason": "CrashLoopBackOff"}});
    let broken = container("mesh", 3, &back_off, &exit(1, "Error", 1, ""));
    let healthy = container("control", 0, &running(), &json!({}));
    let message = "container \"mesh\" exits repeatedly with code 1";
    let expected = Some((Reason::CrashLoopBackOff, message));
    let init = json!({"initContainerStatuses": [broken], "containerStatuses": [healthy]});
    assert_failure(&init, expected);
    let sidecar = json!({"containerStatuses": [healthy, broken]});
    assert_failure(&sidecar, expected);
}

#[test]
fn a_pod_without_a_node_is_unschedulable() {
    let condition = |reason: &str| {
        json!({"phase": "Pending", "conditions": [{
            "type": "PodScheduled", "status": "False", "reason": reason,
            "message": "0/2 nodes are available: 2 Insufficient cpu.",
        }]})
    };
    let message = "no node is suitable: 0/2 nodes are available: 2 Insufficient cpu.";
    let expected = Some((Reason::Unschedulable, message));
    assert_failure(&condition("Unschedulable"), expected);
    assert_failure(&condition("SchedulingGated"), None);
}

#[test]
fn a_ready_pod_has_no_failure() {
    let back_off = json!({"waiting": {"reason": "CrashLoopBackOff"}});
    let broken = container("mesh", 3, &back_off, &exit(1, "Error", 1, ""));
    let status = json!({
        "conditions": [{"type": "Ready", "status": "True"}], "containerStatuses": [broken],
    });
    assert_failure(&status, None);
}
