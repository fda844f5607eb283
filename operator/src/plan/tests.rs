mod annotations;
mod comparison;
mod scaling;

use std::collections::BTreeMap;

use fastllm_crds::{ConditionType, Phase, Reason};
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::PodTemplateSpec;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use proptest::prelude::*;

use super::{ApplyReason, RolloutReason, Step, control_complete, plan};
use crate::fake_cluster::FakeCluster;
use crate::names::{Component, PAUSE, ROLLOUT_REASON, annotation};
use crate::observe::{PodFailure, ReadFailure, ReadOutcome, template_hash};

fn template(deployment: Option<&Deployment>) -> Option<PodTemplateSpec> {
    deployment.map(|d| d.spec.template.clone())
}

fn rollouts(steps: &[Step]) -> Vec<(Component, Vec<RolloutReason>)> {
    let rollout = |step: &Step| match step {
        Step::Apply {
            object,
            reason: ApplyReason::Rollout(reasons),
            ..
        } => Some((object.component().unwrap(), reasons.clone())),
        _ => None,
    };
    steps.iter().filter_map(rollout).collect()
}

fn kinds(steps: &[Step]) -> Vec<String> {
    steps.iter().map(ToString::to_string).collect()
}

#[test]
fn an_installation_starts_with_control_and_ends_with_the_gateway() {
    let mut cluster = FakeCluster::new();
    let (plan, _) = cluster.reconcile();
    assert_eq!(
        kinds(&plan.steps),
        [
            "apply ServiceAccount llm-control (Create)",
            "apply Service llm-control (Create)",
            "apply ServiceAccount llm-proxy (Create)",
            "apply Service llm-proxy (Create)",
            "apply Deployment llm-control (Create)",
        ]
    );
    while cluster.children.gateway.is_none() {
        cluster.tick();
        let (plan, _) = cluster.reconcile();
        if !plan.steps.is_empty() {
            assert_eq!(
                kinds(&plan.steps),
                [
                    "apply Job llm-bootstrap (Create)",
                    "apply Deployment llm-proxy (Create)"
                ]
            );
        }
    }
    cluster.settle();
    assert_eq!(cluster.status().phase, Some(Phase::Ready));
    assert!(cluster.status().bootstrapped);
}

#[test]
fn a_changed_database_url_rolls_out_control_once_with_its_reason() {
    let mut cluster = FakeCluster::ready();
    let gateway = cluster.children.gateway.clone();
    cluster.set_secret("db", "uri", "postgres://user:other@db/fastllm");
    let (plan, _) = cluster.reconcile();
    let reference = cluster.proxy.spec.database.clone();
    assert_eq!(
        rollouts(&plan.steps),
        [(
            Component::Control,
            vec![RolloutReason::SecretChanged(reference)]
        )]
    );
    let reason = annotation(
        &cluster.children.control.as_ref().unwrap().metadata,
        ROLLOUT_REASON,
    );
    assert_eq!(reason, Some("SecretChanged(db/uri)"));
    assert!(
        plan.steps[0]
            .to_string()
            .contains("RolloutReason=SecretChanged(db/uri)")
    );
    let before = cluster.writes;
    cluster.settle();
    assert_eq!(cluster.writes, before);
    assert_eq!(
        template(cluster.children.gateway.as_ref()),
        template(gateway.as_ref())
    );
    assert_eq!(cluster.status().phase, Some(Phase::Ready));
}

#[test]
fn a_changed_reference_causes_one_rollout_even_with_an_equal_value() {
    for value in [crate::fake_cluster::URL, "postgres://user:other@db/fastllm"] {
        let mut cluster = FakeCluster::ready();
        cluster.set_secret("other", "uri", value);
        cluster.edit(|spec| spec.database.name = "other".to_owned());
        let mut seen = Vec::new();
        for _ in 0..40 {
            seen.extend(rollouts(&cluster.reconcile().0.steps));
            cluster.tick();
        }
        let moved = cluster.proxy.spec.database.clone();
        assert_eq!(
            seen,
            [(
                Component::Control,
                vec![RolloutReason::SecretChanged(moved)]
            )]
        );
    }
}

#[test]
fn a_changed_encryption_key_is_rejected_once_the_old_one_was_used() {
    let mut cluster = FakeCluster::ready();
    cluster.set_secret("key", "key", &"a".repeat(64));
    let writes = cluster.writes;
    let (plan, _) = cluster.reconcile();
    assert_eq!(plan.problems[0].reason, Reason::EncryptionKeyChanged);
    assert_eq!(cluster.writes, writes);
    let status = cluster.status();
    assert_eq!(
        status.condition(ConditionType::Stalled).unwrap().reason,
        "EncryptionKeyChanged"
    );
    assert!(status.is_true(ConditionType::Available));
    cluster.set_secret("key", "key", crate::fake_cluster::KEY);
    cluster.reconcile();
    assert_eq!(cluster.writes, writes);
    assert_eq!(cluster.status().phase, Some(Phase::Ready));
}

#[test]
fn a_deleted_deployment_does_not_make_another_encryption_key_acceptable() {
    let mut cluster = FakeCluster::ready();
    cluster.children.control = None;
    cluster.pods.retain(|p| p.component != Component::Control);
    cluster.set_secret("key", "key", &"a".repeat(64));
    let (plan, _) = cluster.reconcile();
    assert_eq!(plan.problems[0].reason, Reason::EncryptionKeyChanged);
    assert!(plan.steps.is_empty());
    cluster.set_secret("key", "key", crate::fake_cluster::KEY);
    cluster.settle();
    assert_eq!(cluster.status().phase, Some(Phase::Ready));
}

#[test]
fn a_key_that_was_never_used_can_be_corrected() {
    let mut cluster = FakeCluster::new();
    cluster.set_secret("key", "key", &"a".repeat(64));
    cluster.reconcile();
    cluster.set_secret("key", "key", crate::fake_cluster::KEY);
    cluster.settle();
    assert_eq!(cluster.status().phase, Some(Phase::Ready));
}

#[test]
fn pods_that_exited_are_replaced_once_the_encryption_key_is_back() {
    let mut cluster = FakeCluster::ready();
    for attempt in 0..2 {
        cluster.set_secret("key", "key", &"a".repeat(64));
        cluster.reconcile();
        // The node of the control plane's pod was drained.
        let mut controls = cluster.pods.iter_mut();
        let pod = controls.find(|p| p.component == Component::Control);
        let pod = pod.unwrap();
        pod.ready = false;
        pod.failure = Some(PodFailure {
            reason: Reason::CrashLoopBackOff,
            message: "exits repeatedly".to_owned(),
        });
        cluster.reconcile();
        cluster.set_secret("key", "key", crate::fake_cluster::KEY);
        let steps = cluster.reconcile().0.steps;
        let expected = (Component::Control, vec![RolloutReason::KeyRestored]);
        assert_eq!(rollouts(&steps), [expected], "attempt {attempt}");
        cluster.settle();
        assert_eq!(cluster.status().phase, Some(Phase::Ready));
        let writes = cluster.writes;
        cluster.settle();
        assert_eq!(cluster.writes, writes);
    }
}

#[test]
fn the_bootstrap_admin_is_created_once() {
    let mut cluster = FakeCluster::ready();
    cluster.secrets.remove("login");
    cluster.children.bootstrap = None; // its time to live is over
    let writes = cluster.writes;
    cluster.settle();
    assert_eq!(cluster.writes, writes);
    assert_eq!(cluster.status().phase, Some(Phase::Ready));
    assert!(cluster.status().bootstrapped);
}

#[test]
fn a_failed_bootstrap_is_reported_and_retried_with_new_values() {
    let mut cluster = FakeCluster::new();
    cluster.set_secret("login", "password", "refused");
    cluster.settle();
    let status = cluster.status();
    assert_eq!(status.phase, Some(Phase::Bootstrapping));
    let bootstrapped = status.condition(ConditionType::Bootstrapped).unwrap();
    assert!(
        bootstrapped.message.contains("failed"),
        "{}",
        bootstrapped.message
    );
    cluster.set_secret("login", "password", "accepted");
    let (plan, _) = cluster.reconcile();
    assert_eq!(kinds(&plan.steps), ["delete Job llm-bootstrap (Replace)"]);
    cluster.settle();
    assert_eq!(cluster.status().phase, Some(Phase::Ready));
}

#[test]
fn nothing_is_written_while_a_secret_is_missing_or_unreadable() {
    for read in [
        ReadOutcome::Known(None),
        ReadOutcome::Known(Some(BTreeMap::new())),
        ReadOutcome::Unknown(ReadFailure::Forbidden),
        ReadOutcome::Unknown(ReadFailure::Failed("timeout")),
    ] {
        let mut cluster = FakeCluster::ready();
        cluster.edit(|spec| spec.image = "fastllm/fastllm-proxy:2".to_owned());
        let mut observed = cluster.observe();
        observed.secrets.insert("token".to_owned(), read);
        let (plan, _) = cluster.reconcile_with(&observed);
        assert_eq!(plan.steps, []);
        assert_ne!(plan.problems, []);
    }
}

#[test]
fn an_object_of_another_owner_is_left_unchanged() {
    let mut cluster = FakeCluster::new();
    cluster.reconcile();
    cluster
        .children
        .gateway_service
        .as_mut()
        .unwrap()
        .metadata
        .owner_references = None;
    let writes = cluster.writes;
    let (plan, _) = cluster.reconcile();
    assert_eq!(cluster.writes, writes);
    assert_eq!(plan.problems[0].reason, Reason::NotOwned);
    assert!(
        plan.problems[0].message.contains("Service \"llm-proxy\""),
        "{:?}",
        plan.problems
    );
}

#[test]
fn a_recreated_resource_waits_until_the_orphans_are_deleted() {
    let mut cluster = FakeCluster::ready();
    cluster.proxy.metadata.uid = Some("uid-new".to_owned());
    cluster.proxy.status = None;
    let (plan, _) = cluster.reconcile();
    assert_eq!((plan.steps, plan.problems), (vec![], vec![]));
    assert!(plan.orphans);
    let status = cluster.status();
    assert!(
        !status.bootstrapped && !status.is_true(ConditionType::Available),
        "{status:#?}"
    );
    cluster.children = crate::observe::Children::default();
    cluster.pods.clear();
    cluster.settle();
    assert_eq!(cluster.status().phase, Some(Phase::Ready));
    let control = cluster.children.control.unwrap();
    assert_eq!(control.metadata.owner_references.unwrap()[0].uid, "uid-new");
}

#[test]
fn a_paused_resource_lists_its_steps_without_executing_them() {
    let mut cluster = FakeCluster::ready();
    let generation = cluster.status().observed_generation;
    cluster.proxy.metadata.annotations =
        Some(BTreeMap::from([(PAUSE.to_owned(), "true".to_owned())]));
    cluster.edit(|spec| spec.image = "fastllm/fastllm-proxy:2".to_owned());
    let writes = cluster.writes;
    cluster.reconcile();
    assert_eq!(cluster.writes, writes);
    let status = cluster.status();
    assert_eq!(status.observed_generation, generation);
    let paused = status.condition(ConditionType::Paused).unwrap();
    assert_eq!(paused.status, "True");
    assert!(
        paused.message.contains("apply Deployment llm-control"),
        "{}",
        paused.message
    );
    cluster.proxy.metadata.annotations = None;
    cluster.settle();
    assert_eq!(cluster.status().phase, Some(Phase::Ready));
}

#[test]
fn added_fields_are_kept_and_changed_fields_are_restored() {
    let mut cluster = FakeCluster::ready();
    let control = cluster.children.control.as_mut().unwrap();
    let pod = control.spec.template.spec.as_mut().unwrap();
    let mut sidecar = pod.containers[0].clone();
    sidecar.name = "injected".to_owned();
    sidecar.image = Some("mesh:1".to_owned());
    pod.containers.insert(0, sidecar);
    pod.dns_policy = Some("ClusterFirst".to_owned());
    assert_eq!(plan(&cluster.proxy, &cluster.observe()).steps, []);
    let control = cluster.children.control.as_mut().unwrap();
    control.spec.replicas = Some(7);
    let steps = plan(&cluster.proxy, &cluster.observe()).steps;
    assert_eq!(kinds(&steps), ["apply Deployment llm-control (Restore)"]);
}

#[test]
fn a_field_that_the_api_server_rewrites_is_written_once() {
    let mut cluster = FakeCluster::new();
    cluster.mirror = true;
    cluster.settle();
    assert_eq!(cluster.status().phase, Some(Phase::Ready));
    let writes = cluster.writes;
    cluster.reconcile();
    assert_eq!(cluster.writes, writes);
    // Edits are still detected.
    let control = cluster.children.control.as_mut().unwrap();
    control.spec.template.spec.as_mut().unwrap().containers[0].image = Some("other".to_owned());
    let steps = plan(&cluster.proxy, &cluster.observe()).steps;
    assert_eq!(kinds(&steps), ["apply Deployment llm-control (Restore)"]);
}

#[test]
fn a_removed_field_is_detected() {
    let mut cluster = FakeCluster::new();
    cluster.edit(|spec| {
        let limits = BTreeMap::from([("cpu".to_owned(), Quantity("500m".to_owned()))]);
        spec.proxy.resources = Some(k8s_openapi::api::core::v1::ResourceRequirements {
            limits: Some(limits),
            ..Default::default()
        });
    });
    cluster.settle();
    cluster.edit(|spec| spec.proxy.resources = None);
    let steps = plan(&cluster.proxy, &cluster.observe()).steps;
    assert_eq!(
        rollouts(&steps),
        [(Component::Gateway, vec![RolloutReason::TemplateChanged])]
    );
}

#[test]
fn a_gateway_can_be_scaled_while_control_is_unavailable() {
    let mut cluster = FakeCluster::ready();
    let control = cluster.children.control.as_mut().unwrap();
    control.status.as_mut().unwrap().ready_replicas = Some(0);
    cluster.edit(|spec| spec.proxy.replicas = 4);
    let steps = plan(&cluster.proxy, &cluster.observe()).steps;
    assert_eq!(kinds(&steps), ["apply Deployment llm-proxy (Update)"]);
    cluster.edit(|spec| spec.observability.log_level = "debug".to_owned());
    let steps = plan(&cluster.proxy, &cluster.observe()).steps;
    assert_eq!(rollouts(&steps).len(), 1);
    assert_eq!(rollouts(&steps)[0].0, Component::Control);
}

#[test]
fn a_terminating_control_pod_delays_the_gateway() {
    let mut cluster = FakeCluster::ready();
    let control = cluster.children.control.clone();
    let targets = plan(&cluster.proxy, &cluster.observe()).targets.unwrap();
    assert!(control_complete(
        control.as_ref(),
        &cluster.pods,
        &targets.control,
        1
    ));
    let mut old = cluster.pods[0].clone();
    assert_eq!(old.component, Component::Control);
    old.template_hash = Some("old".to_owned());
    old.terminating = true;
    cluster.pods.push(old);
    assert!(!control_complete(
        control.as_ref(),
        &cluster.pods,
        &targets.control,
        1
    ));
}

/// An event in a simulated cluster.
#[derive(Clone, Debug)]
enum ClusterEvent {
    Image(usize),
    LogLevel(usize),
    ControlReplicas(i32),
    GatewayReplicas(i32),
    Secret(usize, usize),
    Remove(usize),
    /// The API server accepts this number of writes and fails the next one.
    Outage(usize),
    Tick,
    Reconcile,
}

const IMAGES: [&str; 3] = ["fastllm:1", "fastllm:2", "fastllm:missing"];
const SECRETS: [(&str, &str, [&str; 2]); 3] = [
    (
        "db",
        "uri",
        [crate::fake_cluster::URL, "postgres://user:other@db/fastllm"],
    ),
    ("token", "token", ["canary-token", "canary-other"]),
    ("login", "password", ["canary-password", "refused"]),
];

fn cluster_event() -> impl Strategy<Value = ClusterEvent> {
    prop_oneof![
        2 => (0..IMAGES.len()).prop_map(ClusterEvent::Image),
        1 => (0..2_usize).prop_map(ClusterEvent::LogLevel),
        1 => (0..3).prop_map(ClusterEvent::ControlReplicas),
        1 => (0..4).prop_map(ClusterEvent::GatewayReplicas),
        2 => (0..SECRETS.len(), 0..2_usize).prop_map(|(s, v)| ClusterEvent::Secret(s, v)),
        1 => (0..SECRETS.len()).prop_map(ClusterEvent::Remove),
        1 => (0..6_usize).prop_map(ClusterEvent::Outage),
        12 => Just(ClusterEvent::Tick),
        8 => Just(ClusterEvent::Reconcile),
    ]
}

impl FakeCluster {
    fn apply_event(&mut self, cluster_event: &ClusterEvent) {
        match cluster_event {
            ClusterEvent::Image(i) => self.edit(|s| s.image = IMAGES[*i].to_owned()),
            ClusterEvent::LogLevel(i) => {
                self.edit(|s| s.observability.log_level = ["info", "debug"][*i].to_owned());
            }
            ClusterEvent::ControlReplicas(n) => self.edit(|s| s.control.replicas = *n),
            ClusterEvent::GatewayReplicas(n) => self.edit(|s| s.proxy.replicas = *n),
            ClusterEvent::Secret(i, v) => {
                let (name, key, values) = SECRETS[*i];
                self.set_secret(name, key, values[*v]);
            }
            ClusterEvent::Remove(i) => drop(self.secrets.remove(SECRETS[*i].0)),
            ClusterEvent::Outage(after) => self.outage = Some(*after),
            ClusterEvent::Tick => self.tick(),
            ClusterEvent::Reconcile => self.reconcile_checked(),
        }
    }

    /// Reconciles and checks the invariants.
    fn reconcile_checked(&mut self) {
        let before = self.clone();
        let (plan, applied) = self.reconcile();
        let target = plan.targets.as_ref().map(|t| t.control.as_str());
        let (was, is) = (
            before.children.gateway.as_ref(),
            self.children.gateway.as_ref(),
        );
        if template(was) != template(is) {
            let control = before.children.control.as_ref().unwrap();
            assert_eq!(
                template_hash(control),
                target,
                "control was not even written"
            );
            let pods = before
                .pods
                .iter()
                .filter(|p| p.component == Component::Control);
            for pod in pods {
                assert_eq!(
                    pod.template_hash.as_deref(),
                    target,
                    "an old control pod is left"
                );
                assert!(pod.ready || pod.terminating, "control is not ready");
            }
        }
        if !plan.problems.is_empty() {
            assert_eq!(applied.done(), []);
        }
        let status = self.status();
        if applied.failure().is_some() {
            assert!(!status.is_true(ConditionType::Ready));
            assert!(
                serde_json::to_string(&status)
                    .unwrap()
                    .contains("out of order")
            );
        }
        assert_eq!(status.observed_generation, self.proxy.metadata.generation);
        let kinds: Vec<_> = status.conditions.iter().map(|c| c.type_.as_str()).collect();
        let all: Vec<_> = ConditionType::ALL.iter().map(|c| c.as_str()).collect();
        assert_eq!(kinds, all);
        for condition in &status.conditions {
            assert_eq!(
                condition.observed_generation,
                self.proxy.metadata.generation
            );
            assert!(Reason::ALL.iter().any(|r| r.as_str() == condition.reason));
        }
        let text = serde_json::to_string(&status).unwrap();
        assert!(!text.contains("canary"), "{text}");
        if status.bootstrapped {
            assert!(!plan.steps.iter().any(|s| s.to_string().contains("Job")));
        }
        assert!(!before.status().bootstrapped || status.bootstrapped);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn every_scenario_keeps_the_invariants_and_recovers(history in prop::collection::vec(cluster_event(), 1..120)) {
        let mut cluster = FakeCluster::new();
        for cluster_event in &history {
            cluster.apply_event(cluster_event);
        }
        // Any state becomes ready once all values are usable.
        cluster.outage = None;
        for (name, key, values) in SECRETS {
            cluster.set_secret(name, key, values[0]);
        }
        cluster.edit(|s| {
            s.image = IMAGES[0].to_owned();
            s.control.replicas = 1;
            s.proxy.replicas = 2;
        });
        cluster.settle();
        let status = cluster.status();
        prop_assert_eq!(status.phase, Some(Phase::Ready), "{:#?} {:#?}", status, cluster.pods);
        // A ready resource causes no writes.
        let writes = cluster.writes;
        for _ in 0..5 {
            cluster.reconcile_checked();
            cluster.tick();
        }
        prop_assert_eq!(cluster.writes, writes);
        prop_assert_eq!(cluster.status(), status);
    }

    #[test]
    fn the_same_inputs_give_the_same_plan(history in prop::collection::vec(cluster_event(), 1..40)) {
        let mut cluster = FakeCluster::new();
        for cluster_event in &history {
            cluster.apply_event(cluster_event);
        }
        let observed = cluster.observe();
        prop_assert_eq!(plan(&cluster.proxy, &observed), plan(&cluster.proxy, &observed.clone()));
    }
}
