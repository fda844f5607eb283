//! Rules at admission, and the same rules in `validate`.

use fastllm_crds::{FastllmProxy, validate};
use kube::api::{Api, DynamicObject, Patch, PatchParams, PostParams};
use kube::core::{ApiResource, GroupVersionKind};
use serde_json::{Value, json};

use crate::cluster::TestCluster;

/// 256 letters, as JSON.
const LONG: &str = concat!(
    r#"""#,
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
    r#"""#
);

/// A field, a value that it may not have (as JSON), and part of what the API server says.
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
    // A name that is part of a path must not lead elsewhere, or ask for more.
    (
        "/spec/database/name",
        r#""../../other/secrets/x""#,
        "name of the Secret must not be empty, and hold only",
    ),
    (
        "/spec/database/name",
        r#""db?watch=true""#,
        "name of the Secret must not be empty, and hold only",
    ),
    ("/spec/database/name", LONG, "spec.database.name"),
    (
        "/spec/database/key",
        r#""a b""#,
        "key inside the Secret must not be empty, and hold only",
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
        "key inside the Secret must not be empty",
    ),
    (
        "/spec/bootstrap/name",
        r#""""#,
        "first login must not be empty",
    ),
    (
        "/spec/bootstrap/password/key",
        r#""""#,
        "key inside the Secret must not be empty",
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

// OP-47
#[tokio::test]
async fn what_breaks_a_rule_is_refused_with_a_readable_message() {
    let cluster = TestCluster::new("rules").await;
    let mut good = serde_json::to_value(cluster.proxy("llm")).unwrap();
    good["spec"]["imagePullSecrets"] = json!(["registry"]);
    for (path, value, message) in RULES {
        let mut bad = good.clone();
        *bad.pointer_mut(path).expect(path) = serde_json::from_str(value).unwrap();
        let violations = validate(&serde_json::from_value(bad.clone()).unwrap());
        assert_eq!(violations.len(), 1, "{path}: {violations:?}");
        let refused = create(&cluster, &bad).await.unwrap_err().to_string();
        assert!(refused.contains(message), "{path}: {refused}");
    }
    let words = [
        ("/spec/imagePullPolicy", "Sometimes"),
        ("/spec/observability/logFormat", "xml"),
    ];
    for (path, word) in words {
        let mut bad = good.clone();
        *bad.pointer_mut(path).expect(path) = json!(word);
        let refused = create(&cluster, &bad).await.unwrap_err().to_string();
        assert!(refused.contains("Unsupported value"), "{path}: {refused}");
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

// OP-48: a number that the operator could not read is not stored.
#[tokio::test]
async fn a_number_that_does_not_fit_is_refused() {
    let cluster = TestCluster::new("numbers").await;
    let mut bad = serde_json::to_value(cluster.proxy("llm")).unwrap();
    bad["spec"]["proxy"]["replicas"] = json!(99_999_999_999_i64);
    let refused = create(&cluster, &bad).await.unwrap_err().to_string();
    assert!(refused.contains("replicas"), "{refused}");
}

#[tokio::test]
async fn the_reference_to_the_encryption_key_cannot_change() {
    let cluster = TestCluster::new("immutable").await;
    cluster.create("llm").await;
    let api: Api<FastllmProxy> = cluster.api();
    let patch = Patch::Merge(json!({"spec": {"encryptionKey": {"name": "other"}}}));
    let refused = api
        .patch("llm", &PatchParams::default(), &patch)
        .await
        .unwrap_err();
    assert!(
        refused.to_string().contains("encryptionKey is immutable"),
        "{refused}"
    );
}

#[tokio::test]
async fn what_is_not_said_has_its_default() {
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
