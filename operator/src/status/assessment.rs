//! The assessment of a reconciliation, which the conditions are derived from.

use std::collections::BTreeSet;

use fastllm_crds::Reason;
use k8s_openapi::api::apps::v1::Deployment;

use super::{ReconcileOutcome, failures};
use crate::apply::ApplyError;
use crate::error::Chain;
use crate::names::Component;
use crate::observe::{PodView, ReadOutcome, Rollout, template_hash};
use crate::plan::{Targets, bootstrapped, control_complete, former_control_pod, job_condition};
use crate::problem::{Problem, ProblemScope};
use crate::redactor::Redactor;
use crate::scaling::expected_replicas;

/// The state of a plane.
pub(super) struct PlaneStatus {
    pub(super) rollout: Rollout,
    /// Number of pods that the plane should have.
    pub(super) replicas: i32,
    /// Whether all its pods, and no others, run the desired template and are ready.
    pub(super) complete: bool,
    /// Whether pods of another template are being replaced or will be.
    pub(super) rolling: bool,
    /// Whether the live template is the desired one, so that the conditions of the
    /// Deployment are about it.
    pub(super) is_current: bool,
}

impl PlaneStatus {
    /// Assesses a plane. `may_be_complete` is false while it waits for a condition
    /// that its own pods do not show.
    fn of(
        live: Option<&Deployment>,
        may_be_complete: bool,
        pods: &[PodView],
        desired: DesiredPlane<'_>,
    ) -> Self {
        let rollout = live.map(Rollout::of).unwrap_or_default();
        let outdated = pods.iter().any(|pod| {
            pod.component == desired.component
                && !pod.terminating
                && pod.template_hash.as_deref() != Some(desired.template)
        });
        let is_current = live.and_then(template_hash) == Some(desired.template);
        let complete = may_be_complete
            && is_current
            && rollout.desired == desired.replicas
            && rollout.complete()
            && !outdated;
        Self {
            rollout,
            replicas: desired.replicas,
            complete,
            rolling: !complete && (outdated || rollout.replacing()),
            is_current,
        }
    }
}

/// What a plane should run.
#[derive(Clone, Copy)]
struct DesiredPlane<'a> {
    component: Component,
    template: &'a str,
    replicas: i32,
}

/// An operation that is in progress.
pub(super) struct Progress {
    pub(super) reason: Reason,
    pub(super) message: String,
}

/// The assessment of a reconciliation.
pub(super) struct Assessment<'a> {
    pub(super) outcome: ReconcileOutcome<'a>,
    pub(super) control: PlaneStatus,
    pub(super) gateway: PlaneStatus,
    pub(super) bootstrapped: bool,
    /// Problems that the operator cannot solve by itself.
    pub(super) stalled: Vec<Problem>,
    /// Operations in progress, in their order.
    pub(super) progress: Vec<Progress>,
}

impl<'a> Assessment<'a> {
    pub(super) fn of(outcome: ReconcileOutcome<'a>) -> Self {
        let children = outcome.applied.children();
        let (control, gateway) = (children.control.as_ref(), children.gateway.as_ref());
        let spec = &outcome.proxy.spec;
        // The desired templates of a resource that is paused or has a problem are not
        // rolled out, or are unknown; the live templates are used instead.
        let desired = outcome.plan.targets.clone();
        let targets = desired
            .filter(|_| !outcome.plan.paused && outcome.plan.problems.is_empty())
            .unwrap_or_else(|| Targets {
                control: template_hash_or_empty(control),
                gateway: template_hash_or_empty(gateway),
            });
        let replicas = |component, live: Option<&Deployment>, spec: i32| match live {
            Some(live) if outcome.plan.paused => Rollout::of(live).desired,
            _ => {
                let autoscaled = outcome.observed.autoscalers.contains_key(&component);
                expected_replicas(spec, live, autoscaled)
            }
        };
        let control_replicas = replicas(Component::Control, control, spec.control.replicas);
        let pods = pods(outcome);
        let control_complete = control_complete(control, pods, &targets.control, control_replicas);
        let desired_control = DesiredPlane {
            component: Component::Control,
            template: &targets.control,
            replicas: control_replicas,
        };
        let desired_gateway = DesiredPlane {
            component: Component::Gateway,
            template: &targets.gateway,
            replicas: replicas(Component::Gateway, gateway, spec.proxy.replicas),
        };
        let mut assessment = Self {
            outcome,
            control: PlaneStatus::of(control, control_complete, pods, desired_control),
            gateway: PlaneStatus::of(gateway, true, pods, desired_gateway),
            bootstrapped: bootstrapped(outcome.proxy, children.bootstrap.as_ref()),
            stalled: Vec::new(),
            progress: Vec::new(),
        };
        assessment.stalled = assessment.find_stalled(&targets);
        assessment.progress = assessment.find_progress(&targets);
        assessment
    }

    /// Whether the gateway exists, as opposed to a first installation.
    pub(super) fn installed(&self) -> bool {
        self.outcome.applied.children().gateway.is_some()
    }

    /// The error of a step that is retried.
    pub(super) fn retryable_failure(&self) -> Option<String> {
        match self.outcome.applied.failure() {
            None | Some(ApplyError::Rejected(_)) => None,
            Some(error) => Some(Chain(error).to_string()),
        }
    }

    /// The reads that failed.
    pub(super) fn failed_reads(&self) -> Vec<&Problem> {
        self.outcome
            .plan
            .problems
            .iter()
            .filter(|p| p.is_unknown())
            .collect()
    }

    /// The images of the ready gateway pods.
    pub(super) fn observed_image(&self) -> Option<String> {
        let images: BTreeSet<&str> = pods(self.outcome)
            .iter()
            .filter(|pod| pod.component == Component::Gateway && pod.ready && !pod.terminating)
            .map(|pod| pod.image.as_str())
            .collect();
        let images: Vec<_> = images.into_iter().collect();
        (!images.is_empty()).then(|| images.join(", "))
    }

    /// Number of models that the gateway serves.
    pub(super) fn models(&self) -> &ReadOutcome<usize> {
        &self.outcome.observed.reports.models
    }

    fn find_stalled(&self, targets: &Targets) -> Vec<Problem> {
        let plan = self.outcome.plan;
        let mut stalled: Vec<_> = plan
            .problems
            .iter()
            .filter(|p| !p.is_unknown())
            .cloned()
            .collect();
        if let Some(ApplyError::Rejected(problem)) = self.outcome.applied.failure() {
            stalled.push(problem.clone());
        }
        stalled.extend(self.find_failures(targets));
        stalled
    }

    /// The failures of the planes' pods and rollouts. Conditions of a Deployment count
    /// only if they are about the desired template.
    fn find_failures(&self, targets: &Targets) -> Vec<Problem> {
        let observed = self.outcome.observed;
        let redactor = Redactor::new(self.outcome.proxy, &observed.secrets);
        let desired = |pod: &PodView| match pod.component {
            Component::Control => pod.template_hash.as_ref() == Some(&targets.control),
            Component::Gateway => pod.template_hash.as_ref() == Some(&targets.gateway),
            Component::Bootstrap => true,
        };
        let mut found = failures::of_pods(pods(self.outcome), desired, &redactor);
        if let Some(message) = &observed.reports.database_problem {
            found.push(failures::of_database(message, &redactor));
        }
        let children = self.outcome.applied.children();
        for (component, live) in [
            (Component::Control, &children.control),
            (Component::Gateway, &children.gateway),
        ] {
            let plane = self.plane(component);
            let live = live.as_ref().filter(|_| plane.is_current);
            found.extend(live.and_then(|l| failures::of_creation(component, l, &redactor)));
            if plane.is_current && plane.rollout.deadline_exceeded {
                let counts = self.pod_counts(component);
                let message = format!("{counts}; the rollout exceeded its progress deadline");
                let reason = Reason::ProgressDeadlineExceeded;
                found.push(Problem::new(ProblemScope::Objects, reason, message));
            }
        }
        found
    }

    fn plane(&self, component: Component) -> &PlaneStatus {
        match component {
            Component::Control => &self.control,
            Component::Gateway | Component::Bootstrap => &self.gateway,
        }
    }

    /// The pods of a plane, as in "gateway: 1 of 3 pods ready, 2 updated".
    fn pod_counts(&self, component: Component) -> String {
        let PlaneStatus {
            rollout, replicas, ..
        } = self.plane(component);
        let Rollout { ready, updated, .. } = rollout;
        format!("{component}: {ready} of {replicas} pods ready, {updated} updated")
    }

    /// Number of ready endpoints of the gateway's Service, if the resource owns it.
    pub(super) fn endpoints(&self) -> usize {
        let service = &self.outcome.applied.children().gateway_service;
        service
            .as_ref()
            .map_or(0, |_| self.outcome.observed.endpoints)
    }

    /// The autoscaler that decides on the number of gateway pods.
    pub(super) fn autoscaler(&self) -> Option<&str> {
        let autoscalers = &self.outcome.observed.autoscalers;
        autoscalers.get(&Component::Gateway).map(String::as_str)
    }

    fn find_progress(&self, targets: &Targets) -> Vec<Progress> {
        let spec = &self.outcome.proxy.spec;
        let mut progress = Vec::new();
        let mut push = |reason, message| progress.push(Progress { reason, message });
        if self.outcome.plan.orphans {
            let message = "waiting for the objects of a deleted resource with the same name";
            push(Reason::RollingControlPlane, message.to_owned());
        }
        for obstacle in &self.outcome.plan.obstacles {
            push(obstacle.reason, obstacle.message.clone());
        }
        if let Some(message) = self.retryable_failure() {
            push(Reason::ApplyRejected, message);
        }
        if !self.control.complete {
            let mut message = self.pod_counts(Component::Control);
            if let Some(pod) = former_control_pod(pods(self.outcome), &targets.control) {
                let waiting = format!(
                    "; waiting until pod {:?} of another template has terminated",
                    pod.name
                );
                message.push_str(&waiting);
            }
            if self.installed() && !self.gateway.complete {
                message.push_str("; the gateway rollout waits for it");
            }
            push(Reason::RollingControlPlane, message);
        }
        if spec.bootstrap.is_some() && !self.bootstrapped {
            push(Reason::Bootstrapping, self.bootstrap_progress());
        }
        if !self.gateway.complete {
            push(Reason::RollingGateway, self.pod_counts(Component::Gateway));
        }
        progress
    }

    /// Progress of the creation of the bootstrap admin.
    pub(super) fn bootstrap_progress(&self) -> String {
        match &self.outcome.applied.children().bootstrap {
            None => "bootstrap admin: waiting for the control plane".to_owned(),
            Some(job) if job_condition(job, "Failed") => {
                let name = job.metadata.name.as_deref().unwrap_or_default();
                format!(
                    "bootstrap admin: Job {name:?} failed; it is retried within 10 minutes, \
                     or when the resource or the Secret changes"
                )
            }
            Some(_) => "bootstrap admin: the Job is running".to_owned(),
        }
    }
}

fn template_hash_or_empty(deployment: Option<&Deployment>) -> String {
    deployment
        .and_then(template_hash)
        .unwrap_or_default()
        .to_owned()
}

/// The pods of the resource, without those of a deleted resource with the same name.
fn pods(outcome: ReconcileOutcome<'_>) -> &[PodView] {
    if outcome.plan.orphans {
        return &[];
    }
    &outcome.observed.pods
}
