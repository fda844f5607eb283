//! What belongs to the operator: fields, conditions and objects.

use std::collections::BTreeMap;

use fastllm_crds::{ConditionType, FastllmProxy};
use fastllm_operator::plan::{MergeStrategy, merge_strategy};
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{Service, ServiceAccount};
use kube::api::{Api, DeleteParams, Patch, PatchParams, PropagationPolicy};
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::cluster::{REACTION, TestCluster, is, poll};

/// The merge strategies of the fields of a manifest, by the API server's schema.
struct SchemaWalk<'a> {
    schemas: &'a Value,
    found: BTreeMap<String, String>,
}

impl SchemaWalk<'_> {
    fn resolve<'s>(&'s self, schema: &'s Value) -> &'s Value {
        let reference = schema["$ref"]
            .as_str()
            .or_else(|| schema["allOf"][0]["$ref"].as_str());
        match reference.and_then(|r| r.rsplit_once('/')) {
            Some((_, name)) => &self.schemas[name],
            None => schema,
        }
    }

    fn visit(&mut self, field: &str, schema: &Value, manifest: &Value) {
        let resolved = self.resolve(schema).clone();
        let extension = |name: &str| match &schema[name] {
            Value::Null => resolved[name].clone(),
            own => own.clone(),
        };
        match manifest {
            Value::Object(members) => {
                if extension("x-kubernetes-map-type") == "atomic" {
                    self.found.insert(field.to_owned(), "atomic".to_owned());
                }
                for (name, member) in members {
                    let schema = match &resolved["properties"][name] {
                        Value::Null => &resolved["additionalProperties"],
                        property => property,
                    };
                    self.visit(name, schema, member);
                }
            }
            Value::Array(items) => {
                let strategy = match extension("x-kubernetes-list-type").as_str() {
                    Some("map") => extension("x-kubernetes-list-map-keys").to_string(),
                    _ => "list".to_owned(),
                };
                self.found.insert(field.to_owned(), strategy);
                for item in items {
                    self.visit("item", &resolved["items"], item);
                }
            }
            _ => {}
        }
    }
}

/// The merge strategies of the fields of the manifest in a snapshot.
async fn strategies(
    cluster: &TestCluster,
    group: &str,
    schema: &str,
    snapshot: &str,
) -> BTreeMap<String, String> {
    let path = format!("/openapi/v3/{group}");
    let request = http::Request::get(path).body(Vec::new()).unwrap();
    let document: Value = cluster.client.request(request).await.unwrap();
    let path = format!(
        "{}/src/build/snapshots/fastllm_operator__build__tests__{snapshot}.snap",
        env!("CARGO_MANIFEST_DIR")
    );
    let snapshot = std::fs::read_to_string(path).unwrap();
    let (_, manifest) = snapshot
        .trim_start_matches("---")
        .split_once("\n---\n")
        .unwrap();
    let manifest: Value = serde_yaml_ng::from_str(manifest).unwrap();
    let schemas = &document["components"]["schemas"];
    let mut walk = SchemaWalk {
        schemas,
        found: BTreeMap::new(),
    };
    walk.visit("", &schemas[schema], &manifest);
    walk.found
}

#[tokio::test]
async fn the_merge_strategies_are_those_of_the_api_server() {
    let cluster = TestCluster::new("schemas").await;
    let mut found = BTreeMap::new();
    let (deployment, job) = ("io.k8s.api.apps.v1.Deployment", "io.k8s.api.batch.v1.Job");
    let (service, account) = (
        "io.k8s.api.core.v1.Service",
        "io.k8s.api.core.v1.ServiceAccount",
    );
    for (group, schema, snapshot) in [
        ("apis/apps/v1", deployment, "deployment_llm-proxy"),
        ("apis/apps/v1", deployment, "deployment_llm-control"),
        ("apis/batch/v1", job, "job_llm-bootstrap"),
        ("api/v1", service, "service_llm-proxy"),
        ("api/v1", account, "serviceaccount_llm-proxy"),
    ] {
        found.extend(strategies(&cluster, group, schema, snapshot).await);
    }
    assert!(found.len() > 10, "{found:?}");
    for (field, strategy) in &found {
        let ours = merge_strategy(field);
        let same = match (strategy.as_str(), ours) {
            // An item that consists of its key, or is written as a whole.
            ("atomic", MergeStrategy::Members) => field == "item",
            ("atomic", strategy) => strategy == MergeStrategy::Atomic,
            ("list", strategy) => strategy == MergeStrategy::Members,
            (keys, MergeStrategy::Items(ours)) => {
                let keys: Vec<String> = serde_json::from_str(keys).unwrap();
                keys.iter().all(|key| ours.contains(&key.as_str()))
            }
            _ => false,
        };
        assert!(same, "{field}: {strategy}, not {ours:?}");
    }
}

#[tokio::test]
async fn a_condition_of_another_controller_is_kept_and_causes_no_write() {
    let cluster = TestCluster::new("conditions").await;
    let _operator = cluster.operator().await;
    cluster.install("llm").await;
    let theirs = json!({
        "apiVersion": "fastllm.io/v1alpha1", "kind": "FastllmProxy",
        "metadata": {"name": "llm"},
        "status": {"conditions": [{
            "type": "Audited", "status": "True", "reason": "Audit", "message": "",
            "lastTransitionTime": "2026-01-02T03:04:05Z",
        }]},
    });
    let api: Api<FastllmProxy> = cluster.api();
    let auditor = PatchParams::apply("auditor");
    api.patch_status("llm", &auditor, &Patch::Apply(&theirs))
        .await
        .unwrap();
    let before = cluster.writes();
    for round in ["one", "two"] {
        cluster.annotate_secret("db", round).await;
        cluster.sentinel(round).await;
    }
    let writes = cluster.writes().into_iter();
    let others: Vec<_> = writes
        .filter(|w| !w.contains(" one") && !w.contains(" two"))
        .collect();
    assert_eq!(others, before);
    cluster
        .edit("llm", json!({"image": "fastllm/fastllm-proxy:2"}))
        .await;
    let status = cluster
        .until("llm", |s| s.observed_generation == Some(2))
        .await;
    assert!(
        status.conditions.iter().any(|c| c.type_ == "Audited"),
        "{status:#?}"
    );
}

#[tokio::test]
async fn an_additional_label_in_a_selector_is_removed() {
    let cluster = TestCluster::new("selector").await;
    let _operator = cluster.operator().await;
    cluster.install("llm").await;
    let services: Api<Service> = cluster.api();
    let patch = Patch::Merge(json!({"spec": {"selector": {"no": "endpoints"}}}));
    let edited = services
        .patch("llm-proxy", &PatchParams::default(), &patch)
        .await
        .unwrap();
    assert_eq!(edited.spec.unwrap().selector.unwrap().len(), 4);
    let deadline = Instant::now() + REACTION;
    while services
        .get("llm-proxy")
        .await
        .unwrap()
        .spec
        .unwrap()
        .selector
        .unwrap()
        .len()
        != 3
    {
        assert!(Instant::now() < deadline, "the selector was not restored");
        poll().await;
    }
}

async fn adopt<K>(cluster: &TestCluster, name: &str)
where
    K: kube::Resource<DynamicType = (), Scope = k8s_openapi::NamespaceResourceScope>
        + Clone
        + std::fmt::Debug
        + serde::de::DeserializeOwned,
{
    let patch = Patch::Merge(json!({"metadata": {"annotations": {"fastllm.io/adopt": "true"}}}));
    let api: Api<K> = cluster.api();
    api.patch(name, &PatchParams::default(), &patch)
        .await
        .unwrap();
}

/// Removes the owner references, as the garbage collector does with
/// `--cascade=orphan`.
async fn orphan<K>(cluster: &TestCluster, name: &str)
where
    K: kube::Resource<DynamicType = (), Scope = k8s_openapi::NamespaceResourceScope>
        + Clone
        + std::fmt::Debug
        + serde::de::DeserializeOwned,
{
    let patch = Patch::Merge(json!({"metadata": {"ownerReferences": null}}));
    let api: Api<K> = cluster.api();
    api.patch(name, &PatchParams::default(), &patch)
        .await
        .unwrap();
}

#[tokio::test]
async fn children_of_a_deleted_resource_are_adopted_on_request() {
    let cluster = TestCluster::new("adopt").await;
    let operator = cluster.operator().await;
    cluster.install("llm").await;
    drop(operator);
    let proxies: Api<FastllmProxy> = cluster.api();
    let keep = DeleteParams {
        propagation_policy: Some(PropagationPolicy::Background),
        ..DeleteParams::default()
    };
    proxies.delete("llm", &keep).await.unwrap();
    let children = ["llm-control", "llm-proxy"];
    let mut before = Vec::new();
    for name in children {
        before.push(cluster.deployment(name, |_| true).await);
        orphan::<Deployment>(&cluster, name).await;
        orphan::<Service>(&cluster, name).await;
        orphan::<ServiceAccount>(&cluster, name).await;
    }
    orphan::<Job>(&cluster, "llm-bootstrap").await;
    let _operator = cluster.operator().await;
    let created = cluster.create("llm").await;
    let status = cluster
        .until("llm", |s| is(s, ConditionType::Stalled, "True", "NotOwned"))
        .await;
    let message = &status.condition(ConditionType::Stalled).unwrap().message;
    assert!(message.contains("fastllm.io/adopt=true"), "{message}");
    for name in children {
        adopt::<Deployment>(&cluster, name).await;
        adopt::<Service>(&cluster, name).await;
        adopt::<ServiceAccount>(&cluster, name).await;
    }
    adopt::<Job>(&cluster, "llm-bootstrap").await;
    let uid = created.metadata.uid.unwrap();
    for (name, before) in children.iter().zip(before) {
        let adopted = cluster
            .deployment(name, |d| {
                let owners = d.metadata.owner_references.iter().flatten();
                owners.map(|owner| &owner.uid).eq([&uid])
            })
            .await;
        assert_eq!(adopted.spec.template, before.spec.template);
        // A changed annotation increases the generation.
        let status = json!({"status": {"observedGeneration": adopted.metadata.generation}});
        cluster.deployment_status(name, status).await;
    }
    cluster
        .until("llm", |s| s.is_true(ConditionType::Ready))
        .await;
    cluster.assert_nothing_forbidden();
}

#[tokio::test]
async fn an_object_without_our_labels_is_adopted_on_request() {
    let cluster = TestCluster::new("unlabelled").await;
    let services: Api<Service> = cluster.api();
    let foreign = json!({
        "metadata": {"name": "llm-proxy", "annotations": {"fastllm.io/adopt": "True"}},
        "spec": {"ports": [{"port": 4000, "protocol": "TCP"}], "selector": {"app": "theirs"}},
    });
    let foreign: Service = serde_json::from_value(foreign).unwrap();
    let before = services
        .create(&kube::api::PostParams::default(), &foreign)
        .await
        .unwrap();
    let _operator = cluster.operator().await;
    cluster.install("llm").await;
    let after = services.get("llm-proxy").await.unwrap();
    assert_eq!(after.metadata.uid, before.metadata.uid);
    let selector = after.spec.unwrap().selector.unwrap();
    assert!(!selector.contains_key("app"), "{selector:?}");
    assert_eq!(after.metadata.owner_references.unwrap().len(), 1);
}

#[tokio::test]
async fn a_requested_restart_rolls_both_planes_once() {
    let cluster = TestCluster::new("restart").await;
    let _operator = cluster.operator().await;
    cluster.install("llm").await;
    let proxies: Api<FastllmProxy> = cluster.api();
    let restart = |value: Value| {
        Patch::Merge(json!({"metadata": {"annotations": {"fastllm.io/restart-at": value}}}))
    };
    let now = restart(json!("2026-01-02T03:04:05Z"));
    proxies
        .patch("llm", &PatchParams::default(), &now)
        .await
        .unwrap();
    for name in ["llm-control", "llm-proxy"] {
        cluster
            .deployment(name, |d| d.metadata.generation == Some(2))
            .await;
        cluster.finish(name).await;
    }
    cluster
        .until("llm", |s| s.is_true(ConditionType::Ready))
        .await;
    proxies
        .patch("llm", &PatchParams::default(), &restart(Value::Null))
        .await
        .unwrap();
    cluster.sentinel("other").await;
    for name in ["llm-control", "llm-proxy"] {
        assert_eq!(cluster.generation(name).await, Some(2), "{name}");
    }
}

#[tokio::test]
async fn a_gateway_that_is_being_deleted_stays_available_until_it_is_gone() {
    let cluster = TestCluster::new("finalizer").await;
    let _operator = cluster.operator().await;
    cluster.install("llm").await;
    let api: Api<Deployment> = cluster.api();
    let finalizers = |names: Value| Patch::Merge(json!({"metadata": {"finalizers": names}}));
    let held = finalizers(json!(["example.com/hold"]));
    let default = PatchParams::default();
    api.patch("llm-proxy", &default, &held).await.unwrap();
    let background = DeleteParams::background();
    let deleted = api.delete("llm-proxy", &background).await.unwrap();
    let uid = deleted.left().unwrap().metadata.uid;
    let status = cluster
        .until("llm", |s| {
            let ready = s.condition(ConditionType::Ready).unwrap();
            ready
                .message
                .contains("waiting for the deletion of Deployment")
        })
        .await;
    let ready = status.condition(ConditionType::Ready).unwrap();
    assert!(
        ready.message.contains("example.com/hold"),
        "{}",
        ready.message
    );
    assert!(status.is_true(ConditionType::Available), "{status:#?}");
    api.patch("llm-proxy", &default, &finalizers(json!([])))
        .await
        .unwrap();
    cluster
        .deployment("llm-proxy", |d| d.metadata.uid != uid)
        .await;
    cluster.finish("llm-proxy").await;
    cluster
        .until("llm", |s| s.is_true(ConditionType::Ready))
        .await;
}

#[tokio::test]
async fn the_bootstrap_job_is_removed_with_its_field() {
    let cluster = TestCluster::new("unbootstrap").await;
    let _operator = cluster.operator().await;
    cluster.install("llm").await;
    cluster.edit("llm", json!({"bootstrap": null})).await;
    let jobs: Api<Job> = cluster.api();
    let deadline = Instant::now() + REACTION;
    while jobs
        .get_opt("llm-bootstrap")
        .await
        .unwrap()
        .is_some_and(|job| job.metadata.deletion_timestamp.is_none())
    {
        assert!(Instant::now() < deadline, "the Job still exists");
        poll().await;
    }
    cluster.assert_nothing_forbidden();
}
