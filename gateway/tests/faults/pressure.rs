//! Backpressure: endless responses and clients that do not read use bounded memory.

use std::time::Duration;

use tokio::time::timeout;

use crate::case::{HELD, STREAMED, WHOLE};
use crate::client::{ResponseHead, ResponsePart, TestProtocol, in_each_protocol};
use crate::support::{Step, TestGateway, Upstream, soon};

/// Bytes that the upstream offers: more than all buffers can hold.
const OFFERED: usize = 2 * HELD;

/// Time without progress after which a flood counts as stopped.
const STILL: Duration = Duration::from_millis(300);

const EVENT: usize = 8 << 10;

/// An event of [`EVENT`] bytes.
fn event() -> String {
    let frame = "data: {\"choices\":[{\"delta\":\"\",\"finish_reason\":\"stop\"}]}\n\n".len();
    let text = "x".repeat(EVENT - frame);
    format!("data: {{\"choices\":[{{\"delta\":\"{text}\",\"finish_reason\":\"stop\"}}]}}\n\n")
}

/// A stream of [`OFFERED`] bytes, or an endless one.
fn stream(most: usize) -> Vec<Step> {
    let head = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\
transfer-encoding: chunked\r\n\r\n";
    let chunk = format!("{EVENT:x}\r\n{}\r\n", event());
    let parts = most.div_ceil(EVENT);
    vec![
        Step::Send(head.into()),
        Step::Flood {
            most: parts * chunk.len(),
            part: chunk.into_bytes(),
        },
        Step::Send(b"0\r\n\r\n".to_vec()),
    ]
}

/// A response of [`OFFERED`] bytes with its length.
fn whole() -> Vec<Step> {
    let parts = OFFERED.div_ceil(EVENT);
    let head = format!(
        "HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n",
        parts * EVENT
    );
    vec![
        Step::Send(head.into_bytes()),
        Step::Flood {
            most: parts * EVENT,
            part: event().into_bytes(),
        },
    ]
}

/// Waits until the upstream cannot write any more, which must happen.
async fn until_stopped(upstream: &Upstream) {
    upstream
        .wait_for("the flood to begin", |seen| seen.flooded > 0)
        .await;
    let stopped = async {
        loop {
            let before = upstream.seen().flooded;
            let more = upstream.wait_for("more", |seen| seen.flooded > before);
            if timeout(STILL, more).await.is_err() {
                return;
            }
        }
    };
    soon("the flood to stop", stopped).await;
    let held = upstream.seen().flooded;
    assert!(held < HELD, "{held} bytes are held");
}

async fn asks<P: TestProtocol>(gateway: &TestGateway, request: &str) -> (P, ResponseHead) {
    let mut client = P::connect(gateway.address).await;
    client.send_chat(request).await;
    let head = soon("the head", client.head()).await.unwrap();
    assert_eq!(head.status, 200);
    (client, head)
}

/// Reads the rest, which must equal what was offered.
async fn read_rest<P: TestProtocol>(client: &mut P) {
    let event = event().into_bytes();
    let mut at = 0;
    loop {
        match soon("more of the response", client.part()).await {
            ResponsePart::Bytes(bytes) => {
                for byte in bytes {
                    assert_eq!(byte, event[at % EVENT], "at {at}");
                    at += 1;
                }
            }
            ResponsePart::End => break,
            ResponsePart::Aborted => panic!("aborted after {at} bytes"),
        }
    }
    assert_eq!(at, OFFERED.div_ceil(EVENT) * EVENT);
}

async fn stops_and_goes_on<P: TestProtocol>(request: &str, script: Vec<Step>) {
    let upstream = Upstream::start([script]).await;
    let gateway = TestGateway::start(&[&upstream]).await;
    let (mut client, _) = asks::<P>(&gateway, request).await;
    until_stopped(&upstream).await;
    read_rest(&mut client).await;
    assert!(client.is_in_order().await);
    drop(client);
    assert_eq!(gateway.finish().await[0].status, Some(200));
}

async fn a_client_that_stops_reading_pauses_a_stream<P: TestProtocol>() {
    stops_and_goes_on::<P>(STREAMED, stream(OFFERED)).await;
}

async fn a_client_that_stops_reading_pauses_a_response<P: TestProtocol>() {
    stops_and_goes_on::<P>(WHOLE, whole()).await;
}

async fn a_client_that_stopped_reading_can_disconnect<P: TestProtocol>() {
    for &how in P::WAYS {
        let upstream = Upstream::start([stream(usize::MAX / 4)]).await;
        let gateway = TestGateway::start(&[&upstream]).await;
        let (client, _) = asks::<P>(&gateway, STREAMED).await;
        until_stopped(&upstream).await;
        let left = client.leave(how).await;
        upstream
            .wait_for("the flooded connection to be closed", |seen| {
                seen.disconnects == 1
            })
            .await;
        drop(left);
        assert_eq!(gateway.finish().await[0].status, Some(499));
    }
}

async fn an_endless_response_ends_with_its_client<P: TestProtocol>() {
    let upstream = Upstream::start([stream(usize::MAX / 4)]).await;
    let gateway = TestGateway::start(&[&upstream]).await;
    let (mut client, _) = asks::<P>(&gateway, STREAMED).await;
    client.until(4 << 20).await;
    drop(client);
    upstream
        .wait_for("the flooded connection to be closed", |seen| {
            seen.disconnects == 1
        })
        .await;
    assert!(upstream.seen().flooded < (4 << 20) + HELD);
    assert_eq!(gateway.finish().await[0].status, Some(499));
}

async fn a_slow_client_does_not_delay_another<P: TestProtocol>() {
    let upstream = Upstream::start([
        stream(usize::MAX / 4),
        crate::support::json_response("200 OK", "{}"),
    ])
    .await;
    let gateway = TestGateway::start(&[&upstream]).await;
    let (client, _) = asks::<P>(&gateway, STREAMED).await;
    until_stopped(&upstream).await;
    for _ in 0..20 {
        assert_eq!(gateway.chat(WHOLE).await.text(), "{}");
    }
    drop(client);
    assert_eq!(gateway.finish().await.len(), 21);
}

in_each_protocol! {
    a_client_that_stops_reading_pauses_a_stream,
    a_client_that_stops_reading_pauses_a_response,
    a_client_that_stopped_reading_can_disconnect,
    an_endless_response_ends_with_its_client,
    a_slow_client_does_not_delay_another,
}
