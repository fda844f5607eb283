//! A Deployment around a pod template, for either plane.

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

/// One pod more and none less while it rolls, for either plane.
pub(super) fn deployment(
    wanted: BuildContext<'_>,
    component: Component,
    replicas: i32,
    template: PodTemplateSpec,
) -> Deployment {
    let mut meta = metadata(wanted.proxy, component);
    let hashes: Vec<_> = input_references(wanted.proxy, component)
        .into_iter()
        .map(|(field, _)| format!("{field}={}", wanted.inputs.value_hash(field)))
        .collect();
    annotate(&mut meta, INPUT_HASHES, hashes.join(","));
    Deployment {
        metadata: meta,
        spec: DeploymentSpec {
            replicas: Some(replicas),
            revision_history_limit: Some(5),
            selector: LabelSelector {
                match_labels: Some(selector(&wanted.proxy.name_any(), component)),
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
