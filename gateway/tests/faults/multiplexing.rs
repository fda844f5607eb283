//! Features of HTTP/2 only: concurrent requests on one connection, cancelled
//! requests, flow control windows, GOAWAY.

use bytes::Bytes;
use h2::Reason;
use h2::client::Builder;
use http::Request;

use crate::case::{DONE, JSON, ONE, STREAMED, WHOLE};
use crate::client::{ResponsePart, TestProtocol};
use crate::http2::{Http2, chat_head};
use crate::support::{
    Barrier, KEY, Options, Step, TestGateway, Upstream, events, json_response, soon,
};

/// Sends one event, and the end once the barrier is open.
fn gated(barrier: &Barrier) -> Vec<Step> {
    let end = events(&[DONE], true);
    let body = end.windows(4).position(|four| four == b"\r\n\r\n").unwrap();
    vec![
        Step::Send(events(&[ONE], false)),
        Step::Wait(barrier.clone()),
        Step::Send(end[body + 4..].to_vec()),
    ]
}

/// Another request on the same connection.
async fn on_same_connection(client: &Http2, address: std::net::SocketAddr) -> Http2 {
    let mut other = Http2::connect(address).await;
    other.requests = client.requests.clone();
    other
}

#[tokio::test]
async fn concurrent_requests_do_not_wait_for_a_slow_one() {
    let barrier = Barrier::new();
    let upstream = Upstream::start([gated(&barrier), json_response("200 OK", JSON)]).await;
    let gateway = TestGateway::start(&[&upstream]).await;
    let mut slow = Http2::connect(gateway.address).await;
    slow.send_chat(STREAMED).await;
    assert_eq!(slow.head().await.unwrap().status, 200);
    assert_eq!(slow.until(ONE.len()).await, ONE.as_bytes());
    let mut quick = Vec::new();
    for _ in 0..100 {
        let mut one = on_same_connection(&slow, gateway.address).await;
        one.send_chat(WHOLE).await;
        quick.push(one);
    }
    for mut one in quick {
        let response = one.receive_response(|_| ()).await;
        assert!(response.complete && response.body == JSON.as_bytes());
    }
    barrier.cancel();
    let rest = slow.until(DONE.len()).await;
    assert_eq!(rest, DONE.as_bytes());
    assert_eq!(slow.part().await, ResponsePart::End);
    drop(slow);
    assert_eq!(gateway.finish().await.len(), 101);
}

#[tokio::test]
async fn a_cancelled_request_does_not_affect_the_others() {
    let barrier = Barrier::new();
    let stuck = vec![Step::Send(events(&[ONE], false)), Step::UntilDisconnect];
    let upstream = Upstream::start([stuck, gated(&barrier)]).await;
    let gateway = TestGateway::start(&[&upstream]).await;
    let mut first = Http2::connect(gateway.address).await;
    first.send_chat(STREAMED).await;
    first.head().await.unwrap();
    let mut second = on_same_connection(&first, gateway.address).await;
    second.send_chat(STREAMED).await;
    second.head().await.unwrap();
    first.cancel();
    upstream
        .wait_for("the upstream connection to be closed", |seen| {
            seen.disconnects == 1
        })
        .await;
    barrier.cancel();
    let response = second.until(ONE.len() + DONE.len()).await;
    assert_eq!(response, [ONE, DONE].concat().as_bytes());
    assert_eq!(second.part().await, ResponsePart::End);
    let events = gateway.finish().await;
    let mut statuses: Vec<_> = events.iter().filter_map(|event| event.status).collect();
    statuses.sort_unstable();
    assert_eq!(statuses, [200, 499]);
}

#[tokio::test]
async fn a_request_cancelled_before_it_is_complete_is_not_counted() {
    let upstream = Upstream::start([json_response("200 OK", JSON)]).await;
    let gateway = TestGateway::start(&[&upstream]).await;
    let mut client = Http2::connect(gateway.address).await;
    for part in ["", "{\"model\":"] {
        client.begin(chat_head(), false).await;
        assert!(client.send(part.into(), false).await);
        client.cancel();
    }
    assert!(client.is_in_order().await);
    assert!(gateway.finish().await.is_empty());
    assert!(upstream.seen().requests.is_empty());
}

#[tokio::test]
async fn requests_in_flight_finish_at_shutdown() {
    let barrier = Barrier::new();
    let upstream = Upstream::start([gated(&barrier)]).await;
    let gateway = TestGateway::start(&[&upstream]).await;
    let mut client = Http2::connect(gateway.address).await;
    client.send_chat(STREAMED).await;
    client.head().await.unwrap();
    client.until(ONE.len()).await;
    let mut idle = Http2::connect(gateway.address).await;
    assert!(idle.is_in_order().await);
    gateway.stop();
    idle.ended().await.unwrap();
    barrier.cancel();
    client.until(DONE.len()).await;
    assert_eq!(client.part().await, ResponsePart::End);
    client.ended().await.unwrap();
    assert_eq!(gateway.finish().await[0].status, Some(200));
}

#[tokio::test]
async fn an_unfinished_request_is_aborted_and_accounted_for_at_shutdown() {
    let stuck = vec![Step::Send(events(&[ONE], false)), Step::UntilDisconnect];
    for _ in 0..5 {
        let upstream = Upstream::start([stuck.clone()]).await;
        let flags = Options::flags(&["--shutdown-grace=1"]);
        let gateway = TestGateway::start_with(&[&upstream], flags).await;
        let mut client = Http2::connect(gateway.address).await;
        let mut all = Vec::new();
        for _ in 0..20 {
            let mut one = on_same_connection(&client, gateway.address).await;
            one.send_chat(STREAMED).await;
            one.head().await.unwrap();
            all.push(one);
        }
        client.send_chat(STREAMED).await;
        client.head().await.unwrap();
        let events = gateway.finish().await;
        assert_eq!(events.len(), 21);
        assert!(events.iter().all(|event| event.status == Some(499)));
    }
}

#[tokio::test]
async fn an_oversized_head_is_431() {
    let upstream = Upstream::start([json_response("200 OK", JSON)]).await;
    let gateway = TestGateway::start(&[&upstream]).await;
    let mut many = Request::get("http://gateway/livez");
    for n in 0..200 {
        many = many.header(format!("x-{n}"), "b");
    }
    let long = Request::get("http://gateway/livez").header("x-long", "x".repeat(70 << 10));
    for head in [many, long] {
        let mut client = Http2::connect(gateway.address).await;
        client.begin(head.body(()).unwrap(), true).await;
        let response = client.receive_response(|_| ()).await;
        assert_eq!(response.head.unwrap().status, 431);
        assert!(client.is_in_order().await);
    }
}

#[tokio::test]
async fn an_oversized_body_is_rejected_while_it_is_received() {
    let upstream = Upstream::start([json_response("200 OK", JSON)]).await;
    let gateway = TestGateway::start_with(&[&upstream], Options::flags(&["--max-body-mb=1"])).await;
    let part = Bytes::from(vec![b'x'; 64 << 10]);
    for announced in [None, Some(64 << 20)] {
        let mut client = Http2::connect(gateway.address).await;
        let mut head = chat_head();
        if let Some(length) = announced {
            let length: u64 = length;
            head.headers_mut().insert("content-length", length.into());
        }
        client.begin(head, false).await;
        for _ in 0..128 {
            if !soon(
                "the part to be accepted or rejected",
                client.send(part.clone(), false),
            )
            .await
            {
                break;
            }
        }
        let response = client.receive_response(|_| ()).await;
        assert_eq!(response.head.unwrap().status, 413);
        let text = String::from_utf8(response.body).unwrap();
        assert!(text.contains("payload_too_large"), "{text}");
        assert!(client.is_in_order().await);
    }
    assert!(upstream.seen().requests.is_empty());
    assert!(gateway.finish().await.is_empty());
}

#[tokio::test]
async fn a_body_that_differs_from_its_content_length_is_invalid() {
    let upstream = Upstream::start([json_response("200 OK", JSON)]).await;
    let gateway = TestGateway::start(&[&upstream]).await;
    for length in [WHOLE.len() - 1, WHOLE.len() + 1] {
        let mut client = Http2::connect(gateway.address).await;
        let mut head = chat_head();
        head.headers_mut().insert("content-length", length.into());
        client.begin(head, false).await;
        client.send(WHOLE.into(), true).await;
        let response = client.receive_response(|_| ()).await;
        assert!(response.head.is_none_or(|head| head.status == 400));
    }
    assert!(gateway.finish().await.is_empty());
    assert!(upstream.seen().requests.is_empty());
}

#[tokio::test]
async fn framing_and_hop_by_hop_fields_are_not_forwarded() {
    let upstream = Upstream::start([json_response("200 OK", JSON)]).await;
    let gateway = TestGateway::start(&[&upstream]).await;
    let mut client = Http2::connect(gateway.address).await;
    let head = Request::post("http://gateway/v1/chat/completions")
        .header("authorization", format!("Bearer {KEY}"))
        .header("te", "trailers")
        .header("expect", "100-continue")
        .header("host", "elsewhere")
        .body(())
        .unwrap();
    client.begin(head, false).await;
    assert!(client.send(WHOLE.into(), true).await);
    let response = client.receive_response(|_| ()).await;
    assert!(response.complete && response.body == JSON.as_bytes());
    let request = upstream.request();
    assert_eq!(request.headers("host"), [upstream.address.to_string()]);
    for name in ["te", "expect", "transfer-encoding"] {
        assert_eq!(request.header(name), None);
    }
}

#[tokio::test]
async fn pings_are_answered_while_requests_wait() {
    let stuck = vec![Step::Send(events(&[ONE], false)), Step::UntilDisconnect];
    let upstream = Upstream::start([stuck]).await;
    let gateway = TestGateway::start(&[&upstream]).await;
    let mut client = Http2::connect(gateway.address).await;
    client.send_chat(STREAMED).await;
    client.head().await.unwrap();
    for _ in 0..3 {
        client.ping().await;
    }
    assert!(client.is_in_order().await);
}

#[tokio::test]
async fn a_client_that_only_cancels_requests_is_disconnected() {
    let upstream = Upstream::start([vec![Step::UntilDisconnect]]).await;
    let gateway = TestGateway::start(&[&upstream]).await;
    let mut client = Http2::connect_with(gateway.address, &Builder::new()).await;
    let flood = async {
        loop {
            let Ok(requests) = client.requests.clone().ready().await else {
                return;
            };
            client.requests = requests;
            for _ in 0..50 {
                let Ok((_, mut stream)) = client.requests.send_request(chat_head(), false) else {
                    break;
                };
                stream.send_reset(Reason::CANCEL);
            }
            tokio::task::yield_now().await;
        }
    };
    soon("the gateway to stop reading", flood).await;
    assert_eq!(gateway.get("/livez").await.status, 200);
    assert!(upstream.seen().requests.is_empty());
}
