//! Reuse of upstream connections, and requests that are sent again.
//!
//! Each thread of the gateway has its own upstream connections, so the requests of
//! a case are sent on one client connection.

use crate::client::{Http1, TestProtocol};
use crate::support::{Barrier, Options, Step, TestGateway, Upstream, chat, json_response, raw};

const BODY: &str = "{\"model\":\"small\"}";

fn response(fields: &str, body: &str) -> Vec<u8> {
    let length = body.len();
    format!("HTTP/1.1 200 OK\r\n{fields}content-length: {length}\r\n\r\n{body}").into_bytes()
}

/// Sends one request for each of these bodies on one connection, and checks the
/// responses. Returns the numbers of upstream connections and requests.
async fn exchange_all<P: TestProtocol>(upstream: &Upstream, bodies: &[&str]) -> (usize, usize) {
    // Incomplete responses reach the client.
    let options = Options::flags(&["--response-buffer-bytes=0"]);
    let gateway = TestGateway::start_with(&[upstream], options).await;
    let mut client = P::connect(gateway.address).await;
    for body in bodies {
        client.send_chat(BODY).await;
        let response = client.receive_response(|_| ()).await;
        let text = String::from_utf8(response.body).unwrap();
        assert_eq!((response.head.unwrap().status, text.as_str()), (200, *body));
        assert!(response.complete);
    }
    drop(client);
    let seen = upstream.seen();
    assert_eq!(gateway.finish().await.len(), bodies.len());
    (seen.connections, seen.requests.len())
}

/// Checks that the request after this first response receives its own response, on
/// another connection.
async fn assert_not_reused(first: Vec<Step>) {
    let second = json_response("200 OK", "{\"n\":2}");
    let upstream = Upstream::start([first, second]).await;
    let seen = exchange_all::<Http1>(&upstream, &["{\"n\":1}", "{\"n\":2}", "{\"n\":2}"]).await;
    assert_eq!(seen, (2, 3));
}

#[tokio::test]
async fn a_connection_is_reused_after_a_complete_response() {
    let chunked = "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n";
    let none = response("", "");
    let upstream = Upstream::start([raw(chunked), raw(none), json_response("200 OK", "{}")]).await;
    let seen = exchange_all::<Http1>(&upstream, &["{}", "", "{}", "{}"]).await;
    assert_eq!(seen, (1, 4));
}

#[tokio::test]
async fn a_connection_is_not_reused_after_connection_close() {
    // The connection stays open; only the header field counts.
    assert_not_reused(raw(response("connection: close\r\n", "{\"n\":1}"))).await;
    assert_not_reused(raw(response("Connection: x, CLOSE\r\n", "{\"n\":1}"))).await;
}

#[tokio::test]
async fn an_http_1_0_connection_without_keep_alive_is_not_reused() {
    assert_not_reused(raw("HTTP/1.0 200 OK\r\ncontent-length: 7\r\n\r\n{\"n\":1}")).await;
}

#[tokio::test]
async fn bytes_after_a_response_are_discarded() {
    for extra in [response("", "{\"n\":666}"), b"\r\n".to_vec(), b"x".to_vec()] {
        let mut bytes = response("", "{\"n\":1}");
        bytes.extend(extra);
        assert_not_reused(raw(bytes)).await;
    }
}

#[tokio::test]
async fn bytes_after_the_last_chunk_are_discarded() {
    let mut bytes = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n\
7\r\n{\"n\":1}\r\n0\r\n\r\n"
        .to_vec();
    bytes.extend(response("", "{\"n\":666}"));
    assert_not_reused(raw(bytes)).await;
}

#[tokio::test]
async fn bytes_received_on_an_idle_connection_are_discarded() {
    let late = Barrier::new();
    let first = vec![
        Step::Send(response("", "{\"n\":1}")),
        Step::Wait(late.clone()),
        Step::Flood {
            most: 1,
            part: response("", "{\"n\":666}"),
        },
        Step::UntilDisconnect,
    ];
    let upstream = Upstream::start([first, json_response("200 OK", "{\"n\":2}")]).await;
    let gateway = TestGateway::start(&[&upstream]).await;
    let mut client = gateway.client().await;
    assert_eq!(client.send(&chat(BODY)).await.text(), "{\"n\":1}");
    late.cancel();
    upstream
        .wait_for("the late bytes", |seen| seen.flooded > 0)
        .await;
    assert_eq!(client.send(&chat(BODY)).await.text(), "{\"n\":2}");
    upstream
        .wait_for("the connection to be dropped", |seen| seen.disconnects == 1)
        .await;
    assert_eq!(upstream.seen().connections, 2);
}

#[tokio::test]
async fn a_connection_is_not_reused_after_204_with_a_length() {
    let first = raw("HTTP/1.1 204 No Content\r\ncontent-length: 5\r\n\r\n");
    let upstream = Upstream::start([first, json_response("200 OK", "{\"n\":2}")]).await;
    let gateway = TestGateway::start(&[&upstream]).await;
    let mut client = gateway.client().await;
    assert_eq!(client.send(&chat(BODY)).await.status, 204);
    assert_eq!(client.send(&chat(BODY)).await.text(), "{\"n\":2}");
    assert_eq!(upstream.seen().connections, 2);
}

#[tokio::test]
async fn an_early_response_does_not_mix_with_the_next() {
    let barrier = Barrier::new();
    let mut first = json_response("413 X", "{\"n\":1}");
    first.push(Step::Wait(barrier.clone()));
    let upstream = Upstream::start_hasty([first, json_response("200 OK", "{\"n\":2}")]).await;
    let gateway = TestGateway::start(&[&upstream]).await;
    let mut client = gateway.client().await;
    // More than the socket buffers, so that it cannot be sent completely.
    let large = format!(
        "{{\"model\":\"small\",\"pad\":\"{}\"}}",
        "x".repeat(24 << 20)
    );
    let reply = client.send(&chat(&large)).await;
    assert_eq!((reply.status, reply.text().as_str()), (413, "{\"n\":1}"));
    assert!(reply.complete);
    barrier.cancel();
    assert_eq!(client.send(&chat(BODY)).await.text(), "{\"n\":2}");
    let events = gateway.finish().await;
    assert_eq!((events.len(), events[0].status), (2, Some(413)));
}

/// An upstream that closes or resets its idle connection when a second request
/// arrives, before it has sent a byte of the response.
async fn fails_when_reused(end: Step, later: Vec<Step>) -> (Upstream, u16) {
    let first = json_response("200 OK", "{}");
    let upstream = Upstream::start([first, vec![end], later]).await;
    let gateway = TestGateway::start(&[&upstream]).await;
    let mut client = gateway.client().await;
    assert_eq!(client.send(&chat(BODY)).await.status, 200);
    let status = client.send(&chat(BODY)).await.status;
    assert_eq!(gateway.finish().await.len(), 2);
    (upstream, status)
}

#[tokio::test]
async fn a_request_on_a_closed_idle_connection_is_retried_once() {
    for end in [Step::Close, Step::Reset] {
        let (upstream, status) =
            fails_when_reused(end.clone(), json_response("200 OK", "{}")).await;
        assert_eq!(status, 200, "{end:?}");
        let seen = upstream.seen();
        assert_eq!((seen.connections, seen.requests.len()), (2, 3), "{end:?}");
    }
}

#[tokio::test]
async fn a_request_is_not_retried_more_than_once() {
    for end in [Step::Close, Step::Reset] {
        let (upstream, status) = fails_when_reused(end.clone(), vec![end.clone()]).await;
        assert_eq!(status, 502, "{end:?}");
        let seen = upstream.seen();
        assert_eq!((seen.connections, seen.requests.len()), (2, 3), "{end:?}");
    }
}

#[tokio::test]
async fn a_request_is_not_retried_after_its_response_began() {
    let first = json_response("200 OK", "{}");
    for begun in [
        &b"H"[..],
        b"HTTP/1.1 103 Early Hints\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n",
    ] {
        let broken = vec![Step::Send(begun.to_vec()), Step::Close];
        let upstream = Upstream::start([first.clone(), broken, first.clone()]).await;
        let gateway = TestGateway::start(&[&upstream]).await;
        let mut client = gateway.client().await;
        assert_eq!(client.send(&chat(BODY)).await.status, 200);
        assert_eq!(client.send(&chat(BODY)).await.status, 502);
        let seen = upstream.seen();
        assert_eq!((seen.connections, seen.requests.len()), (1, 2));
    }
}

#[tokio::test]
async fn bytes_after_a_discarded_response_are_discarded() {
    let mut first = b"HTTP/1.1 503 X\r\ncontent-length: 0\r\n\r\n".to_vec();
    first.extend(response("", "{\"n\":666}"));
    let busy = raw("HTTP/1.1 503 X\r\ncontent-length: 0\r\nconnection: close\r\n\r\n");
    let third = json_response("200 OK", "{\"n\":3}");
    let upstream = Upstream::start([raw(first), busy.clone(), third]).await;
    let other = Upstream::start([busy]).await;
    let gateway = TestGateway::start(&[&upstream, &other]).await;
    let mut client = gateway.client().await;
    // Both backends are tried, and the second response replaces the first.
    loop {
        let reply = client.send(&chat(BODY)).await;
        if reply.status == 200 {
            assert_eq!(reply.text(), "{\"n\":3}");
            break;
        }
        assert_eq!(reply.status, 503);
    }
    assert_eq!(upstream.seen().connections, 3);
}

/// A streamed response of these events whose length covers only the first one.
/// The other events follow in the same write, or later.
fn shortened_stream(events: &[&str], at_once: bool) -> Vec<Step> {
    let (first, rest) = events.split_first().unwrap();
    let head = format!(
        "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-length: {}\r\n\r\n{first}",
        first.len()
    );
    if at_once {
        return raw(head + &rest.concat());
    }
    let mut script = raw(head);
    script.push(Step::Trickle(rest.concat().into_bytes()));
    script
}

/// Sends a request that receives this first response, then others, which must
/// receive their own.
async fn assert_isolated(request: &str, first: Vec<Step>) {
    let whole = json_response("200 OK", "{\"n\":2}");
    let upstream = Upstream::start([first, whole]).await;
    let gateway = TestGateway::start(&[&upstream]).await;
    let mut client = Http1::connect(gateway.address).await;
    client.send_chat(request).await;
    client.receive_response(|_| ()).await;
    for _ in 0..3 {
        client.send_chat(BODY).await;
        let response = client.receive_response(|_| ()).await;
        assert_eq!(response.head.unwrap().status, 200);
        assert_eq!(response.body, b"{\"n\":2}");
    }
    let seen = upstream.seen();
    assert_eq!((seen.connections, seen.requests.len()), (2, 4));
}

#[tokio::test]
async fn a_stream_that_is_longer_than_its_length_does_not_mix_with_the_next_response() {
    let event = "data: {\"choices\":[{\"delta\":{\"content\":\"a\"}}]}\n\n";
    let done = "data: [DONE]\n\n";
    for at_once in [true, false] {
        let script = shortened_stream(&[event, event, event, done], at_once);
        assert_isolated("{\"model\":\"small\",\"stream\":true}", script).await;
    }
}

#[tokio::test]
async fn a_connection_is_not_reused_after_a_stream_without_its_end() {
    let event = "data: {\"choices\":[{\"delta\":{\"content\":\"a\"}}]}\n\n";
    let cut = shortened_stream(&[event], true);
    let chunked = raw(crate::support::events(&[event], true));
    for first in [cut, chunked] {
        let upstream = Upstream::start([first, json_response("200 OK", "{}")]).await;
        let gateway = TestGateway::start(&[&upstream]).await;
        let mut client = Http1::connect(gateway.address).await;
        for request in ["{\"model\":\"small\",\"stream\":true}", BODY] {
            client.send_chat(request).await;
            let response = client.receive_response(|_| ()).await;
            assert_eq!(response.head.unwrap().status, 200);
        }
        assert_eq!(upstream.seen().connections, 2);
    }
}

#[tokio::test]
async fn a_connection_is_not_reused_after_json_without_its_end() {
    let cut = json_response("200 OK", "{\"n\":1");
    let rest = b"}, \"more\": {}}".to_vec();
    let mut late = cut.clone();
    late.push(Step::Trickle(rest));
    for first in [cut, late] {
        let upstream = Upstream::start([first, json_response("200 OK", "{\"n\":2}")]).await;
        let bodies = ["{\"n\":1", "{\"n\":2}", "{\"n\":2}"];
        let seen = exchange_all::<Http1>(&upstream, &bodies).await;
        assert_eq!(seen, (2, 3));
    }
}

#[tokio::test]
async fn a_connection_is_not_reused_after_304_with_a_length() {
    let first = raw("HTTP/1.1 304 X\r\ncontent-length: 5\r\n\r\n");
    let upstream = Upstream::start([first, json_response("200 OK", "{\"n\":2}")]).await;
    let gateway = TestGateway::start(&[&upstream]).await;
    let mut client = gateway.client().await;
    // No client gets it, since the gateway sends no conditional requests.
    let rejected = client.send(&chat(BODY)).await;
    assert_eq!(rejected.error().2, "upstream_misconfigured");
    assert_eq!(client.send(&chat(BODY)).await.text(), "{\"n\":2}");
    assert_eq!(upstream.seen().connections, 2);
}

#[tokio::test]
async fn bytes_of_no_response_on_a_reused_connection_are_not_the_response() {
    let first = json_response("200 OK", "{}");
    for garbage in [
        "data: {\"choices\":[]}\n\n",
        "\r\n",
        "}",
        "HTTP/1.1 408 Request Timeout\r\ncontent-length: 0\r\nconnection: close\r\n\r\n",
    ] {
        let scripts = [
            first.clone(),
            raw(garbage),
            json_response("200 OK", "{\"n\":2}"),
        ];
        let upstream = Upstream::start(scripts).await;
        let seen = exchange_all::<Http1>(&upstream, &["{}", "{\"n\":2}", "{\"n\":2}"]).await;
        assert_eq!(seen, (2, 4), "{garbage:?}");
    }
}

#[tokio::test]
async fn bytes_of_no_response_on_a_new_connection_are_a_failure() {
    for (garbage, status) in [
        ("data: {}\n\n", 502),
        ("HTTP/1.1 103 X\r\ncontent-length: 2\r\n\r\nok", 502),
        (
            "HTTP/1.1 408 X\r\ncontent-length: 0\r\nconnection: close\r\n\r\n",
            408,
        ),
    ] {
        let upstream = Upstream::start([raw(garbage)]).await;
        let gateway = TestGateway::start(&[&upstream]).await;
        assert_eq!(gateway.chat(BODY).await.status, status, "{garbage:?}");
        assert_eq!(upstream.seen().requests.len(), 1, "{garbage:?}");
    }
}
