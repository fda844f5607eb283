//! The reasons for a rollout.

use std::collections::BTreeMap;
use std::fmt;

use fastllm_crds::{FastllmProxy, SecretKeyRef};
use k8s_openapi::api::apps::v1::Deployment;

use crate::names::{Component, INPUT_HASHES, KEY_RESTORED, RESTART_AT, annotation};
use crate::observe::{image_of, template_hash};
use crate::secrets::input_references;

/// The field of the encryption key.
const ENCRYPTION_KEY: &str = "encryptionKey";

/// A reason why a plane's pods are replaced.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum RolloutReason {
    /// The image changed.
    ImageChanged(String),
    /// A Secret's value or the reference to it changed.
    SecretChanged(SecretKeyRef),
    /// The annotation that requests a restart changed.
    RestartRequested(String),
    /// The encryption key has the former value again, and pods exited for want of it.
    KeyRestored,
    /// Another part of the pod template changed, such as flags or resources.
    TemplateChanged,
}

impl RolloutReason {
    /// The reason without its argument.
    #[must_use]
    pub fn as_str(&self) -> &'static str {
        match self {
            Self::ImageChanged(_) => "ImageChanged",
            Self::SecretChanged(_) => "SecretChanged",
            Self::RestartRequested(_) => "RestartRequested",
            Self::KeyRestored => "EncryptionKeyRestored",
            Self::TemplateChanged => "TemplateChanged",
        }
    }
}

impl fmt::Display for RolloutReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::ImageChanged(image) => write!(f, "ImageChanged({image})"),
            Self::SecretChanged(reference) => write!(f, "SecretChanged({reference})"),
            Self::RestartRequested(value) => write!(f, "RestartRequested({value})"),
            Self::KeyRestored | Self::TemplateChanged => f.write_str(self.as_str()),
        }
    }
}

/// Formats several reasons.
pub(super) fn join(reasons: &[RolloutReason]) -> String {
    let words: Vec<_> = reasons.iter().map(RolloutReason::to_string).collect();
    words.join(",")
}

/// The fields whose values differ between two Deployments of a plane.
fn changed_inputs(live: &Deployment, desired: &Deployment) -> Vec<String> {
    let (live, desired) = (input_hashes(live), input_hashes(desired));
    let changed = desired
        .into_iter()
        .filter(|(field, hash)| live.get(field).is_some_and(|live| live != hash));
    changed.map(|(field, _)| field.to_owned()).collect()
}

fn input_hashes(deployment: &Deployment) -> BTreeMap<&str, &str> {
    let hashes = annotation(&deployment.metadata, INPUT_HASHES).unwrap_or_default();
    hashes
        .split(',')
        .filter_map(|pair| pair.split_once('='))
        .collect()
}

/// The hash of the encryption key that a control plane's Deployment was applied with.
#[must_use]
pub fn encryption_key_hash(control: &Deployment) -> Option<&str> {
    input_hashes(control).remove(ENCRYPTION_KEY)
}

/// The last restart that was requested of a Deployment.
pub(super) fn restart_of(deployment: &Deployment) -> Option<&str> {
    template_annotation(deployment, RESTART_AT)
}

/// The value of an annotation of a Deployment's pod template.
pub(super) fn template_annotation<'a>(deployment: &'a Deployment, key: &str) -> Option<&'a str> {
    annotation(deployment.spec.template.metadata.as_ref()?, key)
}

/// The reasons why applying `desired` replaces the pods of `live`; empty if it does not.
#[must_use]
pub fn rollout_reasons(
    proxy: &FastllmProxy,
    live: &Deployment,
    desired: &Deployment,
    component: Component,
) -> Vec<RolloutReason> {
    if template_hash(live) == template_hash(desired) {
        return Vec::new();
    }
    let mut reasons = Vec::new();
    let image = image_of(desired, component);
    if image_of(live, component) != image {
        reasons.push(RolloutReason::ImageChanged(
            image.unwrap_or_default().to_owned(),
        ));
    }
    let changed = changed_inputs(live, desired);
    for (field, reference) in input_references(proxy, component) {
        if changed.iter().any(|c| c == field) || !reads(live, component, reference) {
            reasons.push(RolloutReason::SecretChanged(reference.clone()));
        }
    }
    let restart = restart_of(desired).filter(|restart| restart_of(live) != Some(restart));
    reasons.extend(restart.map(|value| RolloutReason::RestartRequested(value.to_owned())));
    let recovery = template_annotation(desired, KEY_RESTORED);
    if recovery.is_some() && recovery != template_annotation(live, KEY_RESTORED) {
        reasons.push(RolloutReason::KeyRestored);
    }
    if reasons.is_empty() {
        reasons.push(RolloutReason::TemplateChanged);
    }
    reasons
}

/// Whether a Deployment's container reads a key of a Secret.
fn reads(deployment: &Deployment, component: Component, reference: &SecretKeyRef) -> bool {
    let pod = deployment.spec.template.spec.as_ref();
    let container = pod.and_then(|p| {
        p.containers
            .iter()
            .find(|c| c.name == component.container())
    });
    let variables = container.and_then(|c| c.env.as_deref()).unwrap_or_default();
    variables.iter().any(|variable| {
        let source = variable
            .value_from
            .as_ref()
            .and_then(|s| s.secret_key_ref.as_ref());
        source.is_some_and(|s| s.name == reference.name && s.key == reference.key)
    })
}
