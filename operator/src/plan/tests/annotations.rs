//! Annotations by which a user controls the operator, and objects without an owner.

use fastllm_crds::{ConditionType, Phase, Reason};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};

use super::{kinds, rollouts, template};
use crate::fake_cluster::FakeCluster;
use crate::names::{ADOPT, Component, PAUSE, RESTART_AT};
use crate::plan::{RolloutReason, plan};

impl FakeCluster {
    fn annotate(&mut self, key: &str, value: &str) {
        let annotations = self.proxy.metadata.annotations.get_or_insert_default();
        annotations.insert(key.to_owned(), value.to_owned());
    }

    /// Applies a change to the metadata of every child.
    fn edit_children(&mut self, change: impl Fn(&mut ObjectMeta)) {
        let children = &mut self.children;
        let all = [
            children.control_account.as_mut().map(|o| &mut o.metadata),
            children.gateway_account.as_mut().map(|o| &mut o.metadata),
            children.control_service.as_mut().map(|o| &mut o.metadata),
            children.gateway_service.as_mut().map(|o| &mut o.metadata),
            children.control.as_mut().map(|o| &mut o.metadata),
            children.gateway.as_mut().map(|o| &mut o.metadata),
            children.bootstrap.as_mut().map(|o| &mut o.metadata),
        ];
        all.into_iter().flatten().for_each(change);
    }

    fn message(&self, kind: ConditionType) -> String {
        self.status().condition(kind).unwrap().message.clone()
    }
}

#[test]
fn a_requested_restart_happens_once_in_order() {
    let mut cluster = FakeCluster::ready();
    let mut seen = Vec::new();
    for value in [Some("one"), Some("one"), None, Some("two")] {
        match value {
            Some(value) => cluster.annotate(RESTART_AT, value),
            None => cluster.proxy.metadata.annotations = None,
        }
        for _ in 0..40 {
            seen.extend(rollouts(&cluster.reconcile().0.steps));
            cluster.tick();
        }
    }
    let restart = |component, value: &str| {
        (
            component,
            vec![RolloutReason::RestartRequested(value.to_owned())],
        )
    };
    assert_eq!(
        seen,
        [
            restart(Component::Control, "one"),
            restart(Component::Gateway, "one"),
            restart(Component::Control, "two"),
            restart(Component::Gateway, "two"),
        ]
    );
    assert_eq!(cluster.status().phase, Some(Phase::Ready));
}

#[test]
fn an_invalid_annotation_is_named_and_nothing_is_applied() {
    let long = "1".repeat(65);
    for (key, value, shown) in [
        (PAUSE, "yes", "\"yes\" is not true or false"),
        (PAUSE, "", "\"\" is not true or false"),
        (RESTART_AT, "", "1 to 64"),
        (RESTART_AT, "next week", "1 to 64"),
        (RESTART_AT, &long, "1 to 64"),
    ] {
        let mut cluster = FakeCluster::ready();
        cluster.annotate(key, value);
        cluster.edit(|spec| spec.image = "fastllm/fastllm-proxy:2".to_owned());
        let writes = cluster.writes;
        let (plan, _) = cluster.reconcile();
        assert_eq!(cluster.writes, writes, "{key} {value}");
        assert_eq!(plan.problems[0].reason, Reason::InvalidValue);
        let message = cluster.message(ConditionType::Stalled);
        assert!(
            message.contains(key) && message.contains(shown),
            "{message}"
        );
    }
}

#[test]
fn a_log_filter_that_the_planes_refuse_is_refused_before_it_is_applied() {
    let mut cluster = FakeCluster::ready();
    cluster.edit(|spec| spec.observability.log_level = "info,=".to_owned());
    let writes = cluster.writes;
    let (plan, _) = cluster.reconcile();
    assert_eq!(cluster.writes, writes);
    let message = &plan.problems[0].message;
    assert!(
        message.starts_with("spec.observability.logLevel: \"info,=\" is not a log level"),
        "{message}"
    );
}

#[test]
fn a_resource_is_paused_by_true_in_any_case() {
    for (value, paused) in [
        ("true", true),
        ("True", true),
        ("FALSE", false),
        ("false", false),
    ] {
        let mut cluster = FakeCluster::ready();
        cluster.annotate(PAUSE, value);
        cluster.reconcile();
        assert_eq!(
            cluster.status().is_true(ConditionType::Paused),
            paused,
            "{value}"
        );
    }
}

#[test]
fn a_paused_resource_is_not_upgrading_and_lists_every_pending_step() {
    let mut cluster = FakeCluster::ready();
    cluster.annotate(PAUSE, "true");
    cluster.edit(|spec| spec.image = "fastllm/fastllm-proxy:2".to_owned());
    cluster.settle();
    let status = cluster.status();
    assert_eq!(status.phase, Some(Phase::Ready));
    assert!(!status.is_true(ConditionType::Upgrading));
    assert_eq!(
        cluster.message(ConditionType::Paused),
        "pending steps: apply Deployment llm-control (RolloutReason=ImageChanged(\
         fastllm/fastllm-proxy:2)); apply Deployment llm-proxy (RolloutReason=ImageChanged(\
         fastllm/fastllm-proxy:2)), once the control plane is complete"
    );
    // Paused between the rollouts of the planes.
    cluster.proxy.metadata.annotations = None;
    cluster.reconcile();
    cluster.annotate(PAUSE, "true");
    cluster.reconcile();
    assert_eq!(
        cluster.message(ConditionType::Paused),
        "pending steps: apply Deployment llm-proxy (RolloutReason=ImageChanged(\
         fastllm/fastllm-proxy:2)), once the control plane is complete"
    );
    cluster.secrets.remove("db");
    cluster.reconcile();
    let message = cluster.message(ConditionType::Paused);
    assert!(
        message.starts_with("pending steps are unknown: spec.database"),
        "{message}"
    );
}

#[test]
fn children_without_an_owner_are_adopted_on_request_without_a_restart() {
    let mut cluster = FakeCluster::ready();
    cluster.proxy.metadata.uid = Some("uid-new".to_owned());
    cluster.proxy.status = None;
    cluster.edit_children(|meta| meta.owner_references = None);
    let (plan, _) = cluster.reconcile();
    assert_eq!(plan.problems.len(), 7, "{:?}", plan.problems);
    let message = cluster.message(ConditionType::Stalled);
    assert!(message.contains("fastllm.io/adopt=true"), "{message}");
    cluster.edit_children(|meta| {
        meta.annotations
            .get_or_insert_default()
            .insert(ADOPT.to_owned(), "true".to_owned());
    });
    let before = template(cluster.children.control.as_ref());
    cluster.settle();
    assert_eq!(template(cluster.children.control.as_ref()), before);
    let status = cluster.status();
    assert_eq!(status.phase, Some(Phase::Ready), "{status:#?}");
    cluster.edit_children(|meta| {
        assert_eq!(meta.owner_references.as_ref().unwrap()[0].uid, "uid-new");
    });
}

#[test]
fn an_object_with_another_controller_is_not_adopted() {
    let mut cluster = FakeCluster::ready();
    cluster.edit_children(|meta| {
        let owner = &mut meta.owner_references.as_mut().unwrap()[0];
        (owner.kind, owner.uid) = ("Other".to_owned(), "uid-other".to_owned());
        meta.annotations
            .get_or_insert_default()
            .insert(ADOPT.to_owned(), "true".to_owned());
    });
    let plan = plan(&cluster.proxy, &cluster.observe());
    assert_eq!(plan.problems[0].reason, Reason::NotOwned);
    let message = &plan.problems[0].message;
    assert!(message.contains("controlled by Other \"llm\""), "{message}");
}

#[test]
fn a_gateway_that_is_being_deleted_still_counts() {
    let mut cluster = FakeCluster::ready();
    let gateway = cluster.children.gateway.as_mut().unwrap();
    gateway.metadata.deletion_timestamp = Some(Time(jiff::Timestamp::UNIX_EPOCH));
    gateway.metadata.finalizers = Some(vec!["example.com/hold".to_owned()]);
    cluster.edit(|spec| spec.proxy.replicas = 3);
    let writes = cluster.writes;
    cluster.reconcile();
    assert_eq!(cluster.writes, writes);
    let status = cluster.status();
    assert!(status.is_true(ConditionType::Available));
    assert_eq!(status.phase, Some(Phase::Degraded));
    assert_eq!(
        cluster.message(ConditionType::Ready),
        "waiting for the deletion of Deployment \"llm-proxy\", which waits for the finalizers \
         example.com/hold; gateway: 2 of 3 pods ready, 2 updated"
    );
}

#[test]
fn the_bootstrap_job_is_removed_with_its_field() {
    let mut cluster = FakeCluster::ready();
    cluster.edit(|spec| spec.bootstrap = None);
    let (plan, _) = cluster.reconcile();
    assert_eq!(kinds(&plan.steps), ["delete Job llm-bootstrap (Remove)"]);
    assert_eq!(cluster.children.bootstrap, None);
    assert!(cluster.status().is_true(ConditionType::Ready));
    let foreign = FakeCluster::ready();
    cluster.children.bootstrap = foreign.children.bootstrap;
    cluster.edit_children(|meta| {
        if meta.name.as_deref() == Some("llm-bootstrap") {
            meta.owner_references = None;
        }
    });
    assert_eq!(cluster.reconcile().0.steps, []);
}
