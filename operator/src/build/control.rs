//! The control plane's Deployment.

use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{Container, ContainerPort};
use kube::ResourceExt as _;

use super::deployment::deployment;
use super::{BuildContext, pod};
use crate::names::{ADMIN_PORT, Component};

/// Builds the control plane. Every replica is active, so a rollout adds a pod
/// before it removes one, and a bad image causes no outage.
#[must_use]
pub fn control(context: BuildContext<'_>) -> Deployment {
    let proxy = context.proxy;
    let spec = &proxy.spec;
    let mut args = vec![
        "--host=0.0.0.0".to_owned(),
        format!("--admin-port={ADMIN_PORT}"),
        format!("--shutdown-delay={}", pod::SHUTDOWN_DELAY),
        format!("--shutdown-grace={}", pod::SHUTDOWN_GRACE),
    ];
    args.extend(pod::log_args(context));
    let resource = format!(
        "{}/{}",
        proxy.namespace().unwrap_or_default(),
        proxy.name_any()
    );
    let container = Container {
        command: Some(vec!["fastllm-control".to_owned()]),
        args: Some(args),
        env: Some(vec![
            pod::from_secret("FASTLLM_DATABASE_URL", &spec.database),
            pod::from_secret("FASTLLM_PROXY_TOKEN", &spec.proxy_token),
            pod::from_secret("FASTLLM_ENCRYPTION_KEY", &spec.encryption_key),
            pod::literal("FASTLLM_OPERATOR_RESOURCE", resource),
        ]),
        ports: Some(vec![ContainerPort {
            name: Some("http".to_owned()),
            container_port: i32::from(ADMIN_PORT),
            protocol: Some("TCP".to_owned()),
            ..ContainerPort::default()
        }]),
        startup_probe: Some(pod::probe("/livez", "http", 1, 120)),
        liveness_probe: Some(pod::probe("/livez", "http", 20, 3)),
        readiness_probe: Some(pod::probe("/readyz", "http", 5, 3)),
        resources: spec.control.resources.clone(),
        ..pod::container(context, Component::Control)
    };
    let template = pod::template(context, Component::Control, Component::Control, container);
    deployment(context, Component::Control, spec.control.replicas, template)
}
