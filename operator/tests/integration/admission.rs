//! The admission rules, and the same rules in `validate`.

use fastllm_crds::{FastllmProxy, validate};
use kube::api::{Api, DynamicObject, Patch, PatchParams, PostParams};
use kube::core::{ApiResource, GroupVersionKind};
use serde_json::{Value, json};

use crate::cluster::TestCluster;

/// A field, an invalid value of it (as JSON), and part of the message.
fn rules() -> Vec<(&'static str, Value, &'static str)> {
    let image = "must be an image reference";
    let secret = "the name of the Secret must have 1 to 253";
    let key = "the key in the Secret must have 1 to 253";
    let account = "must have 1 to 128 bytes";
    let log = "must have 1 to 1024 characters";
    let long = |length: usize| json!("a".repeat(length));
    let pulls = "must contain at most 32 distinct names";
    let many: Vec<_> = (0..33).map(|n| n.to_string()).collect();
    let limits = |limits: Value| json!({"limits": limits});
    let both = |requests: Value, limits: Value| json!({"requests": requests, "limits": limits});
    let control = "/spec/control/resources";
    let gateway = "/spec/proxy/resources";
    vec![
        ("/metadata/name", long(54), "at most 53 characters"),
        ("/metadata/name", json!("1llm"), "must start with a letter"),
        (
            "/metadata/name",
            json!("llm.example"),
            "must start with a letter",
        ),
        ("/spec/image", json!(""), image),
        ("/spec/image", json!("fastllm proxy:1"), image),
        ("/spec/image", json!("fastllm/Proxy:1"), image),
        ("/spec/image", json!("FastLLM/proxy:1"), image),
        ("/spec/image", json!("fastllm/proxy:1\n"), image),
        ("/spec/image", json!("fastllm/proxy@sha256:0"), image),
        ("/spec/image", long(256), image),
        ("/spec/database/name", json!(""), secret),
        ("/spec/database/name", json!("a..b"), secret),
        ("/spec/database/name", json!("a.-b"), secret),
        ("/spec/database/name", json!("db\n"), secret),
        // A name becomes part of a request path and must not change it.
        (
            "/spec/database/name",
            json!("../../other/secrets/x"),
            secret,
        ),
        ("/spec/database/name", json!("db?watch=true"), secret),
        ("/spec/database/name", long(254), secret),
        ("/spec/database/key", json!("a b"), key),
        ("/spec/database/key", json!("."), key),
        ("/spec/database/key", json!("..a"), key),
        ("/spec/database/key", json!("a\n"), key),
        ("/spec/database/key", long(254), key),
        ("/spec/proxyToken/key", json!(""), key),
        (
            "/spec/imagePullSecrets",
            json!(["twice", "twice"]),
            "Duplicate value",
        ),
        ("/spec/imagePullSecrets", json!(["", "other"]), pulls),
        ("/spec/imagePullSecrets", json!(["a..b"]), pulls),
        ("/spec/imagePullSecrets", json!(many), pulls),
        ("/spec/bootstrap/name", json!(""), account),
        ("/spec/bootstrap/name", json!("admin\n"), account),
        ("/spec/bootstrap/name", json!("two\nlines"), account),
        ("/spec/bootstrap/name", json!(" admin"), account),
        ("/spec/bootstrap/name", json!("admin\u{2028}"), account),
        ("/spec/bootstrap/name", long(1000), account),
        ("/spec/bootstrap/name", json!("\u{e4}".repeat(65)), account),
        ("/spec/bootstrap/password/key", json!(""), key),
        (
            "/spec/control/replicas",
            json!(-1),
            "must be between 0 and 10000",
        ),
        (
            "/spec/proxy/replicas",
            json!(-1),
            "must be between 0 and 10000",
        ),
        ("/spec/observability/logLevel", json!(""), log),
        ("/spec/observability/logLevel", json!("info\n"), log),
        ("/spec/observability/logLevel", long(1025), log),
        (
            control,
            limits(json!({"cpu": "-1"})),
            "amounts must be quantities",
        ),
        (
            control,
            limits(json!({"cpu": -1})),
            "amounts must be quantities",
        ),
        (
            control,
            limits(json!({"cpu": "one"})),
            "amounts must be quantities",
        ),
        (
            control,
            limits(json!({"cpus": "1"})),
            "names must be cpu, memory",
        ),
        (
            control,
            limits(json!({"hugepages-2Mi": "2Mi"})),
            "names must be cpu, memory",
        ),
        (
            control,
            limits(json!({"kubernetes.io/x": "1"})),
            "names must be cpu, memory",
        ),
        (
            control,
            limits(json!({"a..b/x": "1"})),
            "names must be cpu, memory",
        ),
        (
            gateway,
            both(json!({"memory": "2Gi"}), json!({"memory": "1Gi"})),
            "requests must not exceed limits",
        ),
        (
            gateway,
            both(json!({"cpu": "1500m"}), json!({"cpu": 1})),
            "requests must not exceed limits",
        ),
        (
            gateway,
            limits(json!({"example.com/device": "500m"})),
            "must be whole numbers",
        ),
        (
            gateway,
            both(
                json!({"example.com/device": 1}),
                json!({"example.com/device": 2}),
            ),
            "requires a limit with the same amount",
        ),
        (
            gateway,
            json!({"requests": {"example.com/device": 1}}),
            "requires a limit with the same amount",
        ),
    ]
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
    for (path, value, message) in rules() {
        let mut bad = good.clone();
        *bad.pointer_mut(path).expect(path) = value.clone();
        let case = format!("{path} {value}");
        let violations = validate(&serde_json::from_value(bad.clone()).unwrap());
        assert_eq!(violations.len(), 1, "{case}: {violations:?}");
        let error = create(&cluster, &bad).await.expect_err(&case).to_string();
        assert!(error.contains(message), "{case}: {error}");
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
