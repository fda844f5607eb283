//! The gateway's Deployment.

use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{
    Container, ContainerPort, EmptyDirVolumeSource, TopologySpreadConstraint, Volume, VolumeMount,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use kube::ResourceExt as _;

use super::deployment::deployment;
use super::{BuildContext, pod};
use crate::names::{ADMIN_PORT, Component, PUBLIC_PORT, STATUS_PORT, selector};

/// Where the gateway stores the last snapshot.
const CACHE_DIR: &str = "/var/lib/fastllm";

/// Builds the gateway. Its pods are spread over nodes, and a rollout adds a pod
/// before it removes one.
#[must_use]
pub fn gateway(context: BuildContext<'_>) -> Deployment {
    let spec = &context.proxy.spec;
    let container = Container {
        resources: spec.proxy.resources.clone(),
        ..container(context)
    };
    let mut template = pod::template(context, Component::Gateway, Component::Gateway, container);
    if let Some(pod) = template.spec.as_mut() {
        pod.topology_spread_constraints = Some(vec![TopologySpreadConstraint {
            max_skew: 1,
            topology_key: "kubernetes.io/hostname".to_owned(),
            when_unsatisfiable: "ScheduleAnyway".to_owned(),
            label_selector: Some(LabelSelector {
                match_labels: Some(selector(&context.proxy.name_any(), Component::Gateway)),
                ..LabelSelector::default()
            }),
            ..TopologySpreadConstraint::default()
        }]);
        pod.volumes = Some(vec![Volume {
            name: "snapshot".to_owned(),
            empty_dir: Some(EmptyDirVolumeSource {
                size_limit: Some(Quantity("256Mi".to_owned())),
                ..EmptyDirVolumeSource::default()
            }),
            ..Volume::default()
        }]);
    }
    deployment(context, Component::Gateway, spec.proxy.replicas, template)
}

fn container(context: BuildContext<'_>) -> Container {
    let proxy = context.proxy;
    let control_url = format!(
        "http://{}.{}.svc:{ADMIN_PORT}/snapshot",
        Component::Control.object_name(&proxy.name_any()),
        proxy.namespace().unwrap_or_default(),
    );
    let mut args = vec![
        "--host=0.0.0.0".to_owned(),
        format!("--port={PUBLIC_PORT}"),
        format!("--status-port={STATUS_PORT}"),
        format!("--shutdown-delay={}", pod::SHUTDOWN_DELAY),
        format!("--shutdown-grace={}", pod::SHUTDOWN_GRACE),
    ];
    args.extend(pod::log_args(context));
    let port = |name: &str, number: u16| ContainerPort {
        name: Some(name.to_owned()),
        container_port: i32::from(number),
        protocol: Some("TCP".to_owned()),
        ..ContainerPort::default()
    };
    Container {
        command: Some(vec!["fastllm-gateway".to_owned()]),
        args: Some(args),
        env: Some(vec![
            pod::literal("FASTLLM_CONTROL_URL", control_url),
            pod::from_secret("FASTLLM_PROXY_TOKEN", &proxy.spec.proxy_token),
        ]),
        ports: Some(vec![port("http", PUBLIC_PORT), port("status", STATUS_PORT)]),
        startup_probe: Some(pod::probe("/livez", "status", 1, 60)),
        liveness_probe: Some(pod::probe("/livez", "status", 20, 3)),
        readiness_probe: Some(pod::probe("/readyz", "status", 5, 3)),
        volume_mounts: Some(vec![VolumeMount {
            name: "snapshot".to_owned(),
            mount_path: CACHE_DIR.to_owned(),
            ..VolumeMount::default()
        }]),
        ..pod::container(context, Component::Gateway)
    }
}
