//! Which upstream connections are used again, and what is sent twice.
//!
//! Each thread of the gateway has connections of its own, so that the requests
//! of a case come on one connection.

use crate::client::{Http1, TestProtocol};
use crate::support::{Barrier, Step, TestGateway, Upstream, chat, json_answer, raw};

const BODY: &str = "{\"model\":\"small\"}";

fn answer(fields: &str, body: &str) -> Vec<u8> {
    let length = body.len();
    format!("HTTP/1.1 200 OK\r\n{fields}content-length: {length}\r\n\r\n{body}").into_bytes()
}

/// Asks once for each of these bodies, on one connection, and wants exactly
/// them. Tells how many connections and requests the upstream saw.
async fn asked<P: TestProtocol>(upstream: &Upstream, bodies: &[&str]) -> (usize, usize) {
    let gateway = TestGateway::start(&[upstream]).await;
    let mut client = P::connect(gateway.address).await;
    for body in bodies {
        client.ask(BODY).await;
        let answer = client.answer(|_| ()).await;
        let text = String::from_utf8(answer.body).unwrap();
        assert_eq!((answer.head.unwrap().status, text.as_str()), (200, *body));
        assert!(answer.complete);
    }
    drop(client);
    let seen = upstream.seen();
    assert_eq!(gateway.finish().await.len(), bodies.len());
    (seen.connections, seen.requests.len())
}

/// After this first answer the next request gets its own, on another
/// connection.
async fn spoils(first: Vec<Step>) {
    let second = json_answer("200 OK", "{\"n\":2}");
    let upstream = Upstream::start([first, second]).await;
    let seen = asked::<Http1>(&upstream, &["{\"n\":1}", "{\"n\":2}", "{\"n\":2}"]).await;
    assert_eq!(seen, (2, 3));
}

#[tokio::test]
async fn a_complete_answer_leaves_the_connection_for_the_next() {
    let chunked = "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n";
    let none = answer("", "");
    let upstream = Upstream::start([raw(chunked), raw(none), json_answer("200 OK", "{}")]).await;
    let seen = asked::<Http1>(&upstream, &["{}", "", "{}", "{}"]).await;
    assert_eq!(seen, (1, 4));
}

#[tokio::test]
async fn one_that_says_close_is_not_used_again() {
    // It stays open: only its word counts.
    spoils(raw(answer("connection: close\r\n", "{\"n\":1}"))).await;
    spoils(raw(answer("Connection: x, CLOSE\r\n", "{\"n\":1}"))).await;
}

#[tokio::test]
async fn one_of_1_0_that_does_not_say_otherwise_is_not_used_again() {
    spoils(raw("HTTP/1.0 200 OK\r\ncontent-length: 7\r\n\r\n{\"n\":1}")).await;
}

#[tokio::test]
async fn bytes_behind_an_answer_are_no_answer() {
    for poison in [answer("", "{\"n\":666}"), b"\r\n".to_vec(), b"x".to_vec()] {
        let mut bytes = answer("", "{\"n\":1}");
        bytes.extend(poison);
        spoils(raw(bytes)).await;
    }
}

#[tokio::test]
async fn bytes_behind_the_last_chunk_are_no_answer() {
    let mut bytes = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n\
7\r\n{\"n\":1}\r\n0\r\n\r\n"
        .to_vec();
    bytes.extend(answer("", "{\"n\":666}"));
    spoils(raw(bytes)).await;
}

#[tokio::test]
async fn bytes_that_come_while_a_connection_is_idle_are_no_answer() {
    let late = Barrier::new();
    let first = vec![
        Step::Send(answer("", "{\"n\":1}")),
        Step::Wait(late.clone()),
        Step::Flood {
            most: 1,
            part: answer("", "{\"n\":666}"),
        },
        Step::UntilHangUp,
    ];
    let upstream = Upstream::start([first, json_answer("200 OK", "{\"n\":2}")]).await;
    let gateway = TestGateway::start(&[&upstream]).await;
    let mut client = gateway.client().await;
    assert_eq!(client.ask(&chat(BODY)).await.text(), "{\"n\":1}");
    late.cancel();
    upstream
        .wait_for("the late bytes", |seen| seen.flooded > 0)
        .await;
    assert_eq!(client.ask(&chat(BODY)).await.text(), "{\"n\":2}");
    upstream
        .wait_for("the connection to be dropped", |seen| seen.hang_ups == 1)
        .await;
    assert_eq!(upstream.seen().connections, 2);
}

#[tokio::test]
async fn no_content_with_a_length_is_not_trusted_further() {
    let first = raw("HTTP/1.1 204 No Content\r\ncontent-length: 5\r\n\r\n");
    let upstream = Upstream::start([first, json_answer("200 OK", "{\"n\":2}")]).await;
    let gateway = TestGateway::start(&[&upstream]).await;
    let mut client = gateway.client().await;
    assert_eq!(client.ask(&chat(BODY)).await.status, 204);
    assert_eq!(client.ask(&chat(BODY)).await.text(), "{\"n\":2}");
    assert_eq!(upstream.seen().connections, 2);
}

#[tokio::test]
async fn an_answer_before_the_request_was_read_does_not_mix_with_the_next() {
    let barrier = Barrier::new();
    let mut first = json_answer("413 X", "{\"n\":1}");
    first.push(Step::Wait(barrier.clone()));
    let upstream = Upstream::start_hasty([first, json_answer("200 OK", "{\"n\":2}")]).await;
    let gateway = TestGateway::start(&[&upstream]).await;
    let mut client = gateway.client().await;
    // More than sockets hold, so that it cannot all be sent.
    let large = format!(
        "{{\"model\":\"small\",\"pad\":\"{}\"}}",
        "x".repeat(24 << 20)
    );
    let reply = client.ask(&chat(&large)).await;
    assert_eq!((reply.status, reply.text().as_str()), (413, "{\"n\":1}"));
    assert!(reply.complete);
    barrier.cancel();
    assert_eq!(client.ask(&chat(BODY)).await.text(), "{\"n\":2}");
    let events = gateway.finish().await;
    assert_eq!((events.len(), events[0].status), (2, Some(413)));
}

/// An upstream that closes or resets its kept connection when a second request
/// comes, before it has answered a byte of it.
async fn dies(end: Step, later: Vec<Step>) -> (Upstream, u16) {
    let first = json_answer("200 OK", "{}");
    let upstream = Upstream::start([first, vec![end], later]).await;
    let gateway = TestGateway::start(&[&upstream]).await;
    let mut client = gateway.client().await;
    assert_eq!(client.ask(&chat(BODY)).await.status, 200);
    let status = client.ask(&chat(BODY)).await.status;
    assert_eq!(gateway.finish().await.len(), 2);
    (upstream, status)
}

#[tokio::test]
async fn a_request_on_a_connection_that_died_idle_is_sent_once_more() {
    for end in [Step::Close, Step::Reset] {
        let (upstream, status) = dies(end.clone(), json_answer("200 OK", "{}")).await;
        assert_eq!(status, 200, "{end:?}");
        let seen = upstream.seen();
        assert_eq!((seen.connections, seen.requests.len()), (2, 3), "{end:?}");
    }
}

#[tokio::test]
async fn and_not_more_than_once() {
    for end in [Step::Close, Step::Reset] {
        let (upstream, status) = dies(end.clone(), vec![end.clone()]).await;
        assert_eq!(status, 502, "{end:?}");
        let seen = upstream.seen();
        assert_eq!((seen.connections, seen.requests.len()), (2, 3), "{end:?}");
    }
}

#[tokio::test]
async fn and_not_when_its_answer_had_begun() {
    let first = json_answer("200 OK", "{}");
    for begun in [
        &b"H"[..],
        b"HTTP/1.1 103 Early Hints\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n",
    ] {
        let broken = vec![Step::Send(begun.to_vec()), Step::Close];
        let upstream = Upstream::start([first.clone(), broken, first.clone()]).await;
        let gateway = TestGateway::start(&[&upstream]).await;
        let mut client = gateway.client().await;
        assert_eq!(client.ask(&chat(BODY)).await.status, 200);
        assert_eq!(client.ask(&chat(BODY)).await.status, 502);
        let seen = upstream.seen();
        assert_eq!((seen.connections, seen.requests.len()), (1, 2));
    }
}

#[tokio::test]
async fn bytes_behind_an_answer_that_nobody_wanted_are_no_answer() {
    let mut first = b"HTTP/1.1 503 X\r\ncontent-length: 0\r\n\r\n".to_vec();
    first.extend(answer("", "{\"n\":666}"));
    let busy = raw("HTTP/1.1 503 X\r\ncontent-length: 0\r\nconnection: close\r\n\r\n");
    let third = json_answer("200 OK", "{\"n\":3}");
    let upstream = Upstream::start([raw(first), busy.clone(), third]).await;
    let other = Upstream::start([busy]).await;
    let gateway = TestGateway::start(&[&upstream, &other]).await;
    let mut client = gateway.client().await;
    // Both are asked, and the first answer gives way to the second.
    loop {
        let reply = client.ask(&chat(BODY)).await;
        if reply.status == 200 {
            assert_eq!(reply.text(), "{\"n\":3}");
            break;
        }
        assert_eq!(reply.status, 503);
    }
    assert_eq!(upstream.seen().connections, 3);
}
