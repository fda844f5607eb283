//! The part of a pod that all components share: identity, hardening, hashes.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{
    Capabilities, Container, EnvVar, EnvVarSource, HTTPGetAction, LocalObjectReference,
    PodSecurityContext, PodSpec, PodTemplateSpec, Probe, SeccompProfile, SecretKeySelector,
    SecurityContext,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use kube::ResourceExt as _;

use super::BuildContext;
use crate::hash::{json_hash, to_json};
use crate::names::{CONFIG_HASH, Component, TEMPLATE_HASH, annotate, labels};

/// User and group ID of every container.
const NOBODY: i64 = 65532;
/// Seconds between SIGTERM and SIGKILL: 5 for the removal of the endpoints, 25 for
/// requests in flight, and 10 in reserve.
const TERMINATION_GRACE: i64 = 40;

/// Seconds that a plane accepts connections after it becomes unready.
pub(super) const SHUTDOWN_DELAY: u32 = 5;
/// Maximum seconds that requests in flight may take during shutdown.
pub(super) const SHUTDOWN_GRACE: u32 = 25;

/// Escapes an argument, in which the kubelet would otherwise replace `$(NAME)` by
/// the value of a variable, such as one from a Secret.
pub(super) fn argument(text: &str) -> String {
    text.replace('$', "$$")
}

/// An environment variable with a literal value.
pub(super) fn literal(name: &str, value: String) -> EnvVar {
    EnvVar {
        name: name.to_owned(),
        value: Some(value),
        ..EnvVar::default()
    }
}

/// An environment variable with a value from a Secret.
pub(super) fn from_secret(name: &str, reference: &fastllm_crds::SecretKeyRef) -> EnvVar {
    EnvVar {
        name: name.to_owned(),
        value_from: Some(EnvVarSource {
            secret_key_ref: Some(SecretKeySelector {
                name: reference.name.clone(),
                key: reference.key.clone(),
                optional: Some(false),
            }),
            ..EnvVarSource::default()
        }),
        ..EnvVar::default()
    }
}

/// The logging flags of both planes.
pub(super) fn log_args(context: BuildContext<'_>) -> [String; 2] {
    let logs = &context.proxy.spec.observability;
    [
        format!("--log={}", argument(&logs.log_level)),
        format!("--log-format={}", logs.log_format.as_str()),
    ]
}

/// An HTTP probe of a named port.
pub(super) fn probe(path: &str, port: &str, period: i32, failures: i32) -> Probe {
    Probe {
        http_get: Some(HTTPGetAction {
            path: Some(path.to_owned()),
            port: IntOrString::String(port.to_owned()),
            ..HTTPGetAction::default()
        }),
        period_seconds: Some(period),
        failure_threshold: Some(failures),
        timeout_seconds: Some(2),
        ..Probe::default()
    }
}

/// A container with the image of FastLLM Proxy.
pub(super) fn container(context: BuildContext<'_>, component: Component) -> Container {
    let spec = &context.proxy.spec;
    Container {
        name: component.container().to_owned(),
        image: Some(spec.image.clone()),
        image_pull_policy: Some(spec.image_pull_policy.as_str().to_owned()),
        // The status of the resource reports the error that ended the process.
        termination_message_policy: Some("FallbackToLogsOnError".to_owned()),
        security_context: Some(SecurityContext {
            allow_privilege_escalation: Some(false),
            read_only_root_filesystem: Some(true),
            capabilities: Some(Capabilities {
                drop: Some(vec!["ALL".to_owned()]),
                ..Capabilities::default()
            }),
            ..SecurityContext::default()
        }),
        ..Container::default()
    }
}

/// A pod template for a container. Service links are disabled: they would set
/// `FASTLLM_…` variables, which the planes read as flags.
pub(super) fn template(
    context: BuildContext<'_>,
    component: Component,
    account: Component,
    container: Container,
) -> PodTemplateSpec {
    let name = context.proxy.name_any();
    let secrets = &context.proxy.spec.image_pull_secrets;
    let pull_secrets = secrets.iter().map(|secret| LocalObjectReference {
        name: secret.clone(),
    });
    PodTemplateSpec {
        metadata: Some(ObjectMeta {
            labels: Some(labels(&name, component)),
            annotations: Some(BTreeMap::from([(
                CONFIG_HASH.to_owned(),
                context.inputs.plane_hash(context.proxy, component),
            )])),
            ..ObjectMeta::default()
        }),
        spec: Some(PodSpec {
            service_account_name: Some(account.object_name(&name)),
            automount_service_account_token: Some(false),
            enable_service_links: Some(false),
            termination_grace_period_seconds: Some(TERMINATION_GRACE),
            image_pull_secrets: (!secrets.is_empty()).then(|| pull_secrets.collect()),
            security_context: Some(PodSecurityContext {
                run_as_non_root: Some(true),
                run_as_user: Some(NOBODY),
                run_as_group: Some(NOBODY),
                fs_group: Some(NOBODY),
                seccomp_profile: Some(SeccompProfile {
                    type_: "RuntimeDefault".to_owned(),
                    ..SeccompProfile::default()
                }),
                ..PodSecurityContext::default()
            }),
            containers: vec![container],
            ..PodSpec::default()
        }),
    }
}

/// Annotates the template with its own hash. Call this last.
pub(super) fn with_template_hash(mut template: PodTemplateSpec) -> PodTemplateSpec {
    let meta = template.metadata.get_or_insert_default();
    if let Some(annotations) = meta.annotations.as_mut() {
        annotations.remove(TEMPLATE_HASH);
    }
    let hash = json_hash(&to_json(&template));
    annotate(
        template.metadata.get_or_insert_default(),
        TEMPLATE_HASH,
        hash,
    );
    template
}
