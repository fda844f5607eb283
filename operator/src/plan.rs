//! Decides on the steps for a resource.
//!
//! [`plan`] is a pure function. Invariants:
//! - nothing is applied while a referenced Secret is missing, invalid or unread;
//! - the gateway's Deployment is written only after the control plane's rollout of
//!   the same change is complete;
//! - an up-to-date object is not written again;
//! - the encryption key of a control plane that has used it never changes.

mod checks;
mod compare;
mod completion;
mod restart;
mod rollout_reason;

use std::fmt;

use fastllm_crds::{FastllmProxy, Reason, validate};
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::ResourceExt as _;

use crate::build::{self, BuildContext, Object};
use crate::definition;
use crate::names::{
    ADMIN_PORT, Component, Ownership, PAUSE, PUBLIC_PORT, ROLLOUT_REASON, annotate, annotation,
    ownership, switch,
};
use crate::observe::{Observed, template_hash};
use crate::preflight::preflight;
use crate::problem::{Problem, ProblemScope};
use crate::scaling::{expected_replicas, replicas_to_apply};
use crate::secrets::InputHashes;

use checks::{invalid_values, is_same_manifest, job_template_hash, reason_of_change, terminating};
pub use compare::{MergeStrategy, covers, merge_strategy};
pub use completion::{bootstrapped, control_complete, former_control_pod, job_condition};
use restart::{restarted, restarted_with_key};
pub use rollout_reason::{RolloutReason, encryption_key_hash, rollout_reasons};

/// A condition that must hold when a step is executed.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Precondition {
    /// No object with this name exists.
    Absent,
    /// The object has this UID.
    Uid(String),
}

/// The reason of a step.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum ApplyReason {
    /// The object does not exist.
    Create,
    /// The object is outdated, but its pods are not.
    Update,
    /// Something else changed the object since it was applied.
    Restore,
    /// The pods are outdated and are replaced.
    Rollout(Vec<RolloutReason>),
    /// A Job is replaced, because its inputs changed.
    Replace,
    /// A Job is removed, because the resource no longer asks for it.
    Remove,
}

impl fmt::Display for ApplyReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Create => f.write_str("Create"),
            Self::Update => f.write_str("Update"),
            Self::Restore => f.write_str("Restore"),
            Self::Replace => f.write_str("Replace"),
            Self::Remove => f.write_str("Remove"),
            Self::Rollout(reasons) => write!(f, "RolloutReason={}", rollout_reason::join(reasons)),
        }
    }
}

/// A write to the API server.
#[derive(Clone, Debug, PartialEq)]
pub enum Step {
    /// Server-side apply of an object.
    Apply {
        /// The object.
        object: Object,
        /// The condition that must hold.
        precondition: Precondition,
        /// The reason.
        reason: ApplyReason,
    },
    /// Deletion of a Job. If it is replaced, the next reconciliation creates a new one.
    DeleteJob {
        /// Name of the Job.
        name: String,
        /// UID of the Job.
        uid: String,
        /// The reason.
        reason: ApplyReason,
    },
}

impl Step {
    /// The names of the Secrets whose change the step rolls out.
    pub fn changed_secrets(&self) -> impl Iterator<Item = &str> {
        let reasons = match self {
            Self::Apply {
                reason: ApplyReason::Rollout(reasons),
                ..
            } => &reasons[..],
            _ => &[],
        };
        reasons.iter().filter_map(|reason| match reason {
            RolloutReason::SecretChanged(reference) => Some(reference.name.as_str()),
            _ => None,
        })
    }
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

/// The desired pod templates.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Targets {
    /// Hash of the control plane's template.
    pub control: String,
    /// Hash of the gateway's template.
    pub gateway: String,
}

/// What the operator waits for before it can write an object.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Obstacle {
    /// Reason for the conditions.
    pub reason: Reason,
    /// Message for the conditions.
    pub message: String,
}

/// The plan for a resource.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Plan {
    /// Problems that prevent steps. There are no steps if there are problems.
    pub problems: Vec<Problem>,
    /// The steps, in order.
    pub steps: Vec<Step>,
    /// The steps that follow when the control plane's rollout is complete.
    pub held: Vec<Step>,
    /// Objects that cannot be written yet.
    pub obstacles: Vec<Obstacle>,
    /// The desired templates; `None` while Secrets are not usable.
    pub targets: Option<Targets>,
    /// Whether objects of a deleted resource with the same name still exist.
    pub orphans: bool,
    /// Whether the resource is paused. The steps of a paused resource are not executed.
    pub paused: bool,
}

/// Plans the steps for a resource.
#[must_use]
pub fn plan(proxy: &FastllmProxy, observed: &Observed) -> Plan {
    let mut plan = Plan {
        paused: switch(&proxy.metadata, PAUSE) == Ok(true),
        ..Plan::default()
    };
    let violations = validate(proxy).into_iter().map(|v| v.to_string());
    plan.problems.extend(
        violations
            .chain(invalid_values(proxy))
            .map(|text| Problem::new(ProblemScope::Spec, Reason::InvalidValue, text)),
    );
    if !observed.missing_fields.is_empty() {
        let text = definition::outdated(&observed.missing_fields);
        let problem = Problem::new(ProblemScope::Spec, Reason::SchemaOutdated, text);
        plan.problems.push(problem);
    }
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
        plan.held.clear();
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
        let context = BuildContext {
            proxy: self.proxy,
            inputs,
        };
        let pods = &self.observed.pods;
        let (control, gateway) = (children.control.as_ref(), children.gateway.as_ref());
        let gateway = restarted(self.proxy, build::gateway(context), gateway);
        let desired = restarted(self.proxy, build::control(context), control);
        let control = restarted_with_key(self.proxy, desired, control, pods);
        let targets = Targets {
            control: template_hash(&control).unwrap_or_default().to_owned(),
            gateway: template_hash(&gateway).unwrap_or_default().to_owned(),
        };
        self.check_encryption_key(&control);
        self.plan_services_and_accounts(context);
        let before = self.plan.steps.len();
        self.plan_deployment(control, children.control.as_ref(), Component::Control);
        // The observed state is outdated as soon as control is to be written.
        let control_up_to_date = self.plan.steps.len() == before;
        let live = children.control.as_ref();
        let autoscaled = self.is_autoscaled(Component::Control);
        let replicas = expected_replicas(self.proxy.spec.control.replicas, live, autoscaled);
        let complete =
            control_up_to_date && control_complete(live, pods, &targets.control, replicas);
        let due = self.plan.steps.len();
        self.plan_bootstrap(context, bootstrapped);
        let live = children.gateway.as_ref();
        // A gateway that already has the desired template can be scaled while the
        // control plane is unavailable or being rolled out.
        let same_template = live.and_then(template_hash) == Some(targets.gateway.as_str());
        if !complete && same_template {
            self.plan.held = self.plan.steps.split_off(due);
        }
        self.plan_deployment(gateway, live, Component::Gateway);
        if !complete && !same_template {
            self.plan.held = self.plan.steps.split_off(due);
        }
        self.remove_bootstrap();
        self.plan.targets = Some(targets);
    }

    fn plan_services_and_accounts(&mut self, context: BuildContext<'_>) {
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
                Object::ServiceAccount(Box::new(build::service_account(context, component)));
            let live = account.clone().map(|a| Object::ServiceAccount(Box::new(a)));
            self.plan_object(object, live.as_ref());
            let object = Object::Service(Box::new(build::service(context, component, port)));
            let live = service.clone().map(|s| Object::Service(Box::new(s)));
            self.plan_object(object, live.as_ref());
        }
    }

    /// Rejects another encryption key than the one that the control plane has run with:
    /// stored credentials could not be decrypted with it. The status records that one, so
    /// that it is known even if the Deployment was deleted.
    fn check_encryption_key(&mut self, desired: &Deployment) {
        let status = self.proxy.status.as_ref();
        let accepted = status.and_then(|status| status.encryption_key_hash.as_deref());
        if accepted.is_some_and(|hash| Some(hash) != encryption_key_hash(desired)) {
            let reference = &self.proxy.spec.encryption_key;
            self.plan.problems.push(Problem::new(
                ProblemScope::Secrets,
                Reason::EncryptionKeyChanged,
                format!(
                    "spec.encryptionKey: the value of key {:?} of Secret {:?} changed, but stored \
                     credentials are encrypted with the previous value; restore it",
                    reference.key, reference.name
                ),
            ));
        }
    }

    /// Whether an existing object may be written. Otherwise records the obstacle.
    fn check_owner(&mut self, kind: &str, live: &ObjectMeta) -> bool {
        match ownership(self.proxy, live) {
            Ownership::Ours | Ownership::Adoptable => true,
            Ownership::Terminating => {
                self.plan.obstacles.push(terminating(kind, live));
                false
            }
            Ownership::Orphan => {
                self.plan.orphans = true;
                false
            }
            Ownership::Foreign => {
                self.plan.problems.push(Problem::not_owned(kind, live));
                false
            }
        }
    }

    fn plan_object(&mut self, object: Object, live: Option<&Object>) {
        if let Some(live) = live
            && !self.check_owner(live.kind(), live.metadata())
        {
            return;
        }
        let object = object.with_applied_hash();
        match live {
            Some(live) if self.is_up_to_date(&object, live) => {}
            Some(live) => {
                let reason = reason_of_change(&object, live.metadata());
                self.push_apply(object, Some(live.metadata()), reason);
            }
            None => self.push_apply(object, None, ApplyReason::Create),
        }
    }

    fn plan_deployment(
        &mut self,
        mut desired: Deployment,
        live: Option<&Deployment>,
        component: Component,
    ) {
        let Some(live) = live else {
            let object = Object::Deployment(Box::new(desired)).with_applied_hash();
            return self.push_apply(object, None, ApplyReason::Create);
        };
        if !self.check_owner("Deployment", &live.metadata) {
            return;
        }
        let reasons = rollout_reasons(self.proxy, live, &desired, component);
        // The reason of the last rollout is kept until the next one.
        let reason = match annotation(&live.metadata, ROLLOUT_REASON) {
            carried if reasons.is_empty() => carried.map(str::to_owned),
            _ => Some(rollout_reason::join(&reasons)),
        };
        if let Some(reason) = reason {
            annotate(&mut desired.metadata, ROLLOUT_REASON, reason);
        }
        let spec = desired.spec.replicas.unwrap_or(1);
        let autoscaled = self.is_autoscaled(component);
        desired.spec.replicas = replicas_to_apply(spec, live, autoscaled);
        let object = Object::Deployment(Box::new(desired)).with_applied_hash();
        if !self.is_up_to_date(&object, &Object::Deployment(Box::new(live.clone()))) {
            let reason = if reasons.is_empty() {
                reason_of_change(&object, &live.metadata)
            } else {
                ApplyReason::Rollout(reasons)
            };
            self.push_apply(object, Some(&live.metadata), reason);
        }
    }

    fn is_autoscaled(&self, component: Component) -> bool {
        self.observed.autoscalers.contains_key(&component)
    }

    fn plan_bootstrap(&mut self, context: BuildContext<'_>, bootstrapped: bool) {
        let Some(admin) = self.proxy.spec.bootstrap.as_ref().filter(|_| !bootstrapped) else {
            return;
        };
        let desired = build::bootstrap(context, admin);
        let object = Object::Job(Box::new(desired.clone())).with_applied_hash();
        let Some(live) = &self.observed.children.bootstrap else {
            return self.push_apply(object, None, ApplyReason::Create);
        };
        // A Job's template is immutable, so a Job with other inputs is replaced. A
        // failed Job is kept so that its log can be read, until its TTL expires.
        if !self.check_owner("Job", &live.metadata) {
            return;
        }
        let adoptable = ownership(self.proxy, &live.metadata) == Ownership::Adoptable;
        let same = if adoptable {
            job_template_hash(live) == job_template_hash(&desired)
        } else {
            is_same_manifest(&object, &live.metadata)
        };
        if !same {
            self.push_delete(live, ApplyReason::Replace);
        } else if adoptable {
            self.push_apply(object, Some(&live.metadata), ApplyReason::Update);
        }
    }

    /// Deletes the Job of a bootstrap admin that is no longer requested.
    fn remove_bootstrap(&mut self) {
        let unwanted = self.proxy.spec.bootstrap.is_none();
        let live = self.observed.children.bootstrap.as_ref();
        if let Some(live) = live.filter(|_| unwanted)
            && ownership(self.proxy, &live.metadata) == Ownership::Ours
        {
            self.push_delete(live, ApplyReason::Remove);
        }
    }

    fn push_delete(&mut self, job: &Job, reason: ApplyReason) {
        self.plan.steps.push(Step::DeleteJob {
            name: job.name_any(),
            uid: job.uid().unwrap_or_default(),
            reason,
        });
    }

    /// Whether an object is up to date: it was applied from the same manifest and
    /// not changed since. Fields that the API server itself rewrites are not
    /// written again.
    fn is_up_to_date(&self, desired: &Object, live: &Object) -> bool {
        if !is_same_manifest(desired, live.metadata()) {
            return false;
        }
        let key = live.key();
        let (live, desired) = (live.to_json(), desired.to_json());
        covers(&live, &desired)
            || self.observed.unmodified.contains(&key)
                && covers(&live["metadata"], &desired["metadata"])
    }

    fn push_apply(&mut self, object: Object, live: Option<&ObjectMeta>, reason: ApplyReason) {
        let precondition = match live {
            Some(live) => Precondition::Uid(live.uid.clone().unwrap_or_default()),
            None => Precondition::Absent,
        };
        self.plan.steps.push(Step::Apply {
            object,
            precondition,
            reason,
        });
    }
}

#[cfg(test)]
mod tests;
