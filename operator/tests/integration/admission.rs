//! The admission rules, and the same rules in `validate`.

use fastllm_crds::{FastllmProxy, validate};
use kube::api::{Api, DynamicObject, Patch, PatchParams, PostParams};
use kube::core::{ApiResource, GroupVersionKind};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::cluster::TestCluster;

/// An invalid value of a field.
#[derive(Deserialize)]
struct Invalid {
    /// JSON pointer of the field.
    field: String,
    value: Value,
    /// Part of the API server's message.
    message: String,
}

fn invalid_values() -> Vec<Invalid> {
    let long = |field: &str, length: usize, message: &str| Invalid {
        field: field.to_owned(),
        value: json!("a".repeat(length)),
        message: message.to_owned(),
    };
    let mut all: Vec<Invalid> =
        serde_json::from_str(include_str!("admission/invalid.json")).unwrap();
    all.extend([
        long("/metadata/name", 54, "at most 53 characters"),
        long("/spec/image", 256, "at most 255 characters"),
        long("/spec/database/name", 254, "1 to 253 characters"),
        long("/spec/database/key", 254, "1 to 253 characters"),
        long("/spec/bootstrap/name", 1000, "1 to 128 bytes"),
        long("/spec/observability/logLevel", 1025, "1 to 1024 characters"),
    ]);
    all
}

/// A field and a valid value of it.
fn valid_values() -> Vec<(&'static str, Value)> {
    let digest = format!("localhost:5000/a/b-c_d:V1.0@sha256:{}", "0a".repeat(32));
    vec![
        ("/spec/image", json!(digest)),
        ("/spec/image", json!("Registry.Example.com/a__b")),
        ("/spec/database/name", json!("a.b-c.0")),
        ("/spec/database/key", json!(".a_B-1")),
        ("/spec/bootstrap/name", json!("\u{c4}dmin of 'all' $(X)")),
        (
            "/spec/observability/logLevel",
            json!("info,fastllm_gateway[{a=\"b c\"}]=debug"),
        ),
        (
            "/spec/control/resources",
            json!({
                "requests": {"cpu": "1.5", "memory": "1e9", "example.com/device": 1},
                "limits": {"cpu": 2, "memory": "1Gi", "ephemeral-storage": 0, "example.com/device": 1},
            }),
        ),
        (
            "/spec/proxy/resources",
            json!({"requests": {"cpu": "100m"}}),
        ),
    ]
}

#[tokio::test]
async fn an_invalid_field_is_rejected_with_a_clear_message() {
    let cluster = TestCluster::new("rules").await;
    let mut good = serde_json::to_value(cluster.proxy("llm")).unwrap();
    good["spec"]["imagePullSecrets"] = json!(["registry"]);
    good["spec"]["control"]["resources"] = json!({});
    good["spec"]["proxy"]["resources"] = json!({});
    for invalid in invalid_values() {
        let Invalid {
            field,
            value,
            message,
        } = invalid;
        let case = format!("{field} {value}");
        let mut bad = good.clone();
        *bad.pointer_mut(&field).expect(&field) = value;
        let violations = validate(&serde_json::from_value(bad.clone()).unwrap());
        assert_eq!(violations.len(), 1, "{case}: {violations:?}");
        let error = create(&cluster, &bad).await.expect_err(&case).to_string();
        assert!(error.contains(&message), "{case}: {error}");
        assert!(!error.contains("<nil>"), "{case}: {error}");
    }
    for (index, (path, value)) in valid_values().into_iter().enumerate() {
        let mut other = good.clone();
        *other.pointer_mut(path).expect(path) = value;
        other["metadata"]["name"] = json!(format!("valid-{index}"));
        assert_eq!(
            validate(&serde_json::from_value(other.clone()).unwrap()),
            []
        );
        create(&cluster, &other).await.unwrap();
    }
    let enums = [
        ("/spec/imagePullPolicy", "Sometimes"),
        ("/spec/observability/logFormat", "xml"),
    ];
    for (path, value) in enums {
        let mut bad = good.clone();
        *bad.pointer_mut(path).expect(path) = json!(value);
        let error = create(&cluster, &bad).await.unwrap_err().to_string();
        assert!(error.contains("Unsupported value"), "{path}: {error}");
    }
    let mut longest = good.clone();
    longest["metadata"]["name"] = json!("a".repeat(53));
    create(&cluster, &longest).await.unwrap();
    assert_eq!(validate(&serde_json::from_value(longest).unwrap()), []);
}

async fn create(cluster: &TestCluster, object: &Value) -> kube::Result<DynamicObject> {
    let kind = GroupVersionKind::gvk("fastllm.io", "v1alpha1", "FastllmProxy");
    let resource = ApiResource::from_gvk_with_plural(&kind, "fastllmproxies");
    let api: Api<DynamicObject> =
        Api::namespaced_with(cluster.client.clone(), &cluster.namespace, &resource);
    api.create(
        &PostParams::default(),
        &serde_json::from_value(object.clone()).unwrap(),
    )
    .await
}

#[tokio::test]
async fn a_number_out_of_range_is_rejected() {
    let cluster = TestCluster::new("numbers").await;
    let mut bad = serde_json::to_value(cluster.proxy("llm")).unwrap();
    bad["spec"]["proxy"]["replicas"] = json!(99_999_999_999_i64);
    let error = create(&cluster, &bad).await.unwrap_err().to_string();
    assert!(error.contains("replicas"), "{error}");
}

#[tokio::test]
async fn the_reference_to_the_encryption_key_is_immutable() {
    let cluster = TestCluster::new("immutable").await;
    cluster.create("llm").await;
    let api: Api<FastllmProxy> = cluster.api();
    let patch = Patch::Merge(json!({"spec": {"encryptionKey": {"name": "other"}}}));
    let error = api
        .patch("llm", &PatchParams::default(), &patch)
        .await
        .unwrap_err();
    assert!(
        error.to_string().contains("encryptionKey is immutable"),
        "{error}"
    );
}

#[tokio::test]
async fn omitted_fields_have_defaults() {
    let cluster = TestCluster::new("defaults").await;
    let reference = json!({"name": "any", "key": "any"});
    let object = json!({
        "apiVersion": "fastllm.io/v1alpha1", "kind": "FastllmProxy", "metadata": {"name": "llm"},
        "spec": {"database": reference, "proxyToken": reference, "encryptionKey": reference},
    });
    let created = create(&cluster, &object).await.unwrap();
    let created: FastllmProxy =
        serde_json::from_value(serde_json::to_value(created).unwrap()).unwrap();
    assert_eq!(created.spec.image, fastllm_crds::default_image());
    assert_eq!(
        (created.spec.control.replicas, created.spec.proxy.replicas),
        (1, 2)
    );
    assert_eq!(created.status.unwrap().observed_generation, Some(-1));
}
