//! Checks before a plan is made.

use fastllm_crds::{FastllmProxy, Reason};
use fastllm_process::logging::parse_filter;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use super::{ApplyReason, Obstacle};
use crate::build::Object;
use crate::names::{
    APPLIED_HASH, COMPONENT, Component, PAUSE, RESTART_AT, TEMPLATE_HASH, annotation, switch,
};

/// Maximum length of the annotation that requests a restart.
const MAX_RESTART_AT: usize = 64;

/// What is wrong with the annotations by which the operator is controlled, and with
/// values that the schema cannot check.
pub(super) fn invalid_values(proxy: &FastllmProxy) -> Vec<String> {
    let mut found = Vec::new();
    if let Err(value) = switch(&proxy.metadata, PAUSE) {
        found.push(format!(
            "metadata.annotations[{PAUSE}]: {value:?} is not true or false"
        ));
    }
    let restart = annotation(&proxy.metadata, RESTART_AT);
    let valid = |value: &str| {
        (1..=MAX_RESTART_AT).contains(&value.len()) && value.bytes().all(|b| b.is_ascii_graphic())
    };
    if restart.is_some_and(|value| !valid(value)) {
        found.push(format!(
            "metadata.annotations[{RESTART_AT}]: must have 1 to {MAX_RESTART_AT} visible ASCII \
             characters, such as 2026-01-02T03:04:05Z"
        ));
    }
    let filter = &proxy.spec.observability.log_level;
    if parse_filter(filter).is_err() {
        found.push(format!(
            "spec.observability.logLevel: {filter:?} is not a log level or filter, such as \
             info,fastllm_gateway=debug"
        ));
    }
    found
}

/// Whether a live object was applied from the same manifest.
pub(super) fn is_same_manifest(desired: &Object, live: &ObjectMeta) -> bool {
    annotation(desired.metadata(), APPLIED_HASH) == annotation(live, APPLIED_HASH)
}

/// The reason to write an object that is not up to date.
pub(super) fn reason_of_change(desired: &Object, live: &ObjectMeta) -> ApplyReason {
    if is_same_manifest(desired, live) {
        ApplyReason::Restore
    } else {
        ApplyReason::Update
    }
}

/// The hash of a Job's pod template.
pub(super) fn job_template_hash(job: &Job) -> Option<&str> {
    annotation(
        job.spec.as_ref()?.template.metadata.as_ref()?,
        TEMPLATE_HASH,
    )
}

/// The obstacle that an object is being deleted.
pub(super) fn terminating(kind: &str, meta: &ObjectMeta) -> Obstacle {
    let name = meta.name.as_deref().unwrap_or_default();
    let finalizers = match meta.finalizers.as_deref() {
        None | Some([]) => String::new(),
        Some(all) => format!(", which waits for the finalizers {}", all.join(", ")),
    };
    let component = meta
        .labels
        .as_ref()
        .and_then(|labels| labels.get(COMPONENT));
    let reason = match component.and_then(|label| Component::from_label(label)) {
        Some(Component::Gateway) => Reason::RollingGateway,
        Some(Component::Bootstrap) => Reason::Bootstrapping,
        Some(Component::Control) | None => Reason::RollingControlPlane,
    };
    Obstacle {
        reason,
        message: format!("waiting for the deletion of {kind} {name:?}{finalizers}"),
    }
}
