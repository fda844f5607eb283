//! Listening ports and the order of a shutdown.

use std::collections::BTreeSet;

use serde_json::json;

use tokio::net::TcpStream;

use crate::support::{
    Barrier, Client, KEY, Options, Step, TestGateway, Upstream, chat, events, get, json_response,
    soon,
};

const EVENT: &str = "data: {\"choices\":[{\"finish_reason\":\"stop\"}]}\n\n";
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
    assert_eq!(idle.send(&get("/livez", "")).await.status, 200);
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

/// Longer than any wait of a test.
const LONG_GRACE: &str = "--shutdown-grace=60";

/// An HTTP/2 connection that has carried one request.
async fn used_http2(
    gateway: &TestGateway,
) -> (
    h2::client::SendRequest<bytes::Bytes>,
    h2::client::Connection<TcpStream>,
) {
    let stream = TcpStream::connect(gateway.address).await.unwrap();
    let (mut requests, mut connection) = h2::client::handshake(stream).await.unwrap();
    let request = http::Request::get("http://g/livez").body(()).unwrap();
    let (response, _) = requests.send_request(request, true).unwrap();
    tokio::select! {
        response = response => assert_eq!(response.unwrap().status(), 200),
        ended = &mut connection => panic!("the connection ended: {ended:?}"),
    }
    (requests, connection)
}

#[tokio::test]
async fn shutdown_does_not_wait_for_idle_http2_connections() {
    let mut gateway = TestGateway::start_with(&[], Options::flags(&[LONG_GRACE])).await;
    // The client reads its connection only while it has a request.
    let unread = used_http2(&gateway).await;
    let (requests, connection) = used_http2(&gateway).await;
    gateway.stop();
    // A client that reads receives a GOAWAY.
    soon("the end of the connection", connection).await.unwrap();
    gateway.ended().await;
    drop((unread, requests));
}

#[tokio::test]
async fn shutdown_finishes_the_streams_of_an_http2_connection() {
    let barrier = Barrier::new();
    let mut script = vec![Step::Wait(barrier.clone())];
    script.extend(json_response("200 OK", "{}"));
    let upstream = Upstream::start([script]).await;
    let mut gateway = TestGateway::start_with(&[&upstream], Options::flags(&[LONG_GRACE])).await;
    let address = gateway.address;
    let mut idle = gateway.client().await;
    assert_eq!(idle.send(&get("/livez", "")).await.status, 200);
    let stream = TcpStream::connect(address).await.unwrap();
    let (mut requests, connection) = h2::client::handshake(stream).await.unwrap();
    let request = http::Request::post("http://g/v1/chat/completions")
        .header("x-api-key", KEY)
        .body(())
        .unwrap();
    let (response, mut body) = requests.send_request(request, false).unwrap();
    body.send_data(bytes::Bytes::from_static(b"{\"model\":\"small\"}"), true)
        .unwrap();
    let answered = async {
        upstream
            .wait_for("the request", |seen| seen.requests.len() == 1)
            .await;
        gateway.stop();
        assert!(idle.is_closed().await);
        barrier.cancel();
        assert_eq!(soon("the response", response).await.unwrap().status(), 200);
    };
    let ((), ended) = tokio::join!(answered, connection);
    ended.unwrap();
    gateway.ended().await;
}

#[tokio::test]
async fn shutdown_does_not_wait_for_the_rest_of_a_request_head() {
    let mut gateway = TestGateway::start_with(&[], Options::flags(&[LONG_GRACE])).await;
    let mut stuck = gateway.client().await;
    assert_eq!(stuck.send(&get("/livez", "")).await.status, 200);
    stuck.write(b"GET /livez HTTP/1.1\r\nhost").await;
    let mut fresh = gateway.client().await;
    fresh.write(b"GET /livez HTTP/1.1\r\nhost").await;
    let mut preface = gateway.client().await;
    preface.write(b"PRI * HTTP/2.0\r\n").await;
    let mut bare = gateway.client().await;
    bare.write(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").await;
    gateway
        .until("all connections", async || {
            gateway.metric("fastllm_client_connections").await > 4.5
        })
        .await;
    gateway.stop();
    gateway.ended().await;
}

#[tokio::test]
async fn readiness_fails_before_the_gateway_stops_serving() {
    let upstream = Upstream::start([json_response("200 OK", "{}")]).await;
    let flags = Options::flags(&["--shutdown-delay=2", "--status-port=0"]);
    let mut gateway = TestGateway::start_with(&[&upstream], flags).await;
    gateway.stop();
    gateway
        .until("unreadiness", async || {
            gateway.get("/readyz").await.status == 503
        })
        .await;
    let mut status = Client::connect(gateway.status_address.unwrap()).await;
    assert_eq!(status.send(&get("/readyz", "")).await.status, 503);
    assert_eq!(status.send(&get("/livez", "")).await.status, 200);
    assert_eq!(gateway.chat("{\"model\":\"small\"}").await.status, 200);
    gateway.ended().await;
}

#[tokio::test]
async fn an_unfinished_response_is_aborted_after_the_grace_period() {
    let script = vec![Step::Send(events(&[EVENT], false)), Step::UntilDisconnect];
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
    let upstream = Upstream::start([json_response("200 OK", "{}")]).await;
    let gateway = TestGateway::start_with(&[&upstream], Options::flags(&["--status-port=0"])).await;
    let mut status = Client::connect(gateway.status_address.unwrap()).await;
    for path in ["/health", "/healthz"] {
        let public = gateway.get(path).await;
        assert_eq!(
            (public.status, public.json()),
            (200, json!({"status": "ok"}))
        );
        let health = status.send(&get(path, "")).await.json();
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
    let metrics = status.send(&get("/metrics", "")).await;
    assert!(
        metrics
            .header("content-type")
            .unwrap()
            .starts_with("text/plain; version=0.0.4")
    );
    assert!(metrics.text().contains("fastllm_build_info"));
    assert_eq!(gateway.get("/readyz").await.status, 200);
    assert_eq!(gateway.get("/livez").await.status, 200);
    assert_eq!(status.send(&get("/v1/models", "")).await.status, 404);
}

#[tokio::test]
async fn health_fails_only_when_no_backend_is_healthy() {
    let upstream = Upstream::start([]).await;
    upstream.set_probe_status("500 X");
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
