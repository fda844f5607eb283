//! The part of a Deployment that both planes share.

use k8s_openapi::api::apps::v1::{
    Deployment, DeploymentSpec, DeploymentStrategy, RollingUpdateDeployment,
};
use k8s_openapi::api::core::v1::PodTemplateSpec;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use kube::ResourceExt as _;

use super::{BuildContext, pod};
use crate::names::{Component, INPUT_HASHES, annotate, metadata, selector};
use crate::secrets::input_references;

/// Sets an annotation that restarts the pods when its value changes.
#[must_use]
pub fn restarted(mut deployment: Deployment, key: &str, value: &str) -> Deployment {
    let template = &mut deployment.spec.template;
    annotate(
        template.metadata.get_or_insert_default(),
        key,
        value.to_owned(),
    );
    deployment.spec.template = pod::with_template_hash(std::mem::take(template));
    deployment
}

/// Builds a Deployment that adds a pod before it removes one during a rollout.
pub(super) fn deployment(
    context: BuildContext<'_>,
    component: Component,
    replicas: i32,
    template: PodTemplateSpec,
) -> Deployment {
    let mut meta = metadata(context.proxy, component);
    let hashes: Vec<_> = input_references(context.proxy, component)
        .into_iter()
        .map(|(field, _)| format!("{field}={}", context.inputs.value_hash(field)))
        .collect();
    annotate(&mut meta, INPUT_HASHES, hashes.join(","));
    Deployment {
        metadata: meta,
        spec: DeploymentSpec {
            replicas: Some(replicas),
            revision_history_limit: Some(5),
            selector: LabelSelector {
                match_labels: Some(selector(&context.proxy.name_any(), component)),
                ..LabelSelector::default()
            },
            strategy: Some(DeploymentStrategy {
                type_: Some("RollingUpdate".to_owned()),
                rolling_update: Some(RollingUpdateDeployment {
                    max_surge: Some(IntOrString::Int(1)),
                    max_unavailable: Some(IntOrString::Int(0)),
                }),
            }),
            template: pod::with_template_hash(template),
            ..DeploymentSpec::default()
        },
        ..Deployment::default()
    }
}
