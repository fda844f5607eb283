//! A namespace of the cluster, with an operator.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use fastllm_crds::{
    Bootstrap, ConditionType, FastllmProxy, FastllmProxySpec, FastllmProxyStatus, SecretKeyRef,
};
use fastllm_operator::controller::{self, Controller};
use fastllm_operator::metrics::Metrics;
use fastllm_operator::observe::{PlaneProbe, PodReports, ReadOutcome};
use http::header::{ACCEPT, USER_AGENT};
use http::{HeaderValue, Method};
use http_body_util::BodyExt as _;
use k8s_openapi::api::core::v1::Secret;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{Api, DynamicObject, Patch, PatchParams, PostParams};
use kube::client::{Body, ClientBuilder};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::core::GroupVersionKind;
use kube::discovery::{ApiResource, Scope};
use kube::runtime::wait::{await_condition, conditions::is_crd_established};
use kube::{Client, Config};
use parking_lot::Mutex;
use serde::Deserialize as _;
use serde_json::{Value, json};
use tokio::task::JoinHandle;
use tokio::time::Instant;
use tower::util::{MapRequestLayer, MapResponseLayer};

/// The account that the operator runs as.
const ACCOUNT: &str = "system:serviceaccount:fastllm-system:fastllm-operator";
/// Maximum time in which the operator must react.
pub(crate) const REACTION: Duration = Duration::from_secs(5);

pub(crate) const URL: &str = "postgres://user:canary@db/fastllm";
pub(crate) const KEY: &str = "00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff";

#[expect(
    clippy::disallowed_methods,
    reason = "the one place where the tests read their settings"
)]
fn setting(name: &str) -> PathBuf {
    let missing =
        format!("{name} is not set: run `make test`, which starts an API server for these tests");
    std::env::var(name).expect(&missing).into()
}

/// Simulated pods of both planes.
#[derive(Clone, Default)]
pub(crate) struct FakePods(Arc<Mutex<PodReports>>);

impl FakePods {
    pub(crate) fn set_models(&self, models: usize) {
        self.0.lock().models = ReadOutcome::Known(models);
    }

    pub(crate) fn set_database_problem(&self, problem: Option<&str>) {
        self.0.lock().database_problem = problem.map(str::to_owned);
    }
}

impl PlaneProbe for FakePods {
    async fn models(&self, _: &str) -> ReadOutcome<usize> {
        self.0.lock().models.clone()
    }

    async fn database_problem(&self, _: &str) -> Option<String> {
        self.0.lock().database_problem.clone()
    }
}

/// A namespace of the cluster.
pub(crate) struct TestCluster {
    pub(crate) client: Client,
    pub(crate) namespace: String,
    pub(crate) pods: FakePods,
    /// Makes the API server reject every Deployment, each time with a different message.
    pub(crate) rejecting: Arc<AtomicBool>,
    /// Whether the operators receive a definition that lacks a field.
    pub(crate) outdated: Arc<AtomicBool>,
    user_agent: String,
    requests: Arc<Mutex<Vec<String>>>,
}

async fn config() -> Config {
    // Fails only if another test was first.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let kubeconfig = Kubeconfig::read_from(setting("FASTLLM_TEST_KUBECONFIG")).unwrap();
    let options = KubeConfigOptions::default();
    Config::from_custom_kubeconfig(kubeconfig, &options)
        .await
        .unwrap()
}

impl TestCluster {
    /// Installs the CRD and the RBAC rules, and creates a namespace.
    pub(crate) async fn new(test: &str) -> Self {
        let client = Client::try_from(config().await).unwrap();
        let stamp = jiff::Timestamp::now().as_millisecond();
        let namespace = format!("integration-{test}-{stamp}");
        for name in ["fastllm-system", &namespace] {
            apply(
                &client,
                json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}),
            )
            .await;
        }
        let root = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../config");
        for file in [
            "crd/fastllmproxies.yaml",
            "rbac/service_account.yaml",
            "rbac/cluster_role.yaml",
            "rbac/cluster_role_binding.yaml",
            "rbac/leader_election.yaml",
        ] {
            let manifest = std::fs::read_to_string(root.join(file)).unwrap();
            for document in serde_yaml_ng::Deserializer::from_str(&manifest) {
                apply(&client, Value::deserialize(document).unwrap()).await;
            }
        }
        let crds: Api<CustomResourceDefinition> = Api::all(client.clone());
        let established = await_condition(crds, "fastllmproxies.fastllm.io", is_crd_established());
        tokio::time::timeout(REACTION * 2, established)
            .await
            .unwrap()
            .unwrap();
        let user_agent = format!("fastllm-operator-{namespace}");
        let requests = Arc::default();
        let cluster = Self {
            client,
            namespace,
            pods: FakePods::default(),
            rejecting: Arc::default(),
            outdated: Arc::default(),
            user_agent,
            requests,
        };
        for (name, key, value) in [
            ("db", "uri", URL),
            ("token", "token", "canary-token"),
            ("key", "key", KEY),
            ("login", "password", "canary-password"),
        ] {
            cluster.secret(name, key, value).await;
        }
        cluster
    }

    /// A client with the operator's permissions and this test's user agent.
    pub(crate) async fn operator_client(&self) -> Client {
        self.client_of(ACCOUNT).await
    }

    async fn client_of(&self, account: &str) -> Client {
        let mut config = config().await;
        config.auth_info.impersonate = Some(account.to_owned());
        let user_agent = HeaderValue::from_str(&self.user_agent).unwrap();
        config.headers.push((USER_AGENT, user_agent));
        let requests = Arc::clone(&self.requests);
        let rejecting = Arc::clone(&self.rejecting);
        let listen = MapRequestLayer::new(move |mut request: http::Request<Body>| {
            let applied = request.method() == Method::PATCH;
            if applied && rejecting.load(Ordering::Relaxed) {
                // A path with a name that differs from the object's, and from the last path.
                let uri = request.uri().to_string();
                let count = requests.lock().len();
                let astray = uri.replace("/deployments/", &format!("/deployments/not-{count}-"));
                *request.uri_mut() = astray.parse().unwrap();
            }
            let accept = request.headers().get(ACCEPT).and_then(|v| v.to_str().ok());
            let line = format!("{} {}", request.uri(), accept.unwrap_or_default());
            requests.lock().push(line);
            request
        });
        let outdated = Arc::clone(&self.outdated);
        let garble = MapResponseLayer::new(move |response: http::Response<_>| {
            let outdated = outdated.load(Ordering::Relaxed);
            let body = move |body: Box<kube::client::DynBody>| {
                body.map_frame(move |frame| frame.map_data(|data| garbled(&data, outdated)))
                    .boxed_unsync()
            };
            response.map(body)
        });
        let builder = ClientBuilder::try_from(config).unwrap();
        builder.with_layer(&listen).with_layer(&garble).build()
    }

    /// Every request of this test's operators, with its `Accept` header.
    pub(crate) fn requests(&self) -> Vec<String> {
        self.requests.lock().clone()
    }

    /// Runs an operator until it is dropped.
    pub(crate) async fn operator(&self) -> Operator {
        self.operator_as(ACCOUNT).await
    }

    /// Runs an operator with the permissions of an account.
    pub(crate) async fn operator_as(&self, account: &str) -> Operator {
        let client = self.client_of(account).await;
        let metrics = Arc::new(Metrics::new().unwrap());
        let config = controller::Config {
            namespace: Some(&self.namespace),
            instance: "operator-0",
        };
        let controller = Controller::new(config, &client, self.pods.clone(), &metrics);
        #[expect(clippy::disallowed_methods, reason = "the task is owned by the handle")]
        let task = tokio::spawn(async move {
            let _ = controller.run(|| {}).await;
        });
        Operator { task, metrics }
    }

    pub(crate) fn api<K>(&self) -> Api<K>
    where
        K: kube::Resource<DynamicType = (), Scope = k8s_openapi::NamespaceResourceScope>,
    {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    pub(crate) async fn secret(&self, name: &str, key: &str, value: &str) {
        let namespace = &self.namespace;
        apply(
            &self.client,
            json!({
                "apiVersion": "v1", "kind": "Secret",
                "metadata": {"name": name, "namespace": namespace},
                "stringData": {key: value},
            }),
        )
        .await;
    }

    pub(crate) async fn annotate_secret(&self, name: &str, value: &str) {
        let patch = json!({"metadata": {"annotations": {"example.com/note": value}}});
        let secrets: Api<Secret> = self.api();
        secrets
            .patch(name, &PatchParams::default(), &Patch::Merge(patch))
            .await
            .unwrap();
    }

    /// A resource that references the Secrets.
    pub(crate) fn proxy(&self, name: &str) -> FastllmProxy {
        let reference = |name: &str, key: &str| SecretKeyRef {
            name: name.to_owned(),
            key: key.to_owned(),
        };
        let spec = FastllmProxySpec {
            image: "fastllm/fastllm-proxy:1".to_owned(),
            database: reference("db", "uri"),
            proxy_token: reference("token", "token"),
            encryption_key: reference("key", "key"),
            bootstrap: Some(Bootstrap {
                name: "admin".to_owned(),
                password: reference("login", "password"),
            }),
            ..FastllmProxySpec::default()
        };
        let mut proxy = FastllmProxy::new(name, spec);
        proxy.metadata.namespace = Some(self.namespace.clone());
        proxy
    }

    pub(crate) async fn create(&self, name: &str) -> FastllmProxy {
        let proxy = self.proxy(name);
        self.api()
            .create(&PostParams::default(), &proxy)
            .await
            .unwrap()
    }

    pub(crate) async fn get(&self, name: &str) -> FastllmProxy {
        self.api().get(name).await.unwrap()
    }

    /// Changes the specification and returns the new generation.
    pub(crate) async fn edit(&self, name: &str, spec: Value) -> i64 {
        let patch = Patch::Merge(json!({"spec": spec}));
        let api: Api<FastllmProxy> = self.api();
        let edited = api
            .patch(name, &PatchParams::default(), &patch)
            .await
            .unwrap();
        edited.metadata.generation.unwrap()
    }

    /// Waits until a resource's status matches, and returns the status.
    #[track_caller]
    pub(crate) fn until(
        &self,
        name: &str,
        test: impl Fn(&FastllmProxyStatus) -> bool,
    ) -> impl Future<Output = FastllmProxyStatus> {
        let caller = std::panic::Location::caller();
        async move {
            let deadline = Instant::now() + REACTION;
            loop {
                let status = self.get(name).await.status.unwrap_or_default();
                if test(&status) {
                    return status;
                }
                assert!(Instant::now() < deadline, "{caller}: {status:#?}");
                poll().await;
            }
        }
    }

    /// The audit log's entries of this test's operators.
    pub(crate) fn audit_log(&self) -> Vec<Value> {
        let log = std::fs::read_to_string(setting("FASTLLM_TEST_AUDIT_LOG")).unwrap();
        log.lines()
            .filter_map(|line| serde_json::from_str::<Value>(line).ok())
            .filter(|event| event["userAgent"] == self.user_agent.as_str())
            .filter(|event| event["stage"] == "ResponseComplete")
            .collect()
    }

    /// The writes among them, as verb, kind and name, without Leases and Events.
    pub(crate) fn writes(&self) -> Vec<String> {
        let writes = ["create", "update", "patch", "delete"];
        self.audit_log()
            .iter()
            .filter(|event| writes.contains(&event["verb"].as_str().unwrap()))
            .map(|event| {
                let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
                let object = &event["objectRef"];
                let kind = match object["subresource"].as_str() {
                    Some(sub) => format!("{}/{sub}", text(&object["resource"])),
                    None => text(&object["resource"]),
                };
                format!("{} {kind} {}", text(&event["verb"]), text(&object["name"]))
            })
            .filter(|write| !write.contains(" leases ") && !write.contains(" events "))
            .collect()
    }

    /// Waits until the operator has processed everything that happened before: a
    /// resource that is created now has a status.
    pub(crate) async fn sentinel(&self, name: &str) {
        self.create(name).await;
        self.until(name, |status| status.observed_generation == Some(1))
            .await;
    }

    /// Asserts that no request was forbidden.
    pub(crate) fn assert_nothing_forbidden(&self) {
        let audit_log = self.audit_log();
        assert!(
            !audit_log.is_empty(),
            "the audit log has no entry of {}",
            self.user_agent
        );
        let forbidden: Vec<_> = audit_log
            .iter()
            .filter(|event| event["responseStatus"]["code"] == 403)
            .collect();
        assert!(forbidden.is_empty(), "{forbidden:#?}");
    }
}

/// Image of a resource that the operators receive in a form that does not decode,
/// as if it had been stored under a laxer definition.
pub(crate) const UNDECODABLE: &str = "fastllm/undecodable";

fn garbled(data: &Bytes, outdated: bool) -> Bytes {
    let text = String::from_utf8_lossy(data);
    if outdated {
        // Only in a definition is the member an object.
        return text.replace("\"imagePullPolicy\":{", "\"other\":{").into();
    }
    let image = format!("\"image\":\"{UNDECODABLE}\"");
    if text.contains(&image) {
        return text.replace(&image, "\"image\":[\"canary\"]").into();
    }
    data.clone()
}

/// A running operator.
pub(crate) struct Operator {
    task: JoinHandle<()>,
    pub(crate) metrics: Arc<Metrics>,
}

impl Drop for Operator {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Waits until a condition is checked again.
pub(crate) async fn poll() {
    tokio::time::sleep(Duration::from_millis(50)).await;
}

pub(crate) fn is(
    status: &FastllmProxyStatus,
    kind: ConditionType,
    value: &str,
    reason: &str,
) -> bool {
    status
        .condition(kind)
        .is_some_and(|c| c.status == value && c.reason == reason)
}

/// Applies an object as an administrator.
pub(crate) async fn apply(client: &Client, object: Value) {
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let (api_version, kind) = (text(&object["apiVersion"]), text(&object["kind"]));
    let (group, version) = api_version.split_once('/').unwrap_or(("", &api_version));
    let gvk = GroupVersionKind::gvk(group, version, &kind);
    let (resource, capabilities) = kube::discovery::pinned_kind(client, &gvk).await.unwrap();
    let namespace = object["metadata"]["namespace"].as_str();
    let api = dynamic(client, &resource, &capabilities.scope, namespace);
    let params = PatchParams::apply("tests").force();
    let name = text(&object["metadata"]["name"]);
    api.patch(&name, &params, &Patch::Apply(&object))
        .await
        .unwrap();
}

fn dynamic(
    client: &Client,
    resource: &ApiResource,
    scope: &Scope,
    namespace: Option<&str>,
) -> Api<DynamicObject> {
    match (scope, namespace) {
        (Scope::Namespaced, Some(namespace)) => {
            Api::namespaced_with(client.clone(), namespace, resource)
        }
        _ => Api::all_with(client.clone(), resource),
    }
}
