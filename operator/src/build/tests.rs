use k8s_openapi::api::core::v1::PodSpec;

use super::{BuildContext, Object};
use crate::fake_cluster::FakeCluster;
use crate::names::{ADMIN_PORT, Component, PUBLIC_PORT};
use crate::preflight::preflight;
use crate::secrets::InputHashes;

fn inputs(cluster: &FakeCluster) -> InputHashes {
    preflight(&cluster.proxy, &cluster.observe().secrets, false).unwrap()
}

fn all(cluster: &FakeCluster) -> Vec<Object> {
    let inputs = inputs(cluster);
    let context = BuildContext {
        proxy: &cluster.proxy,
        inputs: &inputs,
    };
    let admin = cluster.proxy.spec.bootstrap.as_ref().unwrap();
    vec![
        Object::ServiceAccount(Box::new(super::service_account(
            context,
            Component::Control,
        ))),
        Object::ServiceAccount(Box::new(super::service_account(
            context,
            Component::Gateway,
        ))),
        Object::Service(Box::new(super::service(
            context,
            Component::Control,
            ADMIN_PORT,
        ))),
        Object::Service(Box::new(super::service(
            context,
            Component::Gateway,
            PUBLIC_PORT,
        ))),
        Object::Deployment(Box::new(super::control(context))),
        Object::Deployment(Box::new(super::gateway(context))),
        Object::Job(Box::new(super::bootstrap(context, admin))),
    ]
}

// A changed template restarts every pod of every user on the next operator
// upgrade, so these files must change only on purpose.
#[test]
fn manifests_match_the_snapshots() {
    for object in all(&FakeCluster::new()) {
        let object = object.with_applied_hash();
        let name = format!("{}_{}", object.kind().to_lowercase(), object.name());
        insta::assert_yaml_snapshot!(name, object.to_json());
    }
}

fn pods(cluster: &FakeCluster) -> Vec<PodSpec> {
    all(cluster)
        .into_iter()
        .filter_map(|object| match object {
            Object::Deployment(d) => d.spec.template.spec,
            Object::Job(j) => j.spec?.template.spec,
            _ => None,
        })
        .collect()
}

#[test]
fn every_pod_is_hardened() {
    let pods = pods(&FakeCluster::new());
    assert_eq!(pods.len(), 3);
    for pod in pods {
        let security = pod.security_context.unwrap();
        assert_eq!(security.run_as_non_root, Some(true));
        assert_eq!(security.seccomp_profile.unwrap().type_, "RuntimeDefault");
        assert_eq!(pod.automount_service_account_token, Some(false));
        assert_eq!(pod.enable_service_links, Some(false));
        for container in pod.containers {
            let security = container.security_context.unwrap();
            assert_eq!(security.read_only_root_filesystem, Some(true));
            assert_eq!(security.allow_privilege_escalation, Some(false));
            assert_eq!(security.capabilities.unwrap().drop.unwrap(), ["ALL"]);
        }
    }
}

#[test]
fn the_bootstrap_job_has_a_deadline() {
    let jobs = all(&FakeCluster::new())
        .into_iter()
        .filter_map(|object| match object {
            Object::Job(job) => job.spec,
            _ => None,
        });
    for job in jobs {
        assert!(job.active_deadline_seconds.is_some_and(|s| s <= 600));
        assert_eq!(job.ttl_seconds_after_finished, Some(600));
    }
}

#[test]
fn variables_are_not_expanded_in_arguments() {
    let mut cluster = FakeCluster::new();
    cluster.edit(|spec| {
        spec.bootstrap.as_mut().unwrap().name = "$(FASTLLM_DATABASE_URL)".to_owned();
        spec.observability.log_level = "$(FASTLLM_PROXY_TOKEN)".to_owned();
    });
    let mut arguments = Vec::new();
    for pod in pods(&cluster) {
        for container in pod.containers {
            arguments.extend(container.args.unwrap_or_default());
        }
    }
    assert!(arguments.contains(&"--name=$$(FASTLLM_DATABASE_URL)".to_owned()));
    assert!(arguments.contains(&"--log=$$(FASTLLM_PROXY_TOKEN)".to_owned()));
}

#[test]
fn no_manifest_contains_a_secret_value() {
    for object in all(&FakeCluster::new()) {
        let text = object.to_json().to_string();
        assert!(!text.contains("canary"), "{text}");
        assert!(!text.contains(crate::fake_cluster::KEY), "{text}");
    }
}

#[test]
fn a_secret_change_does_not_affect_a_plane_that_does_not_read_it() {
    let before = FakeCluster::new();
    let mut after = FakeCluster::new();
    after.set_secret("db", "uri", "postgres://user:other@db/fastllm");
    let hashes = |cluster: &FakeCluster| {
        let inputs = inputs(cluster);
        let plane = |component| inputs.plane_hash(&cluster.proxy, component);
        (plane(Component::Control), plane(Component::Gateway))
    };
    let (before, after) = (hashes(&before), hashes(&after));
    assert_ne!(before.0, after.0);
    assert_eq!(before.1, after.1);
}
