//! Events tell the story of a resource. Losing one never fails a pass.

use fastllm_crds::{ConditionType, FastllmProxy, FastllmProxyStatus, Reason};
use k8s_openapi::api::core::v1::ObjectReference;
use kube::runtime::events::{Event, EventType, Recorder};
use kube::{Resource as _, ResourceExt as _};

use crate::build::Object;
use crate::error::call;
use crate::names::Component;
use crate::plan::{RollReason, Step, Why};

/// Longest note that the API takes, in bytes.
const MAX_NOTE: usize = 1024;

/// Longest action that the API takes, in characters.
const MAX_ACTION: usize = 128;

/// Something worth telling.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Told {
    /// Whether somebody should look.
    pub warning: bool,
    /// The stable word.
    pub reason: &'static str,
    /// What was done, in one word.
    pub action: String,
    /// What happened.
    pub note: String,
    /// The object that it is about besides the resource, as kind and name.
    pub secondary: Option<(&'static str, String)>,
}

impl Told {
    fn new(reason: &'static str, action: &str, note: String) -> Self {
        Self {
            warning: false,
            reason,
            action: action.chars().take(MAX_ACTION).collect(),
            note,
            secondary: None,
        }
    }
}

/// What a pass did and what changed by it.
#[must_use]
pub fn tell(previous: &FastllmProxyStatus, now: &FastllmProxyStatus, done: &[Step]) -> Vec<Told> {
    let mut told: Vec<_> = done.iter().flat_map(step).collect();
    let stalled = |status: &FastllmProxyStatus| {
        let found = status.condition(ConditionType::Stalled)?;
        (found.status == "True").then(|| (found.reason.clone(), found.message.clone()))
    };
    if let Some((reason, note)) = stalled(now)
        && stalled(previous).as_ref() != Some(&(reason.clone(), note.clone()))
    {
        let known = Reason::ALL.iter().find(|r| r.as_str() == reason);
        let reason = known.map_or("Stalled", |r| r.as_str());
        told.push(Told {
            warning: true,
            ..Told::new(reason, "Stall", note)
        });
    }
    if now.bootstrapped && !previous.bootstrapped {
        let note = "the first login exists".to_owned();
        told.push(Told::new("Bootstrapped", "Bootstrap", note));
    }
    if now.is_true(ConditionType::Ready) && !previous.is_true(ConditionType::Ready) {
        let note = "every pod that was asked for is ready".to_owned();
        told.push(Told::new(Reason::AllReplicasReady.as_str(), "Finish", note));
    }
    told
}

/// A roll is told once for each of its reasons, each with its Secret: events
/// that differ in less are merged by the recorder.
fn step(step: &Step) -> Vec<Told> {
    let (object, why) = match step {
        Step::Apply { object, why, .. } => (object, why),
        Step::DeleteJob { name, .. } => {
            let secondary = Some(("Job", name.clone()));
            let told = Told::new(Reason::Bootstrapping.as_str(), "Replace", step.to_string());
            return vec![Told { secondary, ..told }];
        }
    };
    let reason = match (object, object.component()) {
        (Object::Job(_), _) => Reason::Bootstrapping,
        (Object::Deployment(_), Some(Component::Control)) => Reason::RollingControlPlane,
        (Object::Deployment(_), _) => Reason::RollingGateway,
        _ => return Vec::new(),
    };
    let itself = Some((object.kind(), object.name().to_owned()));
    let told = |action: &str, secondary| Told {
        secondary,
        ..Told::new(reason.as_str(), action, step.to_string())
    };
    match why {
        Why::Roll(reasons) => {
            let one = |reason: &RollReason| match reason {
                RollReason::SecretChanged(s) => {
                    told(&reason.to_string(), Some(("Secret", s.name.clone())))
                }
                RollReason::ImageChanged(_) | RollReason::TemplateChanged => {
                    told(&reason.to_string(), itself.clone())
                }
            };
            reasons.iter().map(one).collect()
        }
        Why::Create => vec![told("Create", itself)],
        Why::Update | Why::Replace => Vec::new(),
    }
}

/// Sends events. They are told at most once in a few minutes for each reason
/// and object; a repetition raises a counter.
pub async fn publish(recorder: &Recorder, proxy: &FastllmProxy, told: Vec<Told>) {
    let reference = proxy.object_ref(&());
    for Told {
        warning,
        reason,
        action,
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
            action,
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

#[cfg(test)]
mod tests {
    use super::tell;
    use crate::world::World;

    fn told(world: &mut World) -> Vec<String> {
        let before = world.status();
        let (_, applied) = world.pass();
        let told = tell(&before, &world.status(), applied.done());
        let line = |t: &super::Told| format!("{} {} {:?}", t.reason, t.action, t.secondary);
        told.iter().map(line).collect()
    }

    #[test]
    fn a_roll_is_told_once_with_its_secret() {
        let mut world = World::ready();
        world.set_secret("db", "uri", "postgres://user:other@db/fastllm");
        let secret = "RollingControlPlane SecretChanged(db/uri) Some((\"Secret\", \"db\"))";
        assert_eq!(told(&mut world), [secret]);
        assert_eq!(told(&mut world), [] as [&str; 0]);
        world.settle();
    }

    #[test]
    fn a_stall_is_told_when_it_begins_and_when_it_changes() {
        let mut world = World::ready();
        world.secrets.remove("db");
        assert_eq!(told(&mut world), ["SecretNotFound Stall None"]);
        assert_eq!(told(&mut world), [] as [&str; 0]);
        world.secrets.remove("token");
        assert_eq!(told(&mut world), ["SecretNotFound Stall None"]);
    }
}
