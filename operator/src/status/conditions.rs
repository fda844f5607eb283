//! The conditions, each a function of the assessment.

use fastllm_crds::{ConditionType, FastllmProxyStatus, Reason};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};

use super::assessment::Assessment;
use crate::observe::ReadOutcome;
use crate::problem::{Problem, ProblemScope};

/// Maximum length of a condition's message in the Kubernetes API, in bytes.
const MAX_MESSAGE: usize = 32_768;

/// Status, reason and message of a condition.
struct ConditionValue {
    status: &'static str,
    reason: Reason,
    message: String,
}

impl ConditionValue {
    fn is_true(reason: Reason, message: impl Into<String>) -> Self {
        Self {
            status: "True",
            reason,
            message: message.into(),
        }
    }

    fn is_false(reason: Reason, message: impl Into<String>) -> Self {
        Self {
            status: "False",
            reason,
            message: message.into(),
        }
    }

    fn unknown(reason: Reason, message: impl Into<String>) -> Self {
        Self {
            status: "Unknown",
            reason,
            message: message.into(),
        }
    }
}

/// A condition without its times.
pub(super) struct ConditionDraft {
    kind: ConditionType,
    value: ConditionValue,
}

impl ConditionDraft {
    /// Completes the condition. Its transition time changes only with its status.
    pub(super) fn condition(
        self,
        previous: &FastllmProxyStatus,
        observed_generation: Option<i64>,
        now: Timestamp,
    ) -> Condition {
        let Self { kind, value } = self;
        let ConditionValue {
            status,
            reason,
            mut message,
        } = value;
        let same = previous.condition(kind).filter(|c| c.status == status);
        let since = same.map_or(Time(now), |c| c.last_transition_time.clone());
        message.truncate(message.floor_char_boundary(MAX_MESSAGE));
        Condition {
            type_: kind.as_str().to_owned(),
            status: status.to_owned(),
            reason: reason.as_str().to_owned(),
            message,
            last_transition_time: since,
            // A condition cannot have a negative generation; -1 is used only in the status itself.
            observed_generation: observed_generation.filter(|g| *g >= 0),
        }
    }
}

impl ConditionDraft {
    pub(super) fn kind(&self) -> ConditionType {
        self.kind
    }

    /// Whether the condition follows from a defect of the resource alone.
    pub(super) fn describes_defect(&self) -> bool {
        self.value.status != "Unknown"
    }
}

/// The conditions of a resource that does not decode. Those that would require
/// its specification are `Unknown`.
pub(super) fn undecodable(defect: &str) -> Vec<ConditionDraft> {
    let message = format!(
        "the stored resource does not match its definition and is not reconciled: {defect}"
    );
    let reason = Reason::InvalidValue;
    let value = |kind| match kind {
        ConditionType::Ready => ConditionValue::is_false(reason, message.as_str()),
        ConditionType::Stalled => ConditionValue::is_true(reason, message.as_str()),
        ConditionType::Reconciling => ConditionValue::is_false(reason, "stalled"),
        _ => ConditionValue::unknown(reason, ""),
    };
    let drafts = ConditionType::ALL.iter().map(|kind| ConditionDraft {
        kind: *kind,
        value: value(*kind),
    });
    drafts.collect()
}

/// Every condition, in the order of [`ConditionType`].
pub(super) fn all(assessment: &Assessment<'_>) -> Vec<ConditionDraft> {
    ConditionType::ALL
        .iter()
        .map(|kind| ConditionDraft {
            kind: *kind,
            value: match kind {
                ConditionType::Ready => ready(assessment),
                ConditionType::Reconciling => reconciling(assessment),
                ConditionType::Stalled => stalled(assessment),
                ConditionType::Available => available(assessment),
                ConditionType::SecretsResolved => secrets(assessment),
                ConditionType::Upgrading => upgrading(assessment),
                ConditionType::Bootstrapped => bootstrapped(assessment),
                ConditionType::ModelsServed => models(assessment),
                ConditionType::Paused => paused(assessment),
            },
        })
        .collect()
}

fn ready(assessment: &Assessment<'_>) -> ConditionValue {
    if let Some(first) = assessment.stalled.first() {
        let mut message = messages(&assessment.stalled);
        if let Some(failure) = assessment.retryable_failure() {
            message = format!("{message}; {failure}");
        }
        return ConditionValue::is_false(first.reason, message);
    }
    if let Some(first) = assessment.failed_reads().first() {
        return ConditionValue::unknown(first.reason, messages(assessment.failed_reads()));
    }
    if let Some(first) = assessment.progress.first() {
        let all: Vec<_> = assessment
            .progress
            .iter()
            .map(|progress| progress.message.as_str())
            .collect();
        return ConditionValue::is_false(first.reason, all.join("; "));
    }
    let control = assessment.control.rollout.ready;
    let gateway = assessment.gateway.rollout.ready;
    let mut message = format!("control plane: {control} pods ready; gateway: {gateway} pods ready");
    if let Some(autoscaler) = assessment.autoscaler() {
        let scaled = format!(
            " (scaled by HorizontalPodAutoscaler {autoscaler:?}; spec.proxy.replicas is not used)"
        );
        message.push_str(&scaled);
    } else if gateway == 0 {
        message.push_str(" (stopped: spec.proxy.replicas is 0)");
    }
    if *assessment.models() == ReadOutcome::Known(0) {
        message.push_str("; no models are configured (NoModels)");
    }
    ConditionValue::is_true(Reason::AllReplicasReady, message)
}

fn reconciling(assessment: &Assessment<'_>) -> ConditionValue {
    if let Some(first) = assessment.stalled.first() {
        return ConditionValue::is_false(first.reason, "stalled");
    }
    if assessment.outcome.plan.paused {
        return ConditionValue::is_false(Reason::Paused, "paused");
    }
    if let Some(first) = assessment.failed_reads().first() {
        return ConditionValue::is_true(first.reason, messages(assessment.failed_reads()));
    }
    match assessment.progress.first() {
        Some(first) => ConditionValue::is_true(first.reason, first.message.as_str()),
        None => ConditionValue::is_false(Reason::Complete, ""),
    }
}

fn stalled(assessment: &Assessment<'_>) -> ConditionValue {
    match assessment.stalled.first() {
        Some(first) => ConditionValue::is_true(first.reason, messages(&assessment.stalled)),
        None => ConditionValue::is_false(Reason::Complete, ""),
    }
}

fn available(assessment: &Assessment<'_>) -> ConditionValue {
    let ready = assessment.endpoints();
    if ready > 0 {
        let reason = if assessment.gateway.rollout.complete() {
            Reason::AllReplicasReady
        } else {
            Reason::RollingGateway
        };
        return ConditionValue::is_true(reason, format!("{ready} endpoints ready"));
    }
    if assessment.gateway.rollout.ready > 0 {
        let message = "gateway pods are ready, but the gateway's Service has no ready endpoints";
        return ConditionValue::is_false(Reason::NoEndpoints, message);
    }
    let reason = assessment
        .progress
        .first()
        .map_or(Reason::RollingGateway, |progress| progress.reason);
    ConditionValue::is_false(reason, "no gateway pod is ready")
}

fn secrets(assessment: &Assessment<'_>) -> ConditionValue {
    let all = assessment
        .outcome
        .plan
        .problems
        .iter()
        .filter(|p| p.scope == ProblemScope::Secrets);
    let all: Vec<_> = all.collect();
    let certain = all.iter().find(|p| !p.is_unknown());
    let message = messages(all.iter().copied());
    match (certain, all.first()) {
        (Some(first), _) => ConditionValue::is_false(first.reason, message),
        (None, Some(first)) => ConditionValue::unknown(first.reason, message),
        (None, None) => ConditionValue::is_true(Reason::Resolved, ""),
    }
}

fn upgrading(assessment: &Assessment<'_>) -> ConditionValue {
    let observed = assessment
        .observed_image()
        .unwrap_or_else(|| "none".to_owned());
    let images = format!(
        "desired image: {}; image of the ready gateway pods: {observed}",
        assessment.outcome.proxy.spec.image
    );
    if !assessment.installed() {
        return ConditionValue::is_false(Reason::Complete, "");
    }
    if assessment.control.rolling {
        return ConditionValue::is_true(Reason::RollingControlPlane, images);
    }
    if assessment.gateway.rolling {
        return ConditionValue::is_true(Reason::RollingGateway, images);
    }
    ConditionValue::is_false(Reason::Complete, "")
}

fn bootstrapped(assessment: &Assessment<'_>) -> ConditionValue {
    if assessment.bootstrapped {
        return ConditionValue::is_true(Reason::Complete, "");
    }
    match assessment.outcome.proxy.spec.bootstrap {
        Some(_) => ConditionValue::is_false(Reason::Bootstrapping, assessment.bootstrap_progress()),
        None => ConditionValue::is_true(Reason::Complete, "spec.bootstrap is not set"),
    }
}

fn models(assessment: &Assessment<'_>) -> ConditionValue {
    match assessment.models() {
        ReadOutcome::Known(0) => {
            ConditionValue::is_false(Reason::NoModels, "the gateway serves no models")
        }
        ReadOutcome::Known(count) => {
            ConditionValue::is_true(Reason::Served, format!("{count} models"))
        }
        ReadOutcome::Unknown(failure) => {
            ConditionValue::unknown(failure.reason(), failure.to_string())
        }
    }
}

fn paused(assessment: &Assessment<'_>) -> ConditionValue {
    if !assessment.outcome.plan.paused {
        return ConditionValue::is_false(Reason::Complete, "");
    }
    let plan = assessment.outcome.plan;
    if !plan.problems.is_empty() {
        let message = format!("pending steps are unknown: {}", messages(&plan.problems));
        return ConditionValue::is_true(Reason::Paused, message);
    }
    let held = plan.held.iter();
    let held = held.map(|step| format!("{step}, once the control plane is complete"));
    let steps: Vec<_> = plan
        .steps
        .iter()
        .map(ToString::to_string)
        .chain(held)
        .collect();
    let pending = if steps.is_empty() {
        "none".to_owned()
    } else {
        steps.join("; ")
    };
    ConditionValue::is_true(Reason::Paused, format!("pending steps: {pending}"))
}

fn messages<'p>(problems: impl IntoIterator<Item = &'p Problem>) -> String {
    let all: Vec<_> = problems.into_iter().map(|p| p.message.as_str()).collect();
    all.join("; ")
}
