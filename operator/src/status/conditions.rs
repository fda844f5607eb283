//! The conditions, each a function of the facts.

use fastllm_crds::{ConditionType, FastllmProxyStatus, Reason};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};

use super::facts::Facts;
use crate::observe::Read;
use crate::plan::{About, Problem};

/// Longest message of a condition, in bytes, as the API has it.
const MAX_MESSAGE: usize = 32_768;

/// A condition without its times.
pub(super) struct Verdict {
    kind: ConditionType,
    status: &'static str,
    reason: Reason,
    message: String,
}

impl Verdict {
    /// The condition. Its transition time moves only when its status does.
    pub(super) fn condition(
        self,
        previous: &FastllmProxyStatus,
        observed_generation: Option<i64>,
        now: Timestamp,
    ) -> Condition {
        let Self {
            kind,
            status,
            reason,
            mut message,
        } = self;
        let same = previous.condition(kind).filter(|c| c.status == status);
        let since = same.map_or(Time(now), |c| c.last_transition_time.clone());
        message.truncate(message.floor_char_boundary(MAX_MESSAGE));
        Condition {
            type_: kind.as_str().to_owned(),
            status: status.to_owned(),
            reason: reason.as_str().to_owned(),
            message,
            last_transition_time: since,
            // The API takes no negative generation; -1 stands only in the status itself.
            observed_generation: observed_generation.filter(|g| *g >= 0),
        }
    }
}

/// Every condition, in the order of their types.
pub(super) fn all(facts: &Facts<'_>) -> Vec<Verdict> {
    ConditionType::ALL
        .iter()
        .map(|kind| {
            let (status, reason, message) = match kind {
                ConditionType::Ready => ready(facts),
                ConditionType::Reconciling => reconciling(facts),
                ConditionType::Stalled => stalled(facts),
                ConditionType::Available => available(facts),
                ConditionType::SecretsResolved => secrets(facts),
                ConditionType::Upgrading => upgrading(facts),
                ConditionType::Bootstrapped => bootstrapped(facts),
                ConditionType::ModelsServed => models(facts),
                ConditionType::Paused => paused(facts),
            };
            Verdict {
                kind: *kind,
                status,
                reason,
                message,
            }
        })
        .collect()
}

type Judgement = (&'static str, Reason, String);

fn ready(facts: &Facts<'_>) -> Judgement {
    if let Some(first) = facts.stalled.first() {
        let mut message = messages(&facts.stalled);
        if let Some(retried) = facts.to_be_retried() {
            message = format!("{message}; {retried}");
        }
        return ("False", first.reason, message);
    }
    if let Some(first) = facts.unread().first() {
        return ("Unknown", first.reason, messages(facts.unread()));
    }
    if let Some((reason, _)) = facts.progress.first() {
        let all: Vec<_> = facts
            .progress
            .iter()
            .map(|(_, message)| message.as_str())
            .collect();
        return ("False", *reason, all.join("; "));
    }
    let (control, gateway) = (facts.control.figures.ready, facts.gateway.figures.ready);
    let mut message = format!("control plane: {control} pods ready; gateway: {gateway} pods ready");
    if gateway == 0 {
        message.push_str(" (stopped: no gateway pod was asked for)");
    }
    if *facts.models() == Read::Known(0) {
        message.push_str("; no model is configured yet (NoModels)");
    }
    ("True", Reason::AllReplicasReady, message)
}

fn reconciling(facts: &Facts<'_>) -> Judgement {
    if let Some(first) = facts.stalled.first() {
        return ("False", first.reason, "stalled".to_owned());
    }
    if facts.pass.plan.paused {
        return ("False", Reason::Paused, "paused".to_owned());
    }
    if let Some(first) = facts.unread().first() {
        return ("True", first.reason, messages(facts.unread()));
    }
    match facts.progress.first() {
        Some((reason, message)) => ("True", *reason, message.clone()),
        None => ("False", Reason::Complete, String::new()),
    }
}

fn stalled(facts: &Facts<'_>) -> Judgement {
    match facts.stalled.first() {
        Some(first) => ("True", first.reason, messages(&facts.stalled)),
        None => ("False", Reason::Complete, String::new()),
    }
}

fn available(facts: &Facts<'_>) -> Judgement {
    let ready = facts.gateway.figures.ready;
    if ready > 0 {
        let reason = if facts.gateway.figures.complete() {
            Reason::AllReplicasReady
        } else {
            Reason::RollingGateway
        };
        return ("True", reason, format!("{ready} gateway pods ready"));
    }
    let reason = facts
        .progress
        .first()
        .map_or(Reason::RollingGateway, |(reason, _)| *reason);
    ("False", reason, "no gateway pod is ready".to_owned())
}

fn secrets(facts: &Facts<'_>) -> Judgement {
    let all = facts
        .pass
        .plan
        .problems
        .iter()
        .filter(|p| p.about == About::Secrets);
    let all: Vec<_> = all.collect();
    let certain = all.iter().find(|p| !p.is_unknown());
    match (certain, all.first()) {
        (Some(first), _) => ("False", first.reason, messages(all.iter().copied())),
        (None, Some(first)) => ("Unknown", first.reason, messages(all.iter().copied())),
        (None, None) => ("True", Reason::Resolved, String::new()),
    }
}

fn upgrading(facts: &Facts<'_>) -> Judgement {
    let runs = facts
        .observed_image()
        .unwrap_or_else(|| "nothing".to_owned());
    let images = format!(
        "asked for {}, ready gateway pods run {runs}",
        facts.pass.proxy.spec.image
    );
    if !facts.installed() {
        return ("False", Reason::Complete, String::new());
    }
    if facts.control.rolls {
        return ("True", Reason::RollingControlPlane, images);
    }
    if facts.gateway.rolls {
        return ("True", Reason::RollingGateway, images);
    }
    ("False", Reason::Complete, String::new())
}

fn bootstrapped(facts: &Facts<'_>) -> Judgement {
    if facts.bootstrapped {
        return ("True", Reason::Complete, String::new());
    }
    match facts.pass.proxy.spec.bootstrap {
        Some(_) => ("False", Reason::Bootstrapping, facts.first_login()),
        None => (
            "True",
            Reason::Complete,
            "no first login was asked for".to_owned(),
        ),
    }
}

fn models(facts: &Facts<'_>) -> Judgement {
    match facts.models() {
        Read::Known(0) => (
            "False",
            Reason::NoModels,
            "the gateway has no model to serve".to_owned(),
        ),
        Read::Known(count) => ("True", Reason::Served, format!("{count} models")),
        Read::Unknown(failure) => ("Unknown", failure.reason(), failure.to_string()),
    }
}

fn paused(facts: &Facts<'_>) -> Judgement {
    if !facts.pass.plan.paused {
        return ("False", Reason::Complete, String::new());
    }
    let steps: Vec<_> = facts
        .pass
        .plan
        .steps
        .iter()
        .map(ToString::to_string)
        .collect();
    let pending = if steps.is_empty() {
        "nothing".to_owned()
    } else {
        steps.join("; ")
    };
    ("True", Reason::Paused, format!("pending: {pending}"))
}

fn messages<'p>(problems: impl IntoIterator<Item = &'p Problem>) -> String {
    let all: Vec<_> = problems.into_iter().map(|p| p.message.as_str()).collect();
    all.join("; ")
}
