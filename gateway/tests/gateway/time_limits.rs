//! Timeouts of requests, streams and connections.

use std::time::Duration;

use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};
use tokio::time::interval;

use crate::support::{
    Barrier, Client, KEY, ManualUpstream, Options, Step, TestGateway, Upstream, chat,
    chat_over_http2, content, events, get, json_response, next_data, raw, soon,
};

const STREAMED: &str = "{\"model\":\"small\",\"stream\":true}";
const WHOLE: &str = "{\"model\":\"small\"}";
const EVENT: &str = "data: {\"choices\":[{}]}\n\n";
const DONE: &str = "data: [DONE]\n\n";
const REQUEST_TIME: &str = "--request-timeout=1";
const SILENCE: &str = "--stream-idle-timeout=1";

/// The first half of a response.
fn half() -> Vec<u8> {
    b"HTTP/1.1 200 OK\r\ncontent-length: 50\r\n\r\n{\"choices\":".to_vec()
}

/// A gateway with this flag, and an upstream that stalls after it has sent
/// these bytes.
async fn stalled_after(flag: &str, sent: Vec<u8>) -> (Upstream, TestGateway) {
    let upstream = Upstream::start([vec![Step::Send(sent), Step::UntilDisconnect]]).await;
    let gateway = TestGateway::start_with(&[&upstream], Options::flags(&[flag])).await;
    (upstream, gateway)
}

/// The code of the error event that ends a stream.
fn last_code(text: &str) -> String {
    let last = text.trim_end().rsplit("\n\n").next().unwrap();
    let error: Value = serde_json::from_str(last.strip_prefix("data: ").unwrap()).unwrap();
    error["error"]["code"].as_str().unwrap().to_owned()
}

async fn until_given_up(upstream: &Upstream) {
    upstream
        .wait_for("the request to be aborted", |seen| seen.disconnects == 1)
        .await;
}

#[tokio::test]
async fn a_timeout_before_the_response_is_504() {
    for sent in [
        Vec::new(),
        b"HTTP/1.1 200 OK\r\n".to_vec(),
        events(&[": working\n\n"], false),
    ] {
        let (upstream, gateway) = stalled_after(REQUEST_TIME, sent).await;
        let reply = gateway.chat(STREAMED).await;
        assert_eq!(reply.error().0, 504);
        assert_eq!(reply.error().2, "upstream_timeout");
        until_given_up(&upstream).await;
        assert_eq!(upstream.seen().requests.len(), 1);
        // The request timeout is not a failure of the backend.
        let errors = format!(
            "fastllm_backend_errors_total{{api_base=\"{}\"}}",
            upstream.api_base()
        );
        assert!(gateway.metric(&errors).await < 0.5);
        let events = gateway.finish().await;
        assert_eq!((events.len(), events[0].status), (1, Some(504)));
    }
}

#[tokio::test]
async fn the_request_timeout_covers_all_attempts() {
    let bad = Upstream::start([json_response("503 X", "{}")]).await;
    let stuck = Upstream::start([vec![Step::UntilDisconnect]]).await;
    let flags = Options::flags(&[REQUEST_TIME, "--policy=round-robin"]);
    let gateway = TestGateway::start_with(&[&bad, &stuck], flags).await;
    for _ in 0..2 {
        let reply = gateway.chat(WHOLE).await;
        assert_eq!((reply.status, &*reply.error().2), (504, "upstream_timeout"));
    }
    assert!(!bad.seen().requests.is_empty());
}

#[tokio::test]
async fn a_stream_that_times_out_ends_with_an_error_event() {
    let (upstream, gateway) =
        stalled_after(REQUEST_TIME, events(&[EVENT, "data: {\"ha"], false)).await;
    let mut client = gateway.client().await;
    let reply = client.send(&chat(STREAMED)).await;
    assert!(reply.complete && reply.text().starts_with(EVENT));
    assert_eq!(last_code(&reply.text()), "upstream_timeout");
    until_given_up(&upstream).await;
    // The connection is reusable, and the next request has its own timeout.
    assert_eq!(client.send(&get("/livez", "")).await.status, 200);
    let events = gateway.finish().await;
    assert_eq!((events.len(), events[0].status), (1, Some(200)));
    assert!(!events[0].usage_reported);
}

#[tokio::test]
async fn a_stream_without_pauses_times_out_too() {
    let event = format!("data: {{\"pad\":\"{}\"}}\n\n", "x".repeat(1000));
    let many = event.repeat(4000);
    let script = vec![Step::Trickle(events(&[&many], true))];
    let upstream = Upstream::start([script]).await;
    let gateway = TestGateway::start_with(&[&upstream], Options::flags(&[REQUEST_TIME])).await;
    let reply = gateway.chat(STREAMED).await;
    assert!(reply.complete && reply.body.len() < many.len());
    assert_eq!(last_code(&reply.text()), "upstream_timeout");
}

#[tokio::test]
async fn an_unstreamed_response_that_times_out_is_not_terminated() {
    for flag in [REQUEST_TIME, SILENCE] {
        let (upstream, gateway) = stalled_after(flag, half()).await;
        let reply = gateway.chat(WHOLE).await;
        assert_eq!((reply.status, reply.complete), (200, false));
        until_given_up(&upstream).await;
        assert!(!gateway.finish().await[0].usage_reported);
    }
}

#[tokio::test]
async fn the_request_timeout_applies_to_http2() {
    let (_upstream, gateway) = stalled_after(REQUEST_TIME, events(&[EVENT], false)).await;
    chat_over_http2(&gateway, "null", STREAMED, async |response| {
        let mut body = response.into_body();
        assert_eq!(next_data(&mut body).await.unwrap().unwrap(), EVENT);
        let last = next_data(&mut body).await.unwrap().unwrap();
        let last = std::str::from_utf8(&last).unwrap();
        assert_eq!(last_code(last), "upstream_timeout");
        assert!(next_data(&mut body).await.is_none());
    })
    .await;
    let (_upstream, gateway) = stalled_after(REQUEST_TIME, half()).await;
    chat_over_http2(&gateway, "null", WHOLE, async |response| {
        let mut body = response.into_body();
        assert!(next_data(&mut body).await.unwrap().is_ok());
        assert!(next_data(&mut body).await.unwrap().is_err());
    })
    .await;
}

#[tokio::test]
async fn the_request_timeout_applies_to_a_client_that_does_not_read() {
    let mut response = b"HTTP/1.1 200 OK\r\ncontent-length: 50000000\r\n\r\n".to_vec();
    response.resize(response.len() + 50_000_000, b' ');
    let (_upstream, gateway) = stalled_after(REQUEST_TIME, response).await;
    let mut client = gateway.client().await;
    client.write(&chat(WHOLE)).await;
    let gone = "fastllm_request_outcomes_total{outcome=\"client_gone\"}";
    gateway
        .until("the end of the request", async || {
            gateway.metric(gone).await > 0.5
        })
        .await;
    assert!(!client.reply().await.complete);
}

#[tokio::test]
async fn a_sufficient_timeout_changes_nothing() {
    let barrier = Barrier::new();
    let script = vec![
        Step::Send(events(&[EVENT], false)),
        Step::Wait(barrier.clone()),
        Step::Send(format!("{:x}\r\n{DONE}\r\n0\r\n\r\n", DONE.len()).into_bytes()),
    ];
    let upstream = Upstream::start([script]).await;
    let flags = Options::flags(&["--request-timeout=60", "--stream-idle-timeout=60"]);
    let gateway = TestGateway::start_with(&[&upstream], flags).await;
    let mut client = gateway.client().await;
    client.write(&chat(STREAMED)).await;
    client.head().await;
    client.until(EVENT).await;
    barrier.cancel();
    client.until(DONE).await;
    assert_eq!(client.chunk().await, Some(Vec::new()));
}

#[tokio::test]
async fn a_stream_that_stalls_ends_with_an_error_event() {
    let (upstream, gateway) = stalled_after(SILENCE, events(&[EVENT, "data: {\"ha"], false)).await;
    let reply = gateway.chat(STREAMED).await;
    assert!(reply.complete && reply.text().starts_with(EVENT));
    assert_eq!(last_code(&reply.text()), "upstream_stalled");
    until_given_up(&upstream).await;
    let outcome = "fastllm_request_outcomes_total{outcome=\"upstream_error\"}";
    assert!((gateway.metric(outcome).await - 1.0).abs() < 0.5);
}

#[tokio::test]
async fn a_request_body_that_stalls_is_408() {
    for flag in ["--body-timeout=1", "--body-total-timeout=1", REQUEST_TIME] {
        let gateway = TestGateway::start_with(&[], Options::flags(&[flag])).await;
        let mut client = gateway.client().await;
        let head = format!(
            "POST /v1/chat/completions HTTP/1.1\r\nhost: g\r\nx-api-key: {KEY}\r\n\
content-length: 50\r\n\r\n{{\"model\":"
        );
        let reply = client.send(head.as_bytes()).await;
        assert_eq!((reply.status, &*reply.error().2), (408, "request_timeout"));
    }
}

/// The bytes of a body that arrive one by one, without an end.
async fn drip(gateway: &TestGateway, head: &str) -> String {
    let mut stream = TcpStream::connect(gateway.address).await.unwrap();
    stream.write_all(head.as_bytes()).await.unwrap();
    let mut pace = interval(Duration::from_millis(100));
    let mut response = Vec::new();
    let dripped = async {
        while !response.ends_with(b"}") {
            tokio::select! {
                read = stream.read_buf(&mut response) => assert!(read.unwrap() > 0),
                _ = pace.tick() => stream.write_all(b"1\r\n \r\n").await.unwrap(),
            }
        }
    };
    soon("the end of the request", dripped).await;
    String::from_utf8(response).unwrap()
}

#[tokio::test]
async fn a_request_body_that_drips_is_408() {
    let flags = Options::flags(&["--body-total-timeout=1"]);
    let gateway = TestGateway::start_with(&[], flags).await;
    let response = drip(
        &gateway,
        &format!(
            "POST /v1/chat/completions HTTP/1.1\r\nhost: g\r\nx-api-key: {KEY}\r\n\
transfer-encoding: chunked\r\n\r\n"
        ),
    )
    .await;
    assert!(response.starts_with("HTTP/1.1 408 "), "{response}");
    assert!(response.contains("\"request_timeout\""), "{response}");
}

#[tokio::test]
async fn an_upload_that_drips_is_408_and_is_aborted_upstream() {
    let form = "--b\r\ncontent-disposition: form-data; name=\"model\"\r\n\r\nsmall\r\n--b\r\n\
content-disposition: form-data; name=\"file\"; filename=\"a\"\r\n\r\n";
    let mut upstream = ManualUpstream::start().await;
    let flags = Options::flags(&["--body-total-timeout=1"]);
    let gateway = TestGateway::serving(&content(&[upstream.api_base("/v1")]), flags).await;
    let head = format!(
        "POST /v1/audio/transcriptions HTTP/1.1\r\nhost: g\r\nx-api-key: {KEY}\r\n\
content-type: multipart/form-data; boundary=b\r\ntransfer-encoding: chunked\r\n\r\n\
{:x}\r\n{form}\r\n",
        form.len()
    );
    let (response, received) = tokio::join!(drip(&gateway, &head), async {
        let mut exchange = upstream.next().await;
        exchange.until_disconnect().await
    });
    assert!(response.starts_with("HTTP/1.1 408 "), "{response}");
    let received = String::from_utf8(received).unwrap();
    assert!(!received.ends_with("0\r\n\r\n"), "{received}");
    let events = gateway.finish().await;
    assert!(
        events.iter().all(|event| event.status != Some(200)),
        "{events:?}"
    );
}

/// Reads a little at a time, more slowly than the timeout permits.
#[tokio::test]
async fn a_response_that_is_read_too_slowly_is_aborted() {
    let mut response = b"HTTP/1.1 200 OK\r\ncontent-length: 50000000\r\n\r\n".to_vec();
    response.resize(response.len() + 50_000_000, b' ');
    let (_upstream, gateway) = stalled_after("--send-timeout=2", response).await;
    let socket = TcpSocket::new_v4().unwrap();
    socket.set_recv_buffer_size(8 << 10).unwrap();
    let mut stream = socket.connect(gateway.address).await.unwrap();
    stream.write_all(&chat(WHOLE)).await.unwrap();
    let mut pace = interval(Duration::from_millis(100));
    let mut part = [0; 2 << 10];
    let reading = async {
        loop {
            pace.tick().await;
            match stream.read(&mut part).await {
                Ok(read) if read > 0 => {}
                _ => return,
            }
        }
    };
    soon("the end of the response", reading).await;
    assert_eq!(gateway.finish().await[0].status, Some(499));
}

#[tokio::test]
async fn a_missing_request_head_closes_the_connection() {
    let gateway = TestGateway::start_with(&[], Options::flags(&["--header-timeout=1"])).await;
    let mut idle = gateway.client().await;
    assert_eq!(idle.send(&get("/livez", "")).await.status, 200);
    let mut silent = gateway.client().await;
    let mut half = gateway.client().await;
    half.write(b"GET /livez HTTP/1.1\r\nhost").await;
    let mut preface = gateway.client().await;
    preface.write(b"PRI * HTTP/2.0\r\n").await;
    for client in [&mut idle, &mut silent, &mut half, &mut preface] {
        assert!(client.is_closed().await);
    }
}

#[tokio::test]
async fn an_idle_http2_connection_is_closed() {
    let gateway = TestGateway::start_with(&[], Options::flags(&["--header-timeout=1"])).await;
    let stream = tokio::net::TcpStream::connect(gateway.address)
        .await
        .unwrap();
    let (mut client, connection) = h2::client::handshake(stream).await.unwrap();
    let asking = async {
        let request = http::Request::get("http://g/livez").body(()).unwrap();
        let (response, _) = client.send_request(request, true).unwrap();
        assert_eq!(response.await.unwrap().status(), 200);
    };
    let ended = async { tokio::join!(connection, asking).0 };
    crate::support::soon("the end of the connection", ended)
        .await
        .unwrap();
}

#[tokio::test]
async fn the_number_of_connections_is_limited() {
    let upstream = Upstream::start([raw(events(&[EVENT, DONE], true))]).await;
    let flags = Options::flags(&["--max-connections=1"]);
    let gateway = TestGateway::start_with(&[&upstream], flags).await;
    let mut first = gateway.client().await;
    first.send(&get("/livez", "")).await;
    let mut second = Client::connect(gateway.address).await;
    second.write(&chat(STREAMED)).await;
    for _ in 0..20 {
        let metrics = first.send(&get("/metrics", "")).await.text();
        assert!(metrics.contains("fastllm_client_connections 1\n"));
    }
    assert!(upstream.seen().requests.is_empty());
    drop(first);
    assert_eq!(second.reply().await.status, 200);
}
