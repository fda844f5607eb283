//! Listening ports and the order of a shutdown.

use std::collections::BTreeSet;

use serde_json::json;

use crate::support::{
    Barrier, Client, Options, Step, TestGateway, Upstream, chat, events, get, json_answer,
};

const EVENT: &str = "data: {\"choices\":[{}]}\n\n";
const STREAMED: &str = "{\"model\":\"small\",\"stream\":true}";

#[tokio::test]
async fn shutdown_finishes_running_responses_and_closes_idle_connections() {
    let barrier = Barrier::new();
    let script = vec![
        Step::Send(events(&[EVENT], false)),
        Step::Wait(barrier.clone()),
        Step::Send(format!("{:x}\r\n{EVENT}\r\n0\r\n\r\n", EVENT.len()).into_bytes()),
    ];
    let upstream = Upstream::start([script]).await;
    let mut gateway = TestGateway::start(&[&upstream]).await;
    let mut idle = gateway.client().await;
    assert_eq!(idle.ask(&get("/livez", "")).await.status, 200);
    let mut client = gateway.client().await;
    client.write(&chat(STREAMED)).await;
    client.head().await;
    client.until(EVENT).await;
    gateway.stop();
    assert!(idle.is_closed().await);
    barrier.cancel();
    client.until(EVENT).await;
    assert_eq!(client.chunk().await, Some(Vec::new()));
    gateway.ended().await;
    assert!(
        tokio::net::TcpStream::connect(gateway.address)
            .await
            .is_err()
    );
    assert_eq!(gateway.control.batches()[0].events[0].status, Some(200));
}

#[tokio::test]
async fn readiness_fails_before_the_gateway_stops_serving() {
    let upstream = Upstream::start([json_answer("200 OK", "{}")]).await;
    let flags = Options::flags(&["--shutdown-delay=2", "--status-port=0"]);
    let mut gateway = TestGateway::start_with(&[&upstream], flags).await;
    gateway.stop();
    gateway
        .until("unreadiness", async || {
            gateway.get("/readyz").await.status == 503
        })
        .await;
    let mut status = Client::connect(gateway.status_address.unwrap()).await;
    assert_eq!(status.ask(&get("/readyz", "")).await.status, 503);
    assert_eq!(status.ask(&get("/livez", "")).await.status, 200);
    assert_eq!(gateway.chat("{\"model\":\"small\"}").await.status, 200);
    gateway.ended().await;
}

#[tokio::test]
async fn an_unfinished_response_is_aborted_after_the_grace_period() {
    let script = vec![Step::Send(events(&[EVENT], false)), Step::UntilHangUp];
    let upstream = Upstream::start([script]).await;
    let mut gateway =
        TestGateway::start_with(&[&upstream], Options::flags(&["--shutdown-grace=1"])).await;
    let mut client = gateway.client().await;
    client.write(&chat(STREAMED)).await;
    client.head().await;
    client.until(EVENT).await;
    gateway.stop();
    gateway.ended().await;
    let events = &gateway.control.batches()[0].events;
    assert_eq!((events.len(), events[0].status), (1, Some(499)));
}

#[tokio::test]
async fn a_status_port_removes_the_details_from_the_public_port() {
    let upstream = Upstream::start([json_answer("200 OK", "{}")]).await;
    let gateway = TestGateway::start_with(&[&upstream], Options::flags(&["--status-port=0"])).await;
    let mut status = Client::connect(gateway.status_address.unwrap()).await;
    for path in ["/health", "/healthz"] {
        let public = gateway.get(path).await;
        assert_eq!(
            (public.status, public.json()),
            (200, json!({"status": "ok"}))
        );
        let health = status.ask(&get(path, "")).await.json();
        let members: BTreeSet<&str> = health
            .as_object()
            .unwrap()
            .keys()
            .map(String::as_str)
            .collect();
        let expected = [
            "backends",
            "keys",
            "models",
            "policy",
            "snapshot_version",
            "status",
            "uptime_seconds",
        ];
        assert_eq!(members, BTreeSet::from(expected));
        assert_eq!(health["models"], json!(["forbidden", "large", "small"]));
        assert_eq!(health["keys"], 1);
        assert_eq!(health["policy"], "cache-affinity");
        assert_eq!(health["backends"].as_array().unwrap().len(), 3);
    }
    assert_eq!(gateway.get("/metrics").await.status, 401);
    let metrics = status.ask(&get("/metrics", "")).await;
    assert!(
        metrics
            .header("content-type")
            .unwrap()
            .starts_with("text/plain; version=0.0.4")
    );
    assert!(metrics.text().contains("fastllm_build_info"));
    assert_eq!(gateway.get("/readyz").await.status, 200);
    assert_eq!(gateway.get("/livez").await.status, 200);
    assert_eq!(status.ask(&get("/v1/models", "")).await.status, 404);
}

#[tokio::test]
async fn health_fails_only_when_no_backend_is_healthy() {
    let upstream = Upstream::start([]).await;
    upstream.answer_probes("500 X");
    let gateway =
        TestGateway::start_with(&[&upstream], Options::flags(&["--health-interval=1"])).await;
    gateway
        .until("failing health", async || {
            gateway.get("/health").await.status == 503
        })
        .await;
    assert_eq!(
        gateway.get("/health").await.json()["status"],
        "no_healthy_backends"
    );
    assert_eq!(gateway.get("/readyz").await.status, 200);
}
