//! The Job that creates the first login.

use fastllm_crds::Bootstrap;
use k8s_openapi::api::batch::v1::{Job, JobSpec};
use k8s_openapi::api::core::v1::Container;

use super::{BuildContext, pod};
use crate::names::{Component, metadata};

/// Seconds that a finished Job stays for its log to be read. A failed one is
/// tried again after that, or as soon as what it was made from changes.
const TTL: i32 = 600;

/// Seconds that the Job may take with all its tries. A pod that waits for ever,
/// for a database that swallows packets, would never fail and never be replaced.
const DEADLINE: i64 = 600;

/// The Job. `--create-only` leaves a password alone that is already there, so
/// running it twice does no harm.
#[must_use]
pub fn bootstrap(wanted: BuildContext<'_>, login: &Bootstrap) -> Job {
    let container = Container {
        command: Some(vec!["fastllm-control".to_owned()]),
        args: Some(vec![
            "set-password".to_owned(),
            format!("--name={}", login.name),
            "--create-only".to_owned(),
        ]),
        env: Some(vec![
            pod::from_secret("FASTLLM_DATABASE_URL", &wanted.proxy.spec.database),
            pod::from_secret("FASTLLM_BOOTSTRAP_PASSWORD", &login.password),
        ]),
        ..pod::container(wanted, Component::Bootstrap)
    };
    let mut template = pod::template(wanted, Component::Bootstrap, Component::Control, container);
    if let Some(pod) = template.spec.as_mut() {
        pod.restart_policy = Some("Never".to_owned());
    }
    Job {
        metadata: metadata(wanted.proxy, Component::Bootstrap),
        spec: Some(JobSpec {
            backoff_limit: Some(6),
            active_deadline_seconds: Some(DEADLINE),
            ttl_seconds_after_finished: Some(TTL),
            template: pod::with_template_hash(template),
            ..JobSpec::default()
        }),
        ..Job::default()
    }
}
