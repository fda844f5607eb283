//! Heartbeat comments that keep the connection of a silent stream alive.

use crate::support::{
    Barrier, Options, Step, TestGateway, Upstream, chat, chat_over_http2, events, next_data,
};

const BODY: &str = "{\"model\":\"small\",\"stream\":true}";
const ONE: &str = "data: {\"choices\":[{\"delta\":{}}]}\n\n";
const USAGE: &str =
    "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":11,\"completion_tokens\":5}}\n\n";
const DONE: &str = "data: [DONE]\n\n";
const HEARTBEAT: &str = ": keep-alive\n";

fn chunks(parts: &[&str]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for part in parts {
        bytes.extend(format!("{:x}\r\n{part}\r\n", part.len()).into_bytes());
    }
    bytes.extend(b"0\r\n\r\n");
    bytes
}

/// A gateway with heartbeats, and an upstream that sends the first parts at once
/// and the rest when the barrier is opened.
async fn pausing(first: &[&str], rest: &[&str]) -> (TestGateway, Upstream, Barrier) {
    let barrier = Barrier::new();
    let script = vec![
        Step::Send(events(first, false)),
        Step::Wait(barrier.clone()),
        Step::Send(chunks(rest)),
    ];
    let upstream = Upstream::start([script]).await;
    let gateway =
        TestGateway::start_with(&[&upstream], Options::flags(&["--sse-heartbeat=1"])).await;
    (gateway, upstream, barrier)
}

#[tokio::test]
async fn heartbeats_are_sent_between_events_and_change_nothing_else() {
    // The upstream pauses within an event, which must not be split.
    let (gateway, _upstream, barrier) =
        pausing(&[ONE, "data: {\"half\""], &[":1}\n\n", USAGE, DONE]).await;
    let mut client = gateway.client().await;
    client.write(&chat(BODY)).await;
    client.head().await;
    client.until(ONE).await;
    for _ in 0..2 {
        client.until(HEARTBEAT).await;
    }
    barrier.cancel();
    client
        .until(&["data: {\"half\":1}\n\n", DONE].concat())
        .await;
    assert_eq!(client.chunk().await, Some(Vec::new()));
    let reported = gateway.finish().await;
    assert_eq!(reported[0].prompt_tokens.0, 11);
}

#[tokio::test]
async fn a_heartbeat_is_not_the_first_event() {
    // A comment of this length is not delayed, and the head is sent with it.
    let comment = format!(": {}\n\n", "x".repeat(70_000));
    let (gateway, _upstream, barrier) = pausing(&[&comment], &[ONE, DONE]).await;
    let mut client = gateway.client().await;
    client.write(&chat(BODY)).await;
    client.head().await;
    client.until(&comment).await;
    client.until(HEARTBEAT).await;
    barrier.cancel();
    client.until(&[ONE, DONE].concat()).await;
    // A heartbeat is sent after three quarters of its interval at the earliest.
    let reported = gateway.finish().await;
    assert!(reported[0].ttft_ms.unwrap() >= 750);
}

#[tokio::test]
async fn no_heartbeats_within_an_event_or_in_other_responses() {
    let flags = ["--sse-heartbeat=1", "--stream-idle-timeout=2"];
    let overlong = format!("data: {{\"x\":\"{}", "y".repeat(1_100_000));
    let whole = "HTTP/1.1 200 OK\r\ncontent-length: 50\r\n\r\n{\"choices\":";
    for (sent, expected) in [
        (events(&[ONE, &overlong], false), [ONE, &overlong].concat()),
        (whole.into(), "{\"choices\":".to_owned()),
    ] {
        let script = vec![Step::Send(sent), Step::UntilDisconnect];
        let upstream = Upstream::start([script]).await;
        let gateway = TestGateway::start_with(&[&upstream], Options::flags(&flags)).await;
        let reply = gateway.chat(BODY).await;
        assert!(reply.text().starts_with(&expected));
        assert!(!reply.text().contains("keep-alive"));
    }
}

#[tokio::test]
async fn heartbeats_are_sent_over_http2() {
    let (gateway, _upstream, barrier) = pausing(&[ONE], &[DONE]).await;
    chat_over_http2(&gateway, "null", BODY, async |response| {
        let mut body = response.into_body();
        for part in [ONE, HEARTBEAT, HEARTBEAT] {
            assert_eq!(next_data(&mut body).await.unwrap().unwrap(), part);
        }
        barrier.cancel();
        assert_eq!(next_data(&mut body).await.unwrap().unwrap(), DONE);
        assert!(next_data(&mut body).await.is_none());
    })
    .await;
}
