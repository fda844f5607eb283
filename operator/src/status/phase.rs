//! The phase, a pure function of the conditions.

use fastllm_crds::{ConditionType, Phase, Reason};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;

/// Summarizes conditions as a phase.
#[must_use]
pub fn phase(conditions: &[Condition]) -> Phase {
    let find = |kind: ConditionType| conditions.iter().find(|c| c.type_ == kind.as_str());
    let is = |kind, status: &str| find(kind).is_some_and(|c| c.status == status);
    let because = |kind, reason: Reason| find(kind).is_some_and(|c| c.reason == reason.as_str());
    let available = is(ConditionType::Available, "True");
    if is(ConditionType::Ready, "True") {
        Phase::Ready
    } else if is(ConditionType::Stalled, "True") {
        let never_applied = !is(ConditionType::SecretsResolved, "True") && !available;
        if never_applied {
            Phase::Pending
        } else {
            Phase::Degraded
        }
    } else if is(ConditionType::Upgrading, "True") {
        Phase::Upgrading
    } else if because(ConditionType::Ready, Reason::Bootstrapping) {
        Phase::Bootstrapping
    } else if available {
        Phase::Degraded
    } else {
        Phase::Pending
    }
}
