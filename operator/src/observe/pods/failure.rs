//! Why a pod does not become ready, from the status that the scheduler and the kubelet
//! report.

use fastllm_crds::Reason;
use jiff::SignedDuration;
use k8s_openapi::api::core::v1::{
    ContainerState, ContainerStateTerminated, ContainerStatus, Pod, PodStatus,
};

/// A container that ran for this long is not restarted repeatedly. The kubelet resets
/// its back-off after the same time.
const STABLE: SignedDuration = SignedDuration::from_mins(10);

/// Reasons of waiting containers that do not start without a change by the user.
pub(super) const WAITING: [(&str, Reason); 14] = [
    ("ErrImageNeverPull", Reason::ImagePullFailed),
    ("ErrImagePull", Reason::ImagePullFailed),
    ("ImageInspectError", Reason::ImagePullFailed),
    ("ImagePullBackOff", Reason::ImagePullFailed),
    ("InvalidImageName", Reason::ImagePullFailed),
    ("RegistryUnavailable", Reason::ImagePullFailed),
    ("SignatureValidationFailed", Reason::ImagePullFailed),
    ("CreateContainerConfigError", Reason::CreateContainerError),
    ("CreateContainerError", Reason::CreateContainerError),
    ("PostStartHookError", Reason::CreateContainerError),
    ("PreCreateHookError", Reason::CreateContainerError),
    ("PreStartHookError", Reason::CreateContainerError),
    ("RunContainerError", Reason::CreateContainerError),
    ("StartError", Reason::CreateContainerError),
];

/// Why a pod does not become ready.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct PodFailure {
    /// Reason for the conditions.
    pub reason: Reason,
    /// What failed, without the name of the pod. It can contain text of the container
    /// and of admission webhooks.
    pub message: String,
}

/// The failure of a pod. The first container with a failure counts.
pub(super) fn of(pod: &Pod, ready: bool) -> Option<PodFailure> {
    let status = pod.status.as_ref()?;
    if ready {
        return None;
    }
    let init = status.init_container_statuses.iter().flatten();
    let containers = init.chain(status.container_statuses.iter().flatten());
    let failed = containers.filter(|c| !c.ready).find_map(of_container);
    failed.or_else(|| unschedulable(status))
}

fn unschedulable(status: &PodStatus) -> Option<PodFailure> {
    let conditions = status.conditions.as_ref()?;
    let condition = conditions.iter().find(|c| {
        c.type_ == "PodScheduled"
            && c.status == "False"
            && c.reason.as_deref() == Some("Unschedulable")
    })?;
    let message = condition.message.as_deref().unwrap_or_default();
    Some(PodFailure {
        reason: Reason::Unschedulable,
        message: joined("no node is suitable", message),
    })
}

fn of_container(status: &ContainerStatus) -> Option<PodFailure> {
    waiting(status).or_else(|| repeated_exit(status))
}

fn waiting(status: &ContainerStatus) -> Option<PodFailure> {
    let waiting = status.state.as_ref()?.waiting.as_ref()?;
    let found = waiting.reason.as_deref()?;
    let (_, reason) = WAITING.iter().find(|(known, _)| *known == found)?;
    let ContainerStatus { name, image, .. } = status;
    let what = match reason {
        Reason::ImagePullFailed => format!("container {name:?} cannot pull image {image:?}"),
        _ => format!("container {name:?} cannot be created ({found})"),
    };
    let message = waiting.message.as_deref().unwrap_or_default();
    Some(PodFailure {
        reason: *reason,
        message: joined(&what, without_back_off(message)),
    })
}

/// The kubelet alternates between the error of a pull and the same error after a note
/// on the back-off. The note is removed, so that the status does not alternate.
fn without_back_off(message: &str) -> &str {
    if !message.starts_with("Back-off pulling image") {
        return message;
    }
    let error = message.split_once("\": ").map_or("", |(_, error)| error);
    error.strip_prefix("ErrImagePull: ").unwrap_or(error)
}

/// A container that exits again and again. A single restart does not count, unless
/// the kubelet delays the next one.
fn repeated_exit(status: &ContainerStatus) -> Option<PodFailure> {
    let terminated = |state: &Option<ContainerState>| state.as_ref()?.terminated.clone();
    let exited = terminated(&status.state);
    let delayed = status
        .state
        .as_ref()
        .and_then(|state| state.waiting.as_ref()?.reason.as_deref())
        == Some("CrashLoopBackOff");
    let repeated = status.restart_count >= 2 || exited.is_some() && status.restart_count >= 1;
    let last = exited.or_else(|| terminated(&status.last_state));
    let failed = |last: &ContainerStateTerminated| last.exit_code != 0 && !was_stable(last);
    let repeated = repeated && last.as_ref().is_some_and(failed);
    if !delayed && !repeated {
        return None;
    }
    let name = &status.name;
    let Some(last) = last else {
        return Some(PodFailure {
            reason: Reason::CrashLoopBackOff,
            message: format!("container {name:?} exits repeatedly"),
        });
    };
    if last.reason.as_deref() == Some("OOMKilled") {
        return Some(PodFailure {
            reason: Reason::OOMKilled,
            message: format!("container {name:?} exceeds its memory limit repeatedly"),
        });
    }
    let code = last.exit_code;
    let what = format!("container {name:?} exits repeatedly with code {code}");
    Some(PodFailure {
        reason: Reason::CrashLoopBackOff,
        message: joined(
            &what,
            last_line(last.message.as_deref().unwrap_or_default()),
        ),
    })
}

fn was_stable(last: &ContainerStateTerminated) -> bool {
    match (&last.started_at, &last.finished_at) {
        (Some(from), Some(to)) => to.0.duration_since(from.0) >= STABLE,
        _ => false,
    }
}

/// The end of the container's log, which has the error that ended the process.
fn last_line(text: &str) -> &str {
    let mut lines = text.lines().map(str::trim);
    lines.rfind(|line| !line.is_empty()).unwrap_or_default()
}

fn joined(what: &str, detail: &str) -> String {
    match detail {
        "" => what.to_owned(),
        detail => format!("{what}: {detail}"),
    }
}
