//! What a pass amounts to, before it is put into conditions.

use std::collections::BTreeSet;

use fastllm_crds::Reason;
use k8s_openapi::api::apps::v1::Deployment;

use super::Pass;
use crate::apply::ApplyError;
use crate::names::Component;
use crate::observe::{PodView, Read, Rollout, template_hash};
use crate::plan::{About, Problem, Targets, bootstrapped, control_complete, job_condition};

/// Where a plane stands.
pub(super) struct Plane {
    pub(super) figures: Rollout,
    /// It runs what was asked for, and nothing else.
    pub(super) done: bool,
    /// Its pods are being replaced by others, or wait for it.
    pub(super) rolls: bool,
}

impl Plane {
    fn of(live: Option<&Deployment>, done: bool, pods: &[PodView], wanted: Wanted<'_>) -> Self {
        let figures = live.map(Rollout::of).unwrap_or_default();
        let old = pods.iter().any(|pod| {
            pod.component == wanted.component
                && !pod.terminating
                && pod.template_hash.as_deref() != Some(wanted.template)
        });
        let same = live.and_then(template_hash) == Some(wanted.template);
        let all = same && figures.desired == wanted.replicas && figures.complete() && !old;
        let done = done && all;
        Self {
            figures,
            done,
            rolls: !done && (old || figures.replacing()),
        }
    }
}

/// What a plane should run.
#[derive(Clone, Copy)]
struct Wanted<'a> {
    component: Component,
    template: &'a str,
    replicas: i32,
}

/// What a pass amounts to.
pub(super) struct Facts<'a> {
    pub(super) pass: Pass<'a>,
    pub(super) control: Plane,
    pub(super) gateway: Plane,
    pub(super) bootstrapped: bool,
    /// What cannot be overcome without help.
    pub(super) stalled: Vec<Problem>,
    /// What is under way, in its order.
    pub(super) progress: Vec<(Reason, String)>,
}

impl<'a> Facts<'a> {
    pub(super) fn of(pass: Pass<'a>) -> Self {
        let children = pass.applied.children();
        let (control, gateway) = (children.control.as_ref(), children.gateway.as_ref());
        let spec = &pass.proxy.spec;
        // Without usable Secrets nobody knows the templates to be reached;
        // what is there is then measured against itself.
        let targets = pass.plan.targets.clone().unwrap_or_else(|| Targets {
            control: hash_of(control),
            gateway: hash_of(gateway),
        });
        let pods = pods(pass);
        let settled = control_complete(control, pods, &targets, spec.control.replicas);
        let wanted = |component, template, replicas| Wanted {
            component,
            template,
            replicas,
        };
        let of_control = wanted(Component::Control, &targets.control, spec.control.replicas);
        let of_gateway = wanted(Component::Gateway, &targets.gateway, spec.proxy.replicas);
        let mut facts = Self {
            pass,
            control: Plane::of(control, settled, pods, of_control),
            gateway: Plane::of(gateway, true, pods, of_gateway),
            bootstrapped: bootstrapped(pass.proxy, children.bootstrap.as_ref()),
            stalled: Vec::new(),
            progress: Vec::new(),
        };
        facts.stalled = facts.find_stalled(&targets);
        facts.progress = facts.find_progress();
        facts
    }

    /// Whether there is a deployment to upgrade, as opposed to a first install.
    pub(super) fn installed(&self) -> bool {
        self.pass.applied.children().gateway.is_some()
    }

    /// What a step that did not work this time says.
    pub(super) fn to_be_retried(&self) -> Option<&str> {
        match self.pass.applied.failure() {
            Some(ApplyError::Transient(message)) => Some(message),
            _ => None,
        }
    }

    /// What could not be read.
    pub(super) fn unread(&self) -> Vec<&Problem> {
        self.pass
            .plan
            .problems
            .iter()
            .filter(|p| p.is_unknown())
            .collect()
    }

    /// The images that ready gateway pods run.
    pub(super) fn observed_image(&self) -> Option<String> {
        let images: BTreeSet<&str> = pods(self.pass)
            .iter()
            .filter(|pod| pod.component == Component::Gateway && pod.ready && !pod.terminating)
            .map(|pod| pod.image.as_str())
            .collect();
        let images: Vec<_> = images.into_iter().collect();
        (!images.is_empty()).then(|| images.join(", "))
    }

    /// Number of models that the gateway serves.
    pub(super) fn models(&self) -> &Read<usize> {
        &self.pass.observed.models
    }

    fn find_stalled(&self, targets: &Targets) -> Vec<Problem> {
        let plan = self.pass.plan;
        let mut stalled: Vec<_> = plan
            .problems
            .iter()
            .filter(|p| !p.is_unknown())
            .cloned()
            .collect();
        if let Some(ApplyError::Refused(problem)) = self.pass.applied.failure() {
            stalled.push(problem.clone());
        }
        stalled.extend(pull_failure(pods(self.pass), |pod| match pod.component {
            Component::Control => Some(targets.control.as_str()),
            Component::Gateway => Some(targets.gateway.as_str()),
            Component::Bootstrap => pod.template_hash.as_deref(),
        }));
        for (plane, rollout) in [
            ("control plane", self.control.figures),
            ("gateway", self.gateway.figures),
        ] {
            if rollout.deadline_exceeded {
                stalled.push(Problem::new(
                    About::Objects,
                    Reason::ProgressDeadlineExceeded,
                    format!(
                        "{plane}: no progress for too long, {}",
                        figures(rollout, rollout.desired)
                    ),
                ));
            }
        }
        stalled
    }

    fn find_progress(&self) -> Vec<(Reason, String)> {
        let spec = &self.pass.proxy.spec;
        let mut progress = Vec::new();
        if self.pass.plan.leftovers {
            let message = "objects of an earlier resource of this name are still being removed";
            progress.push((Reason::RollingControlPlane, message.to_owned()));
        }
        if let Some(message) = self.to_be_retried() {
            progress.push((Reason::ApplyRejected, message.to_owned()));
        }
        if !self.control.done {
            let mut message = format!(
                "control plane: {}",
                figures(self.control.figures, spec.control.replicas)
            );
            if self.installed() && !self.gateway.done {
                message.push_str("; the gateway is held until it is rolled out");
            }
            progress.push((Reason::RollingControlPlane, message));
        }
        if spec.bootstrap.is_some() && !self.bootstrapped {
            progress.push((Reason::Bootstrapping, self.first_login()));
        }
        if !self.gateway.done {
            let message = format!(
                "gateway: {}",
                figures(self.gateway.figures, spec.proxy.replicas)
            );
            progress.push((Reason::RollingGateway, message));
        }
        progress
    }

    /// Where the creation of the first login stands.
    pub(super) fn first_login(&self) -> String {
        match &self.pass.applied.children().bootstrap {
            None => "first login: waits for the control plane".to_owned(),
            Some(job) if job_condition(job, "Failed") => {
                let name = job.metadata.name.as_deref().unwrap_or_default();
                format!(
                    "first login: Job {name:?} failed; it is tried again within 10 minutes, \
                     or at once when the resource or the Secret changes"
                )
            }
            Some(_) => "first login: the Job is running".to_owned(),
        }
    }
}

fn hash_of(deployment: Option<&Deployment>) -> String {
    deployment
        .and_then(template_hash)
        .unwrap_or_default()
        .to_owned()
}

/// The pods of the resource; those of an earlier one of its name are not spoken of.
fn pods(pass: Pass<'_>) -> &[PodView] {
    if pass.plan.leftovers {
        return &[];
    }
    &pass.observed.pods
}

fn figures(rollout: Rollout, desired: i32) -> String {
    let Rollout { ready, updated, .. } = rollout;
    format!("{ready} of {desired} pods ready, {updated} updated")
}

/// The first pod of a wanted template whose image cannot be pulled.
fn pull_failure<'p>(
    pods: &'p [PodView],
    wanted: impl Fn(&'p PodView) -> Option<&'p str>,
) -> Option<Problem> {
    let failed: Vec<_> = pods
        .iter()
        .filter(|pod| pod.pull_failed && !pod.terminating)
        .filter(|pod| pod.template_hash.as_deref() == wanted(pod))
        .collect();
    let first = failed.first()?;
    let more = match failed.len() - 1 {
        0 => String::new(),
        more => format!(" (and {more} more)"),
    };
    let PodView { name, image, .. } = first;
    let message = format!("pod {name:?} cannot pull image {image:?}{more}");
    Some(Problem::new(
        About::Objects,
        Reason::ImagePullFailed,
        message,
    ))
}
