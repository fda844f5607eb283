//! Client disconnects in every phase and of every kind: the upstream connection is
//! closed at once, and the usage event records it.

use std::time::Duration;

use crate::case::{ONE, STREAMED, USAGE, USED, WHOLE, estimated_tokens};
use crate::client::{Disconnect, Http1, TestProtocol, in_each_protocol};
use crate::counters::{add, counters, finished, until_counted};
use crate::support::{
    Barrier, Client, KEY, Step, TestGateway, Upstream, chat, events, json_response,
};

/// Sends a request, waits until this many bytes of the response have arrived (none:
/// only until the upstream has the request), and disconnects.
async fn disconnects<P: TestProtocol>(
    request: &str,
    before: Vec<u8>,
    at: Option<usize>,
    how: Disconnect,
) -> TestGateway {
    let script = vec![Step::Send(before), Step::UntilDisconnect];
    let upstream = Upstream::start([script]).await;
    let gateway = TestGateway::start(&[&upstream]).await;
    let counted = counters(&gateway).await;
    let mut client = P::connect(gateway.address).await;
    client.send_chat(request).await;
    upstream
        .wait_for("the request", |seen| seen.requests.len() == 1)
        .await;
    if let Some(length) = at {
        assert_eq!(client.head().await.unwrap().status, 200);
        client.until(length).await;
    }
    let left = client.leave(how).await;
    upstream
        .wait_for("the upstream connection to be closed", |seen| {
            seen.disconnects == 1
        })
        .await;
    let mut expected = finished("client_gone");
    let by_model = "fastllm_model_requests_total{model=\"small\"}";
    add(&mut expected, by_model, 1);
    if at.is_some() {
        let class = "fastllm_upstream_status_total{class=\"success\"}";
        add(&mut expected, class, 1);
    }
    until_counted(&gateway, &counted, &expected).await;
    drop(left);
    gateway
}

/// Leaves in each way; every usage event has status 499 and the estimated usage:
/// nothing, or the prompt and this many completion tokens.
async fn disconnects_in_every_way<P: TestProtocol>(
    request: &str,
    before: &[u8],
    at: Option<usize>,
    estimate: Option<u64>,
) {
    for &how in P::WAYS {
        let gateway = disconnects::<P>(request, before.to_vec(), at, how).await;
        let events = gateway.finish().await;
        assert_eq!(events.len(), 1, "{how:?}");
        assert_eq!((events[0].status, events[0].refusal), (Some(499), None));
        assert!(!events[0].usage_reported, "{how:?}");
        assert_eq!(events[0].estimated, estimate.is_some(), "{how:?}");
        let found = (events[0].prompt_tokens.0, events[0].completion_tokens.0);
        let expected = estimate.map(|completion| (estimated_tokens(request), completion));
        assert_eq!(found, expected.unwrap_or_default(), "{how:?}");
        let streamed = at.is_some_and(|length| length > 0) && request == STREAMED;
        assert_eq!(events[0].ttft_ms.is_some(), streamed, "{how:?}");
    }
}

async fn before_the_head_of_a_stream<P: TestProtocol>() {
    disconnects_in_every_way::<P>(STREAMED, b"", None, None).await;
}

async fn before_the_head_of_a_response<P: TestProtocol>() {
    disconnects_in_every_way::<P>(WHOLE, b"", None, Some(0)).await;
}

async fn before_the_first_event<P: TestProtocol>() {
    let begun = events(&[": working\n\n", "data: {\"cho"], false);
    disconnects_in_every_way::<P>(STREAMED, &begun, None, None).await;
}

async fn in_the_middle_of_a_stream<P: TestProtocol>() {
    let begun = events(&[ONE, ONE], false);
    disconnects_in_every_way::<P>(STREAMED, &begun, Some(2 * ONE.len()), Some(2)).await;
}

async fn in_the_middle_of_a_response<P: TestProtocol>() {
    let begun = b"HTTP/1.1 200 OK\r\ncontent-length: 500\r\n\r\n{\"abc\":";
    disconnects_in_every_way::<P>(WHOLE, begun, Some(7), Some(1)).await;
}

async fn after_the_usage_event<P: TestProtocol>() {
    let upstream = Upstream::start([vec![
        Step::Send(events(&[ONE, USAGE, ONE], false)),
        Step::UntilDisconnect,
    ]])
    .await;
    let gateway = TestGateway::start(&[&upstream]).await;
    let mut client = P::connect(gateway.address).await;
    client.send_chat(STREAMED).await;
    client.head().await.unwrap();
    client.until(2 * ONE.len()).await;
    drop(client);
    upstream
        .wait_for("the upstream connection to be closed", |seen| {
            seen.disconnects == 1
        })
        .await;
    let events = gateway.finish().await;
    assert_eq!(events[0].status, Some(499));
    assert!(events[0].usage_reported && !events[0].estimated);
    let found = (events[0].prompt_tokens.0, events[0].completion_tokens.0);
    assert_eq!(found, USED);
}

#[tokio::test]
async fn before_its_request_is_complete() {
    let upstream = Upstream::start([json_response("200 OK", "{}")]).await;
    let gateway = TestGateway::start(&[&upstream]).await;
    let whole = chat(WHOLE);
    let head = whole.len() - WHOLE.len();
    for sent in [0, 10, head - 1, head, head + 5] {
        for &how in Http1::WAYS {
            let mut client = Http1::connect(gateway.address).await;
            client.write(&whole[..sent]).await;
            let left = client.leave(how).await;
            if let Some(mut left) = left {
                // The client receives an error, or nothing.
                let response = left.receive_response(|_| ()).await;
                let status = response.head.map(|head| head.status);
                assert!(matches!(status, None | Some(400 | 408)), "{status:?}");
            }
        }
    }
    // Other clients are not affected by the incomplete request.
    assert_eq!(gateway.chat(WHOLE).await.status, 200);
    let events = gateway.finish().await;
    assert_eq!((events.len(), events[0].status), (1, Some(200)));
    assert_eq!(upstream.seen().requests.len(), 1);
}

#[tokio::test]
async fn with_a_pipelined_request() {
    let upstream = Upstream::start([vec![Step::UntilDisconnect]]).await;
    let gateway = TestGateway::start(&[&upstream]).await;
    let mut client = Client::connect(gateway.address).await;
    client.write(&[chat(WHOLE), chat(STREAMED)].concat()).await;
    upstream
        .wait_for("the request", |seen| seen.requests.len() == 1)
        .await;
    drop(client);
    upstream
        .wait_for("the upstream connection to be closed", |seen| {
            seen.disconnects == 1
        })
        .await;
    let events = gateway.finish().await;
    // The second request was never started.
    assert_eq!((events.len(), events[0].status), (1, Some(499)));
    assert_eq!(upstream.seen().requests.len(), 1);
}

#[tokio::test]
async fn behind_more_pipelined_bytes_than_are_kept() {
    // A body that fits the first part, requests, and bytes that are none.
    let large = format!(
        "{{\"model\":\"small\",\"pad\":\"{}\"}}",
        "x".repeat(60 << 10)
    );
    for (part, count) in [
        (chat(&large), 1),
        (chat(&large), 2),
        (chat(WHOLE), 600),
        (vec![b'x'; 1 << 20], 8),
    ] {
        for &how in Http1::WAYS {
            let upstream = Upstream::start([vec![Step::UntilDisconnect]]).await;
            let gateway = TestGateway::start(&[&upstream]).await;
            let mut client = Http1::connect(gateway.address).await;
            client.write(&chat(WHOLE)).await;
            upstream
                .wait_for("the request", |seen| seen.requests.len() == 1)
                .await;
            let ahead = async {
                for _ in 0..count {
                    client.write(&part).await;
                }
            };
            crate::support::soon("the bytes to be sent", ahead).await;
            let left = client.leave(how).await;
            upstream
                .wait_for("the upstream connection to be closed", |seen| {
                    seen.disconnects == 1
                })
                .await;
            let events = gateway.finish().await;
            assert_eq!((events.len(), events[0].status), (1, Some(499)));
            assert_eq!(upstream.seen().requests.len(), 1);
            drop(left);
        }
    }
}

#[tokio::test]
async fn too_many_pipelined_bytes_close_the_connection_after_the_response() {
    let barrier = Barrier::new();
    let mut script = vec![Step::Wait(barrier.clone())];
    script.extend(json_response("200 OK", "{}"));
    let upstream = Upstream::start([script]).await;
    let gateway = TestGateway::start(&[&upstream]).await;
    let mut client = Client::connect(gateway.address).await;
    client.write(&chat(WHOLE)).await;
    // More than the buffers of both sockets.
    let ahead = chat(WHOLE).repeat(60_000);
    crate::support::soon("the bytes to be sent", client.write(&ahead)).await;
    barrier.cancel();
    let reply = client.reply().await;
    assert_eq!((reply.status, reply.text().as_str()), (200, "{}"));
    assert_eq!(reply.header("connection"), Some("close"));
    assert!(client.is_closed().await);
    // The requests behind it were not executed.
    let events = gateway.finish().await;
    assert_eq!((events.len(), events[0].status), (1, Some(200)));
    assert_eq!(upstream.seen().requests.len(), 1);
}

#[tokio::test]
async fn during_the_back_off_before_a_retry() {
    let busy = "HTTP/1.1 503 X\r\nretry-after: 4\r\ncontent-length: 2\r\n\r\n{}";
    let upstream =
        Upstream::start([crate::support::raw(busy), json_response("200 OK", "{}")]).await;
    let gateway = TestGateway::start(&[&upstream]).await;
    let mut client = Client::connect(gateway.address).await;
    client.write(&chat(WHOLE)).await;
    upstream
        .wait_for("the request", |seen| seen.requests.len() == 1)
        .await;
    drop(client);
    let gone = "fastllm_request_outcomes_total{outcome=\"client_gone\"}";
    let missed = gateway.until("the disconnect to be noticed", async || {
        gateway.metric(gone).await > 0.5
    });
    // Well before the request would be retried.
    let soon = tokio::time::timeout(Duration::from_secs(3), missed).await;
    assert!(soon.is_ok(), "the back-off was not interrupted");
    let events = gateway.finish().await;
    assert_eq!((events.len(), events[0].status), (1, Some(499)));
    // No request was in flight at the upstream.
    assert!(!events[0].estimated);
    assert_eq!(upstream.seen().requests.len(), 1);
}

#[tokio::test]
async fn an_incomplete_body_on_a_half_closed_connection_is_not_awaited() {
    let upstream = Upstream::start([json_response("200 OK", "{}")]).await;
    let gateway = TestGateway::start(&[&upstream]).await;
    let mut client = Client::connect(gateway.address).await;
    let head = format!(
        "POST /v1/chat/completions HTTP/1.1\r\nhost: g\r\nauthorization: Bearer {KEY}\r\n\
transfer-encoding: chunked\r\n\r\n11\r\n{{\"model\":\"small\"}}\r\n"
    );
    client.write(head.as_bytes()).await;
    client.close_its_side().await;
    // The last chunk is missing, so the request is incomplete.
    crate::support::soon("the end", async { while !client.is_closed().await {} }).await;
    assert!(gateway.finish().await.is_empty());
    assert!(upstream.seen().requests.is_empty());
}

in_each_protocol! {
    before_the_head_of_a_stream,
    before_the_head_of_a_response,
    before_the_first_event,
    in_the_middle_of_a_stream,
    in_the_middle_of_a_response,
    after_the_usage_event,
}
