//! The admission rules, and the same rules in `validate`.

use fastllm_crds::{FastllmProxy, validate};
use kube::api::{Api, DynamicObject, Patch, PatchParams, PostParams};
use kube::core::{ApiResource, GroupVersionKind};
use serde_json::{Value, json};

use crate::cluster::TestCluster;

/// A string of 256 letters, as JSON.
const LONG: &str = concat!(
    r#"""#,
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
    r#"""#
);

/// A field, an invalid value of it (as JSON), and part of the API server's message.
const RULES: [(&str, &str, &str); 18] = [
    (
        "/metadata/name",
        r#""aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa""#,
        "at most 53 characters",
    ),
    ("/metadata/name", r#""1llm""#, "must start with a letter"),
    (
        "/metadata/name",
        r#""llm.example""#,
        "must start with a letter",
    ),
    ("/spec/image", r#""""#, "image must not be empty"),
    (
        "/spec/database/name",
        r#""""#,
        "name of the Secret must not be empty",
    ),
    // A name becomes part of a request path and must not change it.
    (
        "/spec/database/name",
        r#""../../other/secrets/x""#,
        "name of the Secret must not be empty and must contain only",
    ),
    (
        "/spec/database/name",
        r#""db?watch=true""#,
        "name of the Secret must not be empty and must contain only",
    ),
    ("/spec/database/name", LONG, "spec.database.name"),
    (
        "/spec/database/key",
        r#""a b""#,
        "key in the Secret must not be empty and must contain only",
    ),
    ("/spec/database/key", LONG, "spec.database.key"),
    (
        "/spec/imagePullSecrets",
        r#"["twice", "twice"]"#,
        "Duplicate value",
    ),
    (
        "/spec/imagePullSecrets",
        r#"["", "other"]"#,
        "spec.imagePullSecrets[0]",
    ),
    (
        "/spec/proxyToken/key",
        r#""""#,
        "key in the Secret must not be empty",
    ),
    (
        "/spec/bootstrap/name",
        r#""""#,
        "bootstrap.name must not be empty",
    ),
    (
        "/spec/bootstrap/password/key",
        r#""""#,
        "key in the Secret must not be empty",
    ),
    (
        "/spec/control/replicas",
        "-1",
        "control.replicas must be between 0 and 10000",
    ),
    (
        "/spec/proxy/replicas",
        "-1",
        "proxy.replicas must be between 0 and 10000",
    ),
    (
        "/spec/observability/logLevel",
        r#""""#,
        "logLevel must not be empty",
    ),
];

#[tokio::test]
async fn an_invalid_field_is_rejected_with_a_clear_message() {
    let cluster = TestCluster::new("rules").await;
    let mut good = serde_json::to_value(cluster.proxy("llm")).unwrap();
    good["spec"]["imagePullSecrets"] = json!(["registry"]);
    for (path, value, message) in RULES {
        let mut bad = good.clone();
        *bad.pointer_mut(path).expect(path) = serde_json::from_str(value).unwrap();
        let violations = validate(&serde_json::from_value(bad.clone()).unwrap());
        assert_eq!(violations.len(), 1, "{path}: {violations:?}");
        let error = create(&cluster, &bad).await.unwrap_err().to_string();
        assert!(error.contains(message), "{path}: {error}");
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
