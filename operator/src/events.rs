//! Events tell the story of a resource. Losing one never fails a pass.

use fastllm_crds::{ConditionType, FastllmProxy, FastllmProxyStatus, Reason};
use k8s_openapi::api::core::v1::ObjectReference;
use kube::runtime::events::{Event, EventType, Recorder};
use kube::{Resource as _, ResourceExt as _};

use crate::build::Object;
use crate::error::call;
use crate::names::Component;
use crate::plan::{Step, Why};

/// Longest note that the API takes, in bytes.
const MAX_NOTE: usize = 1024;

/// Something worth telling.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Told {
    /// Whether somebody should look.
    pub warning: bool,
    /// The stable word.
    pub reason: &'static str,
    /// What happened.
    pub note: String,
    /// The object that it is about besides the resource, as kind and name.
    pub secondary: Option<(&'static str, String)>,
}

/// What a pass did and what changed by it.
#[must_use]
pub fn tell(previous: &FastllmProxyStatus, now: &FastllmProxyStatus, done: &[Step]) -> Vec<Told> {
    let mut told: Vec<_> = done.iter().filter_map(step).collect();
    let message = |status: &FastllmProxyStatus, kind| {
        let found = status.condition(kind).filter(|c| c.status == "True");
        found.map(|c| (c.reason.clone(), c.message.clone()))
    };
    let stalled = message(now, ConditionType::Stalled);
    if let Some((reason, note)) = &stalled
        && message(previous, ConditionType::Stalled) != stalled
    {
        let known = Reason::ALL.iter().find(|r| r.as_str() == reason);
        let reason = known.map_or("Stalled", |r| r.as_str());
        told.push(Told {
            warning: true,
            reason,
            note: note.clone(),
            secondary: None,
        });
    }
    if now.bootstrapped && !previous.bootstrapped {
        let note = "the first login exists".to_owned();
        told.push(Told {
            warning: false,
            reason: "Bootstrapped",
            note,
            secondary: None,
        });
    }
    if now.is_true(ConditionType::Ready) && !previous.is_true(ConditionType::Ready) {
        let reason = Reason::AllReplicasReady.as_str();
        let note = "every pod that was asked for is ready".to_owned();
        told.push(Told {
            warning: false,
            reason,
            note,
            secondary: None,
        });
    }
    told
}

fn step(step: &Step) -> Option<Told> {
    let (object, why) = match step {
        Step::Apply { object, why, .. } => (object, why),
        Step::DeleteJob { name, why, .. } => {
            let reason = Reason::Bootstrapping.as_str();
            let secondary = Some(("Job", name.clone()));
            let note = format!("Job {name} is replaced ({why})");
            return Some(Told {
                warning: false,
                reason,
                note,
                secondary,
            });
        }
    };
    let reason = match (object, why) {
        (Object::Job(_), _) => Reason::Bootstrapping,
        (Object::Deployment(_), Why::Create | Why::Roll(_))
            if object.component() == Some(Component::Control) =>
        {
            Reason::RollingControlPlane
        }
        (Object::Deployment(_), Why::Create | Why::Roll(_)) => Reason::RollingGateway,
        _ => return None,
    };
    Some(Told {
        warning: false,
        reason: reason.as_str(),
        note: step.to_string(),
        secondary: Some((object.kind(), object.name().to_owned())),
    })
}

/// Sends events. They are told at most once in a few minutes for each reason
/// and object; a repetition raises a counter.
pub async fn publish(recorder: &Recorder, proxy: &FastllmProxy, told: Vec<Told>) {
    let reference = proxy.object_ref(&());
    for Told {
        warning,
        reason,
        mut note,
        secondary,
    } in told
    {
        note.truncate(note.floor_char_boundary(MAX_NOTE));
        let event = Event {
            type_: if warning {
                EventType::Warning
            } else {
                EventType::Normal
            },
            reason: reason.to_owned(),
            note: Some(note),
            action: "Reconcile".to_owned(),
            secondary: secondary.map(|(kind, name)| ObjectReference {
                kind: Some(kind.to_owned()),
                name: Some(name),
                namespace: proxy.namespace(),
                ..ObjectReference::default()
            }),
        };
        if let Err(error) = call(recorder.publish(&event, &reference)).await {
            tracing::debug!(%error, reason, "event was lost");
        }
    }
}
