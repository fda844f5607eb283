//! Kubernetes Events about a resource. A lost Event never fails a reconciliation.

use fastllm_crds::{ConditionType, FastllmProxyStatus, Reason};
use k8s_openapi::api::core::v1::ObjectReference;
use kube::runtime::events::{Event, EventType, Recorder};

use crate::build::Object;
use crate::error::{Chain, call};
use crate::names::{Component, ObjectKey};
use crate::plan::{ApplyReason, RolloutReason, Step};

/// Maximum length of a note, in bytes.
const MAX_NOTE: usize = 1024;

/// Maximum length of an action, in characters.
const MAX_ACTION: usize = 128;

/// An Event to publish.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct OperatorEvent {
    /// Whether the type is `Warning` instead of `Normal`.
    pub warning: bool,
    /// Reason, an identifier.
    pub reason: &'static str,
    /// Action that was taken.
    pub action: String,
    /// Description for people.
    pub note: String,
    /// Related object, in addition to the resource.
    pub related: Option<ObjectKey>,
}

impl OperatorEvent {
    fn new(reason: &'static str, action: &str, note: String) -> Self {
        Self {
            warning: false,
            reason,
            action: action.chars().take(MAX_ACTION).collect(),
            note,
            related: None,
        }
    }
}

/// The Events of a reconciliation: its steps and the changes of the status.
#[must_use]
pub fn events_for(
    previous: &FastllmProxyStatus,
    current: &FastllmProxyStatus,
    done: &[Step],
) -> Vec<OperatorEvent> {
    let mut events: Vec<_> = done.iter().flat_map(step_events).collect();
    let stalled = |status: &FastllmProxyStatus| {
        let found = status.condition(ConditionType::Stalled)?;
        (found.status == "True").then(|| (found.reason.clone(), found.message.clone()))
    };
    if let Some((reason, note)) = stalled(current)
        && stalled(previous).as_ref() != Some(&(reason.clone(), note.clone()))
    {
        let known = Reason::ALL.iter().find(|r| r.as_str() == reason);
        let reason = known.map_or("Stalled", |r| r.as_str());
        events.push(OperatorEvent {
            warning: true,
            ..OperatorEvent::new(reason, "Stall", note)
        });
    }
    if current.bootstrapped && !previous.bootstrapped {
        let note = "the bootstrap admin exists".to_owned();
        events.push(OperatorEvent::new("Bootstrapped", "Bootstrap", note));
    }
    if current.is_true(ConditionType::Ready) && !previous.is_true(ConditionType::Ready) {
        let note = "all desired pods are ready".to_owned();
        events.push(OperatorEvent::new(
            Reason::AllReplicasReady.as_str(),
            "Finish",
            note,
        ));
    }
    events
}

/// A rollout results in one Event for each of its reasons, each with its own
/// related object: the recorder merges Events that differ in less.
fn step_events(step: &Step) -> Vec<OperatorEvent> {
    let (object, apply_reason) = match step {
        Step::Apply { object, reason, .. } => (object, reason),
        Step::DeleteJob { name, reason, .. } => {
            let key = ObjectKey {
                kind: "Job",
                name: name.clone(),
            };
            return vec![OperatorEvent {
                related: Some(key),
                ..OperatorEvent::new(
                    Reason::Bootstrapping.as_str(),
                    &reason.to_string(),
                    step.to_string(),
                )
            }];
        }
    };
    if *apply_reason == ApplyReason::Restore {
        return vec![OperatorEvent {
            related: Some(object.key()),
            ..OperatorEvent::new(Reason::Restored.as_str(), "Restore", step.to_string())
        }];
    }
    let reason = match (object, object.component()) {
        (Object::Job(_), _) => Reason::Bootstrapping,
        (Object::Deployment(_), Some(Component::Control)) => Reason::RollingControlPlane,
        (Object::Deployment(_), _) => Reason::RollingGateway,
        _ => return Vec::new(),
    };
    let event = |action: &str, related| OperatorEvent {
        related: Some(related),
        ..OperatorEvent::new(reason.as_str(), action, step.to_string())
    };
    match apply_reason {
        ApplyReason::Rollout(reasons) => {
            let one = |reason: &RolloutReason| match reason {
                RolloutReason::SecretChanged(s) => event(
                    &reason.to_string(),
                    ObjectKey {
                        kind: "Secret",
                        name: s.name.clone(),
                    },
                ),
                RolloutReason::ImageChanged(_)
                | RolloutReason::RestartRequested(_)
                | RolloutReason::KeyRestored
                | RolloutReason::TemplateChanged => event(&reason.to_string(), object.key()),
            };
            reasons.iter().map(one).collect()
        }
        ApplyReason::Create => vec![event("Create", object.key())],
        ApplyReason::Update | ApplyReason::Restore | ApplyReason::Replace | ApplyReason::Remove => {
            Vec::new()
        }
    }
}

/// The Event of a resource that does not decode.
#[must_use]
pub fn undecodable(defect: &str) -> OperatorEvent {
    let note = format!("the stored resource is not reconciled: {defect}");
    OperatorEvent {
        warning: true,
        ..OperatorEvent::new(Reason::InvalidValue.as_str(), "Decode", note)
    }
}

/// Publishes Events. The recorder publishes the same reason and object once
/// within a few minutes; a repetition increments a counter.
pub async fn publish(recorder: &Recorder, reference: &ObjectReference, events: Vec<OperatorEvent>) {
    for OperatorEvent {
        warning,
        reason,
        action,
        mut note,
        related,
    } in events
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
            secondary: related.map(|key| ObjectReference {
                kind: Some(key.kind.to_owned()),
                name: Some(key.name),
                namespace: reference.namespace.clone(),
                ..ObjectReference::default()
            }),
        };
        if let Err(error) = call(recorder.publish(&event, reference)).await {
            tracing::debug!(error = %Chain(&error), reason, "cannot publish an Event");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{OperatorEvent, events_for};
    use crate::fake_cluster::FakeCluster;

    fn reconcile(cluster: &mut FakeCluster) -> Vec<String> {
        let before = cluster.status();
        let (_, applied) = cluster.reconcile();
        let events = events_for(&before, &cluster.status(), applied.done());
        let line = |event: &OperatorEvent| {
            let related = event.related.as_ref();
            let related = related.map_or_else(String::new, |k| format!(" {}/{}", k.kind, k.name));
            format!("{} {}{related}", event.reason, event.action)
        };
        events.iter().map(line).collect()
    }

    #[test]
    fn a_rollout_is_published_once_with_its_secret() {
        let mut cluster = FakeCluster::ready();
        cluster.set_secret("db", "uri", "postgres://user:other@db/fastllm");
        let secret = "RollingControlPlane SecretChanged(db/uri) Secret/db";
        assert_eq!(reconcile(&mut cluster), [secret]);
        assert_eq!(reconcile(&mut cluster), [] as [&str; 0]);
        cluster.settle();
    }

    #[test]
    fn a_restored_object_is_published() {
        let mut cluster = FakeCluster::ready();
        let service = cluster.children.gateway_service.as_mut().unwrap();
        let selector = service.spec.as_mut().unwrap().selector.as_mut().unwrap();
        selector.insert("no".to_owned(), "endpoints".to_owned());
        let restored = "Restored Restore Service/llm-proxy";
        assert_eq!(reconcile(&mut cluster), [restored]);
        assert_eq!(reconcile(&mut cluster), [] as [&str; 0]);
    }

    #[test]
    fn a_stall_is_published_when_it_begins_and_when_it_changes() {
        let mut cluster = FakeCluster::ready();
        cluster.secrets.remove("db");
        assert_eq!(reconcile(&mut cluster), ["SecretNotFound Stall"]);
        assert_eq!(reconcile(&mut cluster), [] as [&str; 0]);
        cluster.secrets.remove("token");
        assert_eq!(reconcile(&mut cluster), ["SecretNotFound Stall"]);
    }
}
