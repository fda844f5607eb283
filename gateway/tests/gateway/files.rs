//! A gateway with a configuration file.

use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;

use crate::support::{
    Barrier, Step, TestGateway, Upstream, chat, events, json_response, logged, post,
};

const BODY: &str = "{\"model\":\"small\"}";
const EVENT: &str = "data: {\"choices\":[{\"finish_reason\":\"stop\"}]}\n\n";

/// A configuration file in a temporary directory.
struct Folder(TempDir);

impl Folder {
    fn with(text: &str) -> Self {
        let folder = Self(tempfile::tempdir().unwrap());
        folder.write(text);
        folder
    }

    fn file(&self) -> PathBuf {
        self.0.path().join("gateway.yaml")
    }

    /// Replaces the file by renaming, as editors do.
    fn write(&self, text: &str) {
        let next = self.0.path().join("next");
        std::fs::write(&next, text).unwrap();
        std::fs::rename(next, self.file()).unwrap();
    }
}

fn model(name: &str, api_base: &str) -> String {
    format!("- {{model_name: {name}, litellm_params: {{api_base: '{api_base}'}}}}\n")
}

/// `small` on one address, and a key for it.
fn small(api_base: &str, key: &str) -> String {
    format!(
        "model_list:\n{}auth: {{keys: [{{name: app, key: {key}, models: [small]}}]}}\n",
        model("small", api_base)
    )
}

fn with_key(key: &str, body: &str) -> Vec<u8> {
    post(
        "/v1/chat/completions",
        &format!("x-api-key: {key}\r\n"),
        body,
    )
}

fn without_key(headers: &str, body: &str) -> Vec<u8> {
    post("/v1/chat/completions", headers, body)
}

async fn until_admitted(gateway: &TestGateway, key: &str) {
    gateway
        .until("the new key", async || {
            gateway.send(&with_key(key, BODY)).await.status == 200
        })
        .await;
}

#[tokio::test]
async fn the_configuration_file_is_served_at_once() {
    let upstream = Upstream::start([json_response("200 OK", "{}")]).await;
    let text = format!(
        "model_list:
- model_name: small
  litellm_params: {{model: vllm/own-name, api_base: '{base}/', api_key: upstream-key, auth_header: x-key, auth_scheme: ''}}
{other}
auth:
  keys:
  - {{name: app, key: client-key, models: [small]}}
  - {{name: late, key: late-key, models: ['*'], expires_at: 2001-01-01}}
",
        base = upstream.api_base(),
        other = model("large", &upstream.api_base()),
    );
    let folder = Folder::with(&text);
    let gateway = TestGateway::with_file(&folder.file(), &[]).await;
    // The gateway is ready immediately.
    assert_eq!(gateway.get("/readyz").await.status, 200);
    assert_eq!(
        gateway.send(&with_key("client-key", BODY)).await.status,
        200
    );
    let request = upstream.request();
    assert_eq!(request.header("x-key"), Some("upstream-key"));
    assert_eq!(request.body, b"{\"model\":\"own-name\"}");
    assert_eq!(gateway.send(&with_key("wrong-key", BODY)).await.status, 401);
    assert_eq!(gateway.send(&with_key("late-key", BODY)).await.status, 401);
    assert_eq!(gateway.send(&without_key("", BODY)).await.status, 401);
    let large = with_key("client-key", "{\"model\":\"large\"}");
    assert_eq!(gateway.send(&large).await.status, 403);
    assert!(gateway.finish().await.is_empty());
}

#[tokio::test]
async fn without_keys_the_gateway_is_open_and_logs_it() {
    let upstream = Upstream::start([json_response("200 OK", "{}")]).await;
    let folder = Folder::with(&format!(
        "model_list:\n{}",
        model("small", &upstream.api_base())
    ));
    let gateway = TestGateway::with_file(&folder.file(), &[]).await;
    assert_eq!(gateway.send(&without_key("", BODY)).await.status, 200);
    assert!(logged().contains("the gateway is open to everyone"));
    // A master key closes it.
    let closed = TestGateway::with_file(&folder.file(), &["--master-key=canary-master-key"]).await;
    assert_eq!(closed.send(&without_key("", BODY)).await.status, 401);
    assert_eq!(
        closed
            .send(&with_key("canary-master-key", BODY))
            .await
            .status,
        200
    );
    assert!(!logged().contains("canary-master-key"));
}

#[tokio::test]
async fn a_virtual_model_follows_its_rules() {
    let upstream = Upstream::start([json_response("200 OK", "{}")]).await;
    let base = upstream.api_base();
    let text = format!(
        "model_list:
{}{}{}auth:
  keys:
  - {{name: app, key: app-key, models: ['*']}}
  - {{name: night, key: night-key, models: [small, large], roles: [offline]}}
fastllm:
  virtual_models:
  - name: auto
    rules:
    - {{headers: {{x-tier: batch}}, targets: [large]}}
    - {{roles: [offline], targets: [large]}}
    - {{principals: [night], targets: [other]}}
    default_targets: [small]
",
        model("small", &base),
        model("large", &base),
        model("other", &base),
    );
    let folder = Folder::with(&text);
    let gateway = TestGateway::with_file(&folder.file(), &[]).await;
    let auto = "{\"model\":\"auto\"}";
    let batch = post(
        "/v1/chat/completions",
        "x-api-key: app-key\r\nx-tier: batch\r\n",
        auto,
    );
    for request in [
        with_key("app-key", auto),
        batch,
        with_key("night-key", auto),
    ] {
        assert_eq!(gateway.send(&request).await.status, 200);
    }
    let forwarded: Vec<_> = upstream
        .seen()
        .requests
        .iter()
        .map(|request| String::from_utf8(request.body.clone()).unwrap())
        .collect();
    let body = |model: &str| format!("{{\"model\":\"{model}\"}}");
    assert_eq!(forwarded, [body("small"), body("large"), body("large")]);
}

#[tokio::test]
async fn an_invalid_backend_does_not_affect_others() {
    let upstream = Upstream::start([json_response("200 OK", "{}")]).await;
    let base = upstream.api_base();
    let text = format!(
        "model_list:
- {{model_name: small, litellm_params: {{api_base: '{base}', protocol: opena1}}}}
- {{model_name: small, litellm_params: {{api_base: 'ftp://canary-user:canary-word@a'}}}}
- {{model_name: large, litellm_params: {{api_base: '{base}', auth_header: 'a b', api_key: canary-key}}}}
{}",
        model("small", &base),
    );
    let folder = Folder::with(&text);
    let gateway = TestGateway::with_file(&folder.file(), &[]).await;
    for _ in 0..4 {
        assert_eq!(gateway.send(&without_key("", BODY)).await.status, 200);
    }
    // The model exists, but has no usable backend.
    let large = gateway
        .send(&without_key("", "{\"model\":\"large\"}"))
        .await;
    assert_eq!(large.status, 502);
    let logs = logged();
    assert!(logs.contains("expected openai, anthropic or gemini"));
    assert!(logs.contains("model_list[2].litellm_params"));
    for canary in ["canary-user", "canary-word", "canary-key"] {
        assert!(!logs.contains(canary), "{canary}");
    }
}

/// A stream that continues once `barrier` is opened.
fn gated(barrier: &Barrier) -> Vec<Step> {
    vec![
        Step::Send(events(&[EVENT], false)),
        Step::Wait(barrier.clone()),
        Step::Send(format!("{:x}\r\n{EVENT}\r\n0\r\n\r\n", EVENT.len()).into_bytes()),
    ]
}

/// Changes the file while a stream runs, and makes the gateway reload it.
async fn changed_midway(flags: &[&str], read: impl AsyncFn(&TestGateway)) {
    let barrier = Barrier::new();
    let upstream = Upstream::start([gated(&barrier), json_response("200 OK", "{}")]).await;
    let folder = Folder::with(&small(&upstream.api_base(), "old-key"));
    let gateway = TestGateway::with_file(&folder.file(), flags).await;
    let mut client = gateway.client().await;
    let streamed = "{\"model\":\"small\",\"stream\":true}";
    client.write(&with_key("old-key", streamed)).await;
    client.head().await;
    client.until(EVENT).await;

    let elsewhere = Upstream::start([json_response("200 OK", "{}")]).await;
    folder.write(&small(&elsewhere.api_base(), "new-key"));
    read(&gateway).await;
    until_admitted(&gateway, "new-key").await;
    assert_eq!(gateway.send(&with_key("old-key", BODY)).await.status, 401);

    barrier.cancel();
    client.until(EVENT).await;
    assert_eq!(client.chunk().await, Some(Vec::new()));
    assert_eq!(upstream.seen().requests.len(), 1);
}

#[tokio::test]
async fn a_changed_file_is_reloaded_and_streams_continue() {
    changed_midway(&["--config-poll=1"], async |_| {}).await;
}

#[tokio::test]
async fn a_changed_included_file_is_reloaded() {
    let upstream = Upstream::start([json_response("200 OK", "{}")]).await;
    let folder = Folder::with("include: [keys.yaml, models.yaml]\n");
    let write = |name: &str, text: &str| {
        std::fs::write(folder.0.path().join(name), text).unwrap();
    };
    let models = model("small", &upstream.api_base());
    write("models.yaml", &format!("model_list:\n{models}"));
    let keys =
        |key: &str| format!("auth: {{keys: [{{name: app, key: {key}, models: [small]}}]}}\n");
    write("keys.yaml", &keys("old-key"));
    let gateway = TestGateway::with_file(&folder.file(), &["--config-poll=1"]).await;
    assert_eq!(gateway.send(&with_key("old-key", BODY)).await.status, 200);
    write("keys.yaml", "auth: {keys: [\n");
    let failures = "fastllm_snapshot_poll_failures_total";
    gateway
        .until("the file to be rejected", async || {
            gateway.metric(failures).await > 0.5
        })
        .await;
    assert_eq!(gateway.send(&with_key("old-key", BODY)).await.status, 200);
    assert!(logged().contains("keys.yaml"));
    write("keys.yaml", &keys("new-key"));
    until_admitted(&gateway, "new-key").await;
    assert_eq!(gateway.send(&with_key("old-key", BODY)).await.status, 401);
}

fn disconnect() {
    let pid = std::process::id().to_string();
    let sent = Command::new("kill").args(["-HUP", &pid]).status();
    assert!(sent.unwrap().success());
}

#[tokio::test]
async fn sighup_reloads_the_file_and_streams_continue() {
    changed_midway(&["--config-poll=0"], async |gateway| {
        // The file is not watched.
        assert_eq!(gateway.send(&with_key("new-key", BODY)).await.status, 401);
        disconnect();
    })
    .await;
}

#[tokio::test]
async fn an_invalid_file_changes_nothing() {
    let upstream = Upstream::start([json_response("200 OK", "{}")]).await;
    let folder = Folder::with(&small(&upstream.api_base(), "old-key"));
    let gateway = TestGateway::with_file(&folder.file(), &["--config-poll=1"]).await;
    let version = gateway.metric("fastllm_snapshot_version").await;
    let failures = "fastllm_snapshot_poll_failures_total";
    let mut seen = 0.5;
    let broken = "model_list: []\nmodel_list: canary-scalar\nauth: {keys: canary-scalar}\n";
    // A partially written file, without keys.
    let half = format!("model_list:\n{}", model("small", &upstream.api_base()));
    // It would be more open than intended.
    let restricted = format!(
        "{}general_settings: {{enable_jwt_auth: true}}\n",
        small(&upstream.api_base(), "new-key")
    );
    let changes = ["model_list: [\n", broken, &half, &restricted];
    for change in changes.map(Some).into_iter().chain([None]) {
        match change {
            Some(text) => folder.write(text),
            None => std::fs::remove_file(folder.file()).unwrap(),
        }
        gateway
            .until("the file to be rejected", async || {
                gateway.metric(failures).await > seen
            })
            .await;
        seen += 1.0;
        assert_eq!(gateway.send(&with_key("old-key", BODY)).await.status, 200);
        assert_eq!(gateway.send(&without_key("", BODY)).await.status, 401);
        assert_eq!(gateway.send(&with_key("new-key", BODY)).await.status, 401);
    }
    assert!((gateway.metric("fastllm_snapshot_version").await - version).abs() < 0.5);
    let logs = logged();
    assert!(logs.contains("given twice") && logs.contains("auth.keys"));
    assert!(logs.contains("general_settings.enable_jwt_auth"));
    assert!(!logs.contains("canary-scalar"));
    folder.write(&small(&upstream.api_base(), "new-key"));
    until_admitted(&gateway, "new-key").await;
}

/// Replaces the symlink `..data`, as the kubelet does for a `ConfigMap`.
fn swap(folder: &Path, data: &str) {
    let next = folder.join("..data_tmp");
    std::os::unix::fs::symlink(data, &next).unwrap();
    std::fs::rename(next, folder.join("..data")).unwrap();
}

#[tokio::test]
async fn an_updated_config_map_is_reloaded() {
    let upstream = Upstream::start([json_response("200 OK", "{}")]).await;
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    for (data, key) in [("..1", "key-1"), ("..2", "key-2")] {
        std::fs::create_dir(folder.join(data)).unwrap();
        let text = small(&upstream.api_base(), key);
        std::fs::write(folder.join(data).join("gateway.yaml"), text).unwrap();
    }
    swap(folder, "..1");
    let file = folder.join("gateway.yaml");
    std::os::unix::fs::symlink("..data/gateway.yaml", &file).unwrap();
    let gateway = TestGateway::with_file(&file, &["--config-poll=1"]).await;
    assert_eq!(gateway.send(&with_key("key-1", BODY)).await.status, 200);
    swap(folder, "..2");
    until_admitted(&gateway, "key-2").await;
}

#[tokio::test]
async fn counters_of_an_unchanged_backend_survive_a_reload() {
    let upstream = Upstream::start([json_response("200 OK", "{}")]).await;
    let folder = Folder::with(&small(&upstream.api_base(), "sk-usual"));
    let gateway = TestGateway::with_file(&folder.file(), &["--config-poll=1"]).await;
    assert_eq!(gateway.send(&chat(BODY)).await.status, 200);
    let before = gateway.get("/health").await.json();
    let text = small(&upstream.api_base(), "sk-usual");
    folder.write(&format!("{text}fastllm: {{balance_abs: 3}}\n"));
    let version = gateway.metric("fastllm_snapshot_version").await;
    gateway
        .until("the change", async || {
            (gateway.metric("fastllm_snapshot_version").await - version).abs() > 0.5
        })
        .await;
    let after = gateway.get("/health").await.json();
    let backends = |health: &serde_json::Value| health["backends"].clone();
    assert_ne!(backends(&before), serde_json::Value::Null);
    assert_eq!(backends(&after), backends(&before));
}

#[tokio::test]
async fn a_cached_response_stays_with_its_principal_when_the_file_is_reordered() {
    let response = |number: u32| json_response("200 OK", &format!("{{\"number\":{number}}}"));
    let upstream = Upstream::start((1..9).map(response)).await;
    let text = |keys: &str| {
        format!(
            "model_list:\n- {{model_name: small, cache_ttl_seconds: 3600, \
litellm_params: {{api_base: '{}'}}}}\nauth: {{keys: [{keys}]}}\n",
            upstream.api_base()
        )
    };
    let key = |name: &str| format!("{{name: {name}, key: sk-{name}, models: [small]}}");
    let folder = Folder::with(&text(&key("first")));
    let gateway = TestGateway::with_file(&folder.file(), &["--config-poll=1"]).await;
    until_admitted(&gateway, "sk-first").await;
    let number =
        async |key: &str| gateway.send(&with_key(key, BODY)).await.json()["number"].clone();
    assert_eq!(number("sk-first").await, 1);

    // The second key takes the position of the first one.
    folder.write(&text(&format!("{}, {}", key("second"), key("first"))));
    until_admitted(&gateway, "sk-second").await;
    assert_eq!(number("sk-second").await, 2);
    assert_eq!(number("sk-second").await, 2);
    assert_ne!(number("sk-first").await, 2);
}
