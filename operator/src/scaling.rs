//! Autoscalers of the planes' Deployments.
//!
//! While a `HorizontalPodAutoscaler` scales a Deployment, the operator does not write its
//! number of pods.

use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::autoscaling::v2::HorizontalPodAutoscaler;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{FieldsV1, ManagedFieldsEntry, ObjectMeta};
use kube::ResourceExt as _;
use kube::runtime::reflector::Store;
use serde_json::json;

use crate::names::FIELD_MANAGER;

/// The name of the autoscaler of a Deployment. The first in alphabetical order counts.
#[must_use]
pub fn autoscaler_of(
    autoscalers: &Store<HorizontalPodAutoscaler>,
    namespace: &str,
    deployment: &str,
) -> Option<String> {
    let scales = |autoscaler: &HorizontalPodAutoscaler| {
        autoscaler.metadata.namespace.as_deref() == Some(namespace)
            && autoscaler.metadata.deletion_timestamp.is_none()
            && target_of(autoscaler) == Some(deployment)
    };
    let found = autoscalers.state_filter(scales);
    found.iter().map(|autoscaler| autoscaler.name_any()).min()
}

/// The name of the Deployment that an autoscaler scales.
#[must_use]
pub fn target_of(autoscaler: &HorizontalPodAutoscaler) -> Option<&str> {
    let target = &autoscaler.spec.scale_target_ref;
    (target.kind == "Deployment").then_some(target.name.as_str())
}

/// Number of pods to write; `None` leaves it to its manager.
///
/// As long as only the operator manages the number, the live one is written: without
/// a manager, the API server would set it to 1. Autoscalers do not scale a Deployment
/// that has no pods, so the operator starts one that it stopped.
#[must_use]
pub fn replicas_to_apply(spec: i32, live: &Deployment, autoscaled: bool) -> Option<i32> {
    let current = live.spec.replicas.unwrap_or(1);
    if !autoscaled {
        Some(spec)
    } else if is_scaled_by_another(&live.metadata) {
        None
    } else {
        Some(if current == 0 { spec } else { current })
    }
}

/// Number of pods that a Deployment should have.
#[must_use]
pub fn expected_replicas(spec: i32, live: Option<&Deployment>, autoscaled: bool) -> i32 {
    match live {
        None => spec,
        Some(live) => replicas_to_apply(spec, live, autoscaled)
            .or(live.spec.replicas)
            .unwrap_or(1),
    }
}

/// Removes the managed fields except the managers of `spec.replicas`. The others are
/// unused, and make up half of an object.
pub fn retain_managers_of_replicas(meta: &mut ObjectMeta) {
    let Some(mut entries) = meta.managed_fields.take() else {
        return;
    };
    entries.retain(manages_replicas);
    for entry in &mut entries {
        entry.fields_v1 = Some(FieldsV1(json!({"f:spec": {"f:replicas": {}}})));
    }
    meta.managed_fields = (!entries.is_empty()).then_some(entries);
}

fn manages_replicas(entry: &ManagedFieldsEntry) -> bool {
    let fields = entry.fields_v1.as_ref();
    fields.is_some_and(|fields| fields.0.pointer("/f:spec/f:replicas").is_some())
}

fn is_scaled_by_another(meta: &ObjectMeta) -> bool {
    let mut managers = meta.managed_fields.iter().flatten();
    managers.any(|entry| manages_replicas(entry) && entry.manager.as_deref() != Some(FIELD_MANAGER))
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::apps::v1::Deployment;
    use serde_json::{Value, json};

    use super::{expected_replicas, replicas_to_apply, retain_managers_of_replicas};

    fn deployment(replicas: i32, managers: &Value) -> Deployment {
        serde_json::from_value(json!({
            "metadata": {"name": "llm-proxy", "managedFields": managers},
            "spec": {"replicas": replicas, "selector": {}, "template": {}},
        }))
        .unwrap()
    }

    fn manager(name: &str, fields: &Value) -> Value {
        json!({"manager": name, "operation": "Update", "fieldsV1": fields})
    }

    fn of_replicas() -> Value {
        json!({"f:spec": {"f:replicas": {}, "f:template": {}}})
    }

    #[test]
    fn an_autoscaler_decides_once_it_has_scaled() {
        let ours = json!([manager("fastllm-operator", &of_replicas())]);
        let theirs = json!([manager("kube-controller-manager", &of_replicas())]);
        for (live, managers, autoscaled, expected) in [
            (5, &ours, false, Some(3)),
            (5, &theirs, false, Some(3)),
            (5, &ours, true, Some(5)),
            (5, &theirs, true, None),
            // Stopped by the operator, or by an autoscaler that scales to zero.
            (0, &ours, true, Some(3)),
            (0, &theirs, true, None),
            (0, &ours, false, Some(3)),
        ] {
            let live = deployment(live, managers);
            let found = replicas_to_apply(3, &live, autoscaled);
            assert_eq!(found, expected, "{live:?} {autoscaled}");
        }
        let scaled = deployment(5, &theirs);
        assert_eq!(expected_replicas(3, Some(&scaled), true), 5);
        assert_eq!(expected_replicas(3, Some(&scaled), false), 3);
        assert_eq!(expected_replicas(3, None, true), 3);
    }

    #[test]
    fn only_managers_of_replicas_are_retained() {
        let other = json!({"f:metadata": {}, "f:spec": {"f:paused": {}}});
        let managers = json!([manager("kubectl", &other), manager("keda", &of_replicas())]);
        let mut live = deployment(2, &managers);
        retain_managers_of_replicas(&mut live.metadata);
        let expected = json!([manager("keda", &json!({"f:spec": {"f:replicas": {}}}))]);
        assert_eq!(live, deployment(2, &expected));
        let mut live = deployment(2, &json!([manager("kubectl", &other)]));
        retain_managers_of_replicas(&mut live.metadata);
        assert_eq!(live.metadata.managed_fields, None);
    }
}
