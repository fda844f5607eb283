//! What a pass amounts to, before it is put into conditions.

use std::collections::BTreeSet;

use fastllm_crds::Reason;

use super::Pass;
use crate::apply::ApplyError;
use crate::names::Component;
use crate::observe::{PodView, Read, Rollout, template_hash};
use crate::plan::{About, Problem, bootstrapped, control_complete, job_condition};

/// What a pass amounts to.
pub(super) struct Facts<'a> {
    pub(super) pass: Pass<'a>,
    pub(super) control: Rollout,
    pub(super) gateway: Rollout,
    /// Control runs what was asked for, and nothing else.
    pub(super) control_done: bool,
    /// The gateway runs what was asked for, and nothing else.
    pub(super) gateway_done: bool,
    pub(super) bootstrapped: bool,
    /// What cannot be overcome without help.
    pub(super) stalled: Vec<Problem>,
    /// What is under way, in its order.
    pub(super) progress: Vec<(Reason, String)>,
}

impl<'a> Facts<'a> {
    pub(super) fn of(pass: Pass<'a>) -> Self {
        let children = pass.applied.children();
        let control = children
            .control
            .as_ref()
            .map(Rollout::of)
            .unwrap_or_default();
        let gateway = children
            .gateway
            .as_ref()
            .map(Rollout::of)
            .unwrap_or_default();
        let spec = &pass.proxy.spec;
        // Without usable Secrets nobody knows the templates to be reached;
        // what is there is then measured against itself.
        let targets = pass
            .plan
            .targets
            .clone()
            .unwrap_or_else(|| crate::plan::Targets {
                control: hash_of(children.control.as_ref()),
                gateway: hash_of(children.gateway.as_ref()),
            });
        let pods = pods(pass);
        let control_done = control_complete(
            children.control.as_ref(),
            pods,
            &targets,
            spec.control.replicas,
        );
        let old_gateways = pods.iter().any(|pod| {
            pod.component == Component::Gateway
                && !pod.terminating
                && pod.template_hash.as_deref() != Some(targets.gateway.as_str())
        });
        let gateway_done = children.gateway.as_ref().and_then(template_hash)
            == Some(targets.gateway.as_str())
            && gateway.desired == spec.proxy.replicas
            && gateway.complete()
            && !old_gateways;
        let mut facts = Self {
            pass,
            control,
            gateway,
            control_done,
            gateway_done,
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

    fn find_stalled(&self, targets: &crate::plan::Targets) -> Vec<Problem> {
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
        for (plane, rollout) in [("control plane", self.control), ("gateway", self.gateway)] {
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
        if let Some(ApplyError::Transient(message)) = self.pass.applied.failure() {
            progress.push((Reason::ApplyRejected, message.clone()));
        }
        if !self.control_done {
            let mut message = format!(
                "control plane: {}",
                figures(self.control, spec.control.replicas)
            );
            if self.installed() && !self.gateway_done {
                message.push_str("; the gateway is held until it is rolled out");
            }
            progress.push((Reason::RollingControlPlane, message));
        }
        if spec.bootstrap.is_some() && !self.bootstrapped {
            progress.push((Reason::Bootstrapping, self.first_login()));
        }
        if !self.gateway_done {
            let message = format!("gateway: {}", figures(self.gateway, spec.proxy.replicas));
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

fn hash_of(deployment: Option<&k8s_openapi::api::apps::v1::Deployment>) -> String {
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
