//! The Job that creates the bootstrap admin.

use fastllm_crds::Bootstrap;
use k8s_openapi::api::batch::v1::{Job, JobSpec};
use k8s_openapi::api::core::v1::Container;

use super::{BuildContext, pod};
use crate::names::{Component, metadata};

/// Seconds that a finished Job is kept so that its log can be read. A failed Job
/// is retried afterwards, or as soon as its inputs change.
const TTL: i32 = 600;

/// Maximum seconds for all attempts of the Job. Without a limit, a pod that waits
/// for an unresponsive database would neither fail nor be replaced.
const DEADLINE: i64 = 600;

/// Builds the Job. It is idempotent: `--create-only` does not change an existing
/// password.
#[must_use]
pub fn bootstrap(context: BuildContext<'_>, admin: &Bootstrap) -> Job {
    let container = Container {
        command: Some(vec!["fastllm-control".to_owned()]),
        args: Some(vec![
            "set-password".to_owned(),
            format!("--name={}", pod::argument(&admin.name)),
            "--create-only".to_owned(),
        ]),
        env: Some(vec![
            pod::from_secret("FASTLLM_DATABASE_URL", &context.proxy.spec.database),
            pod::from_secret("FASTLLM_BOOTSTRAP_PASSWORD", &admin.password),
        ]),
        ..pod::container(context, Component::Bootstrap)
    };
    let mut template = pod::template(context, Component::Bootstrap, Component::Control, container);
    if let Some(pod) = template.spec.as_mut() {
        pod.restart_policy = Some("Never".to_owned());
    }
    Job {
        metadata: metadata(context.proxy, Component::Bootstrap),
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
