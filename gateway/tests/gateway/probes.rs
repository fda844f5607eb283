//! Health checks of backends, and additional header fields sent to them.

use std::collections::BTreeMap;

use fastllm_contract::{HealthCheck, Secret};

use crate::support::{
    Options, SnapshotContent, Step, TestGateway, Upstream, chat, content, json_response, raw,
};

const BODY: &str = "{\"model\":\"small\"}";

fn frequent_probes() -> Options {
    Options::flags(&["--health-interval=1", "--health-timeout=60"])
}

/// Only `small`, on a backend with this health check.
fn checked(upstream: &Upstream, path: &str, method: &str, expect: &str) -> SnapshotContent {
    let mut content = content(&[upstream.api_base()]);
    content.models.drain(..2);
    content.models[0].backends[0].health = HealthCheck {
        enabled: true,
        path: path.to_owned(),
        method: method.to_owned(),
        expect: expect.to_owned(),
    };
    content
}

async fn is_healthy(gateway: &TestGateway) -> bool {
    gateway.get("/health").await.status == 200
}

#[tokio::test]
async fn a_probe_follows_the_backends_health_check() {
    let upstream = Upstream::start([json_response("401 X", "{}")]).await;
    let mut content = checked(&upstream, "//ping", "POST", "200,401");
    let options = &mut content.models[0].backends[0].request_options;
    options.headers = BTreeMap::from([("x-tenant".to_owned(), Secret::new("blue"))]);
    options.query = BTreeMap::from([("api-version".to_owned(), "7".to_owned())]);
    let gateway = TestGateway::serving(&content, frequent_probes()).await;
    upstream
        .wait_for("three probes", |seen| seen.requests.len() >= 3)
        .await;
    assert!(is_healthy(&gateway).await);
    let probe = &upstream.seen().requests[0];
    assert_eq!(
        (probe.word(0), probe.word(1)),
        ("POST", "/ping?api-version=7")
    );
    assert_eq!(probe.header("content-length"), Some("0"));
    assert_eq!(probe.headers("authorization"), ["Bearer credential-1"]);
    assert_eq!(probe.headers("x-tenant"), ["blue"]);
}

#[tokio::test]
async fn an_unexpected_status_fails_the_probe() {
    let upstream = Upstream::start([raw("HTTP/1.1 200 OK\r\n\r\n")]).await;
    let gateway = TestGateway::serving(
        &checked(&upstream, "/models", "HEAD", "204"),
        frequent_probes(),
    )
    .await;
    gateway
        .until("it is unhealthy", async || !is_healthy(&gateway).await)
        .await;
    assert_eq!(upstream.seen().requests[0].word(0), "HEAD");
}

#[tokio::test]
async fn a_backend_without_a_health_check_is_healthy() {
    let sick = Upstream::start([json_response("500 X", "{}")]).await;
    let mut content = checked(&sick, "/models", "POST", "2xx");
    let gateway = TestGateway::serving(&content, frequent_probes()).await;
    gateway
        .until("it is unhealthy", async || !is_healthy(&gateway).await)
        .await;
    content.models[0].backends[0].health.enabled = false;
    content.version += 1;
    gateway.control.publish(crate::support::snapshot(&content));
    gateway
        .until("it is healthy", async || is_healthy(&gateway).await)
        .await;
}

#[tokio::test]
async fn a_hanging_probe_does_not_delay_other_probes() {
    let started = "HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nx";
    let stuck = Upstream::start([vec![Step::Send(started.into()), Step::UntilDisconnect]]).await;
    let well = Upstream::start([json_response("200 OK", "{}")]).await;
    let mut content = content(&[stuck.api_base(), well.api_base()]);
    content.models.drain(..2);
    for backend in &mut content.models[0].backends {
        backend.health.method = "POST".to_owned();
    }
    let gateway = TestGateway::serving(&content, frequent_probes()).await;
    well.wait_for("probes go on", |seen| seen.requests.len() >= 3)
        .await;
    assert_eq!(stuck.seen().requests.len(), 1);
    drop(gateway);
}

#[tokio::test]
async fn a_hanging_body_fails_the_probe() {
    let started = "HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nx";
    let stuck = Upstream::start([vec![Step::Send(started.into()), Step::UntilDisconnect]]).await;
    let flags = Options::flags(&["--health-interval=1", "--health-timeout=1"]);
    let gateway = TestGateway::serving(&checked(&stuck, "/models", "POST", "2xx"), flags).await;
    gateway
        .until("it is unhealthy", async || !is_healthy(&gateway).await)
        .await;
}

#[tokio::test]
async fn requests_carry_the_backends_additional_headers() {
    let upstream = Upstream::start([json_response("200 OK", "{}")]).await;
    let mut content = content(&[upstream.api_base()]);
    let backend = &mut content.models[2].backends[0];
    backend.upstream_model = "gpt 4".to_owned();
    backend.request_options.path_template =
        Some("/deployments/{upstream_model}{sub_path}".to_owned());
    let query = [("api-version", "2024-10-21"), ("a", "b&c")];
    backend.request_options.query = query
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .into();
    let headers = [("x-tenant", "canary-tenant"), ("accept", "text/x")];
    backend.request_options.headers = headers
        .map(|(name, value)| (name.to_owned(), Secret::new(value)))
        .into();
    let gateway = TestGateway::serving(&content, Options::default()).await;
    assert_eq!(gateway.send(&chat(BODY)).await.status, 200);
    let request = upstream.request();
    assert_eq!(
        request.word(1),
        "/v1/deployments/gpt%204/chat/completions?a=b%26c&api-version=2024-10-21"
    );
    assert_eq!(request.headers("x-tenant"), ["canary-tenant"]);
    assert_eq!(request.headers("accept"), ["text/x"]);
    assert_eq!(request.headers("authorization"), ["Bearer credential-1"]);
    assert!(!crate::support::logged().contains("canary-tenant"));
}
