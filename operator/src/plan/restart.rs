//! Restarts of pods whose template is otherwise the same.

use fastllm_crds::{ConditionType, FastllmProxy, Reason};
use k8s_openapi::api::apps::v1::Deployment;

use super::rollout_reason::{encryption_key_hash, restart_of, template_annotation};
use crate::build;
use crate::names::{Component, KEY_RESTORED, RESTART_AT, annotation};
use crate::observe::PodView;

/// A Deployment with the last requested restart. The request stays in the template when
/// its annotation is removed from the resource, since a removal would otherwise restart
/// the pods again.
pub(super) fn restarted(
    proxy: &FastllmProxy,
    desired: Deployment,
    live: Option<&Deployment>,
) -> Deployment {
    let requested = annotation(&proxy.metadata, RESTART_AT);
    match requested.or_else(|| live.and_then(restart_of)) {
        Some(value) => build::restarted(desired, RESTART_AT, value),
        None => desired,
    }
}

/// The control plane's Deployment with its last restart after a wrong encryption key.
///
/// A control plane with another key than the database's exits, and the kubelet waits for
/// up to 5 minutes before it starts the container again. Once the right value is back,
/// the pods are replaced instead.
pub(super) fn restarted_with_key(
    proxy: &FastllmProxy,
    desired: Deployment,
    live: Option<&Deployment>,
    pods: &[PodView],
) -> Deployment {
    let Some(live) = live else { return desired };
    let value = if is_key_restored(proxy, live, &desired) && has_exiting_pod(pods) {
        Some(live.metadata.generation.unwrap_or_default().to_string())
    } else {
        template_annotation(live, KEY_RESTORED).map(str::to_owned)
    };
    match value {
        Some(value) => build::restarted(desired, KEY_RESTORED, &value),
        None => desired,
    }
}

/// Whether the key has the former value again, after it was refused.
fn is_key_restored(proxy: &FastllmProxy, live: &Deployment, desired: &Deployment) -> bool {
    let stalled = proxy
        .status
        .as_ref()
        .and_then(|status| status.condition(ConditionType::Stalled));
    let was_refused = stalled.is_some_and(|condition| {
        condition.status == "True" && condition.reason == Reason::EncryptionKeyChanged.as_str()
    });
    was_refused && encryption_key_hash(live) == encryption_key_hash(desired)
}

fn has_exiting_pod(pods: &[PodView]) -> bool {
    pods.iter().any(|pod| {
        let failure = pod.failure.as_ref();
        pod.component == Component::Control
            && failure.is_some_and(|failure| failure.reason == Reason::CrashLoopBackOff)
    })
}
