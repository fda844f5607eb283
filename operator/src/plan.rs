//! The decision: what to do about a resource, from what was seen of it.
//!
//! [`plan`] is a pure function. Invariants:
//! - nothing is applied while a referenced Secret is missing, unusable or unread;
//! - the gateway's Deployment is written only once the control plane has
//!   finished rolling out what the gateway would be rolled out with;
//! - what exists as wanted is not written again;
//! - the encryption key never changes under a control plane that has used it.

mod compare;
mod rollout_reason;

use std::fmt;

use fastllm_crds::{FastllmProxy, Reason, validate};
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::ResourceExt as _;

use crate::build::{self, BuildContext, Object};
use crate::names::{
    ADMIN_PORT, APPLIED_HASH, Component, Ownership, PAUSE, PUBLIC_PORT, ROLLOUT_REASON, annotate,
    annotation, ownership,
};
use crate::observe::{Observed, PodView, Rollout, template_hash};
use crate::preflight::preflight;
use crate::problem::{Problem, ProblemScope};
use crate::secrets::InputHashes;

pub use compare::covers;
pub use rollout_reason::{RolloutReason, rollout_reasons};

/// What must still hold when a step is carried out.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Precondition {
    /// No object of the name exists.
    Absent,
    /// The object is the one that was seen.
    Uid(String),
}

/// Why a step is taken.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum ApplyReason {
    /// The object does not exist.
    Create,
    /// It differs from what is wanted, and its pods stay.
    Update,
    /// Its pods are replaced.
    Rollout(Vec<RolloutReason>),
    /// A Job is replaced, because it failed or was made from other values.
    Replace,
}

impl fmt::Display for ApplyReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Create => f.write_str("Create"),
            Self::Update => f.write_str("Update"),
            Self::Replace => f.write_str("Replace"),
            Self::Rollout(reasons) => write!(f, "RolloutReason={}", rollout_reason::join(reasons)),
        }
    }
}

/// One write.
#[derive(Clone, Debug, PartialEq)]
pub enum Step {
    /// Server-side apply of an object.
    Apply {
        /// The object.
        object: Object,
        /// What must still hold.
        precondition: Precondition,
        /// Why.
        reason: ApplyReason,
    },
    /// Removal of a Job, so that the next pass creates another.
    DeleteJob {
        /// Its name.
        name: String,
        /// The one that was seen.
        uid: String,
        /// Why.
        reason: ApplyReason,
    },
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Apply { object, reason, .. } => {
                write!(f, "apply {} {} ({reason})", object.kind(), object.name())
            }
            Self::DeleteJob { name, reason, .. } => write!(f, "delete Job {name} ({reason})"),
        }
    }
}

/// The pod templates that the planes should have.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Targets {
    /// Hash of control's template.
    pub control: String,
    /// Hash of the gateway's template.
    pub gateway: String,
}

/// What to do.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Plan {
    /// What stands in the way. With a problem, there are no steps.
    pub problems: Vec<Problem>,
    /// The steps in their order.
    pub steps: Vec<Step>,
    /// The templates to be reached; `None` while Secrets are not usable.
    pub targets: Option<Targets>,
    /// Whether objects of an earlier resource of this name are still going away.
    pub orphans: bool,
    /// Whether the resource is paused: the steps are shown and not taken.
    pub paused: bool,
}

/// Whether the first login was created, or the status already says so. The
/// Job of an earlier resource of the same name says nothing.
#[must_use]
pub fn bootstrapped(proxy: &FastllmProxy, job: Option<&Job>) -> bool {
    let said = proxy.status.as_ref().is_some_and(|s| s.bootstrapped);
    let ours = job.filter(|job| ownership(proxy, &job.metadata) == Ownership::Ours);
    said || ours.is_some_and(|job| job_condition(job, "Complete"))
}

/// Whether a Job has a condition.
#[must_use]
pub fn job_condition(job: &Job, kind: &str) -> bool {
    let conditions = job.status.as_ref().and_then(|s| s.conditions.as_ref());
    conditions.is_some_and(|all| all.iter().any(|c| c.type_ == kind && c.status == "True"))
}

/// Decides what to do.
#[must_use]
pub fn plan(proxy: &FastllmProxy, observed: &Observed) -> Plan {
    let mut plan = Plan {
        paused: proxy.annotations().get(PAUSE).map(String::as_str) == Some("true"),
        ..Plan::default()
    };
    let violations = validate(proxy);
    plan.problems.extend(
        violations
            .iter()
            .map(|v| Problem::new(ProblemScope::Spec, Reason::InvalidValue, v.to_string())),
    );
    let done = bootstrapped(proxy, observed.children.bootstrap.as_ref());
    let inputs = match preflight(proxy, &observed.secrets, done) {
        Ok(inputs) => Some(inputs),
        Err(problems) => {
            plan.problems.extend(problems);
            None
        }
    };
    if let Some(inputs) = inputs.filter(|_| plan.problems.is_empty()) {
        Planner {
            proxy,
            observed,
            plan: &mut plan,
        }
        .run(&inputs, done);
    }
    if !plan.problems.is_empty() || plan.orphans {
        plan.steps.clear();
    }
    plan
}

struct Planner<'a> {
    proxy: &'a FastllmProxy,
    observed: &'a Observed,
    plan: &'a mut Plan,
}

impl Planner<'_> {
    fn run(&mut self, inputs: &InputHashes, bootstrapped: bool) {
        let children = &self.observed.children;
        let wanted = BuildContext {
            proxy: self.proxy,
            inputs,
        };
        let control = build::control(wanted);
        let gateway = build::gateway(wanted);
        let targets = Targets {
            control: template_hash(&control).unwrap_or_default().to_owned(),
            gateway: template_hash(&gateway).unwrap_or_default().to_owned(),
        };
        self.guard_encryption_key(&control, bootstrapped);
        self.network_and_identity(wanted);
        let replicas = self.proxy.spec.control.replicas;
        let before = self.plan.steps.len();
        self.deployment(control, children.control.as_ref(), Component::Control);
        // While control is still to be written, what is known of it is of the past.
        let settled = self.plan.steps.len() == before;
        let pods = &self.observed.pods;
        let live = children.control.as_ref();
        let complete = settled && control_complete(live, pods, &targets, replicas);
        if complete {
            self.first_login(wanted, bootstrapped);
        }
        let live = children.gateway.as_ref();
        // A gateway that runs the wanted template already can be scaled while
        // control is down or being rolled out.
        let same_template = live.and_then(template_hash) == Some(targets.gateway.as_str());
        if complete || same_template {
            self.deployment(gateway, live, Component::Gateway);
        } else if let Some(gateway) = live {
            self.owned("Deployment", &gateway.metadata);
        }
        self.plan.targets = Some(targets);
    }

    fn network_and_identity(&mut self, wanted: BuildContext<'_>) {
        let children = &self.observed.children;
        for (component, account, service, port) in [
            (
                Component::Control,
                &children.control_account,
                &children.control_service,
                ADMIN_PORT,
            ),
            (
                Component::Gateway,
                &children.gateway_account,
                &children.gateway_service,
                PUBLIC_PORT,
            ),
        ] {
            let object =
                Object::ServiceAccount(Box::new(build::service_account(wanted, component)));
            let live = account.clone().map(|a| Object::ServiceAccount(Box::new(a)));
            self.plain(object, live.as_ref());
            let object = Object::Service(Box::new(build::service(wanted, component, port)));
            let live = service.clone().map(|s| Object::Service(Box::new(s)));
            self.plain(object, live.as_ref());
        }
    }

    /// What was encrypted under one key cannot be read under another, so once
    /// control may have written something, a changed key is refused.
    fn guard_encryption_key(&mut self, wanted: &Deployment, bootstrapped: bool) {
        let children = &self.observed.children;
        let Some(live) = &children.control else {
            return;
        };
        let may_have_written = bootstrapped || children.gateway.is_some();
        let changed = rollout_reason::changed_inputs(live, wanted);
        if may_have_written && changed.iter().any(|field| field == "encryptionKey") {
            let reference = &self.proxy.spec.encryption_key;
            self.plan.problems.push(Problem::new(
                ProblemScope::Secrets,
                Reason::EncryptionKeyChanged,
                format!(
                    "spec.encryptionKey: the value of key {:?} of Secret {:?} is not the one that \
                     stored credentials were encrypted with; put the old value back",
                    reference.key, reference.name
                ),
            ));
        }
    }

    /// Whether an object that exists may be written. If not, says why.
    fn owned(&mut self, kind: &str, live: &ObjectMeta) -> bool {
        let name = live.name.as_deref().unwrap_or_default();
        match ownership(self.proxy, live) {
            Ownership::Ours => true,
            Ownership::Orphan => {
                self.plan.orphans = true;
                false
            }
            Ownership::Foreign => {
                self.plan.problems.push(Problem::not_owned(kind, name));
                false
            }
        }
    }

    fn plain(&mut self, object: Object, live: Option<&Object>) {
        if let Some(live) = live
            && !self.owned(live.kind(), live.metadata())
        {
            return;
        }
        let object = object.with_applied_hash();
        match live {
            Some(live) if self.is_up_to_date(&object, live) => {}
            live => self.push(object, live.map(Object::metadata), ApplyReason::Update),
        }
    }

    fn deployment(
        &mut self,
        mut wanted: Deployment,
        live: Option<&Deployment>,
        component: Component,
    ) {
        let Some(live) = live else {
            let object = Object::Deployment(Box::new(wanted)).with_applied_hash();
            return self.push(object, None, ApplyReason::Create);
        };
        if !self.owned("Deployment", &live.metadata) {
            return;
        }
        let reasons = rollout_reasons(self.proxy, live, &wanted, component);
        // The reason of the last roll stays until the next one.
        let reason = match annotation(&live.metadata, ROLLOUT_REASON) {
            carried if reasons.is_empty() => carried.map(str::to_owned),
            _ => Some(rollout_reason::join(&reasons)),
        };
        if let Some(reason) = reason {
            annotate(&mut wanted.metadata, ROLLOUT_REASON, reason);
        }
        let object = Object::Deployment(Box::new(wanted)).with_applied_hash();
        if !self.is_up_to_date(&object, &Object::Deployment(Box::new(live.clone()))) {
            let reason = if reasons.is_empty() {
                ApplyReason::Update
            } else {
                ApplyReason::Rollout(reasons)
            };
            self.push(object, Some(&live.metadata), reason);
        }
    }

    fn first_login(&mut self, wanted: BuildContext<'_>, bootstrapped: bool) {
        let Some(login) = self.proxy.spec.bootstrap.as_ref().filter(|_| !bootstrapped) else {
            return;
        };
        let object = Object::Job(Box::new(build::bootstrap(wanted, login))).with_applied_hash();
        let Some(live) = &self.observed.children.bootstrap else {
            return self.push(object, None, ApplyReason::Create);
        };
        // A Job's template cannot be changed: one that was made from other
        // values is replaced. One that failed is left for its log to be read,
        // and the cluster removes it after a while.
        let same =
            annotation(&live.metadata, APPLIED_HASH) == annotation(object.metadata(), APPLIED_HASH);
        if self.owned("Job", &live.metadata) && !same {
            self.plan.steps.push(Step::DeleteJob {
                name: live.name_any(),
                uid: live.uid().unwrap_or_default(),
                reason: ApplyReason::Replace,
            });
        }
    }

    /// Whether an object is as wanted: it was applied from the same manifest,
    /// and nobody has changed a field of it since. A field that the API server
    /// itself made something else of is not written again and again.
    fn is_up_to_date(&self, wanted: &Object, live: &Object) -> bool {
        let same = annotation(wanted.metadata(), APPLIED_HASH)
            == annotation(live.metadata(), APPLIED_HASH);
        if !same {
            return false;
        }
        let key = live.key();
        let (live, wanted) = (live.to_json(), wanted.to_json());
        covers(&live, &wanted)
            || self.observed.unmodified.contains(&key)
                && covers(&live["metadata"], &wanted["metadata"])
    }

    fn push(&mut self, object: Object, live: Option<&ObjectMeta>, reason: ApplyReason) {
        let (precondition, reason) = match live {
            Some(live) => (
                Precondition::Uid(live.uid.clone().unwrap_or_default()),
                reason,
            ),
            None => (Precondition::Absent, ApplyReason::Create),
        };
        self.plan.steps.push(Step::Apply {
            object,
            precondition,
            reason,
        });
    }
}

/// Whether control has finished rolling out what it should run: all pods of
/// the wanted template, all ready, and none of another template left, not even
/// one that is being shut down.
#[must_use]
pub fn control_complete(
    live: Option<&Deployment>,
    pods: &[PodView],
    targets: &Targets,
    replicas: i32,
) -> bool {
    let Some(live) = live else { return false };
    let rollout = Rollout::of(live);
    let old = pods.iter().any(|pod| {
        pod.component == Component::Control
            && pod.template_hash.as_deref() != Some(targets.control.as_str())
    });
    template_hash(live) == Some(targets.control.as_str())
        && rollout.desired == replicas
        && rollout.complete()
        && !old
}

#[cfg(test)]
mod tests;
