//! The network address of a plane.

use k8s_openapi::api::core::v1::{Service, ServicePort, ServiceSpec};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use kube::ResourceExt as _;

use super::BuildContext;
use crate::names::{Component, metadata, selector};

/// Builds the Service of a plane, with a single port.
#[must_use]
pub fn service(context: BuildContext<'_>, component: Component, port: u16) -> Service {
    Service {
        metadata: metadata(context.proxy, component),
        spec: Some(ServiceSpec {
            type_: Some("ClusterIP".to_owned()),
            selector: Some(selector(&context.proxy.name_any(), component)),
            ports: Some(vec![ServicePort {
                name: Some("http".to_owned()),
                port: i32::from(port),
                protocol: Some("TCP".to_owned()),
                target_port: Some(IntOrString::String("http".to_owned())),
                ..ServicePort::default()
            }]),
            ..ServiceSpec::default()
        }),
        ..Service::default()
    }
}
