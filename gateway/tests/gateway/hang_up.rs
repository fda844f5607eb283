//! A client that leaves stops the upstream at once, in every phase.

use crate::support::{Client, Rig, Step, Upstream, chat, events};

const STREAMED: &str = "{\"model\":\"small\",\"stream\":true}";
const WHOLE: &str = "{\"model\":\"small\"}";
const EVENT: &str = "data: {\"choices\":[{}]}\n\n";
const USAGE: &str =
    "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":4,\"completion_tokens\":2}}\n\n";

/// Runs `leave` between the request and the client's end; the upstream must
/// see its connection closed, and one account be kept.
async fn leaves(
    body: &str,
    before: Vec<u8>,
    leave: impl AsyncFnOnce(&mut Client, &Upstream),
) -> fastllm_contract::UsageEvent {
    let script = vec![Step::Send(before), Step::UntilHangUp];
    let upstream = Upstream::start([script]).await;
    let rig = Rig::start(&[&upstream]).await;
    let mut client = rig.client().await;
    client.write(&chat(body)).await;
    leave(&mut client, &upstream).await;
    drop(client);
    upstream
        .wait_for("the upstream to be dropped", |seen| seen.hang_ups == 1)
        .await;
    let mut events = rig.finish().await;
    assert_eq!(events.len(), 1);
    let event = events.remove(0);
    assert_eq!((event.status, event.refusal), (Some(499), None));
    event
}

async fn request_arrived(_: &mut Client, upstream: &Upstream) {
    upstream
        .wait_for("the request", |seen| seen.requests.len() == 1)
        .await;
}

#[tokio::test]
async fn before_the_first_byte() {
    for body in [STREAMED, WHOLE] {
        let event = leaves(body, Vec::new(), request_arrived).await;
        assert!(!event.usage_reported);
    }
}

#[tokio::test]
async fn while_the_first_event_is_waited_for() {
    let event = leaves(STREAMED, events(&[": working\n\n"], false), request_arrived).await;
    assert!(!event.usage_reported);
}

#[tokio::test]
async fn in_the_middle_of_a_stream() {
    let event = leaves(
        STREAMED,
        events(&[EVENT], false),
        async |client: &mut Client, _: &Upstream| {
            client.head().await;
            client.until(EVENT).await;
        },
    )
    .await;
    assert!(!event.usage_reported);
    assert!(event.ttft_ms.is_some());
}

#[tokio::test]
async fn after_the_usage_was_seen() {
    let parts = events(&[EVENT, USAGE, EVENT], false);
    let event = leaves(
        STREAMED,
        parts,
        async |client: &mut Client, _: &Upstream| {
            client.head().await;
            client.until(&[EVENT, EVENT].concat()).await;
        },
    )
    .await;
    assert!(event.usage_reported);
    assert_eq!((event.prompt_tokens.0, event.completion_tokens.0), (4, 2));
}

#[tokio::test]
async fn in_the_middle_of_an_unstreamed_answer() {
    let head = b"HTTP/1.1 200 OK\r\ncontent-length: 5000\r\n\r\n{\"a\":1".to_vec();
    let event = leaves(WHOLE, head, async |client: &mut Client, _: &Upstream| {
        client.head().await;
    })
    .await;
    assert!(!event.usage_reported);
}

#[tokio::test]
async fn by_closing_its_side_only() {
    let script = vec![Step::UntilHangUp];
    let upstream = Upstream::start([script]).await;
    let rig = Rig::start(&[&upstream]).await;
    let mut client = rig.client().await;
    client.write(&chat(WHOLE)).await;
    request_arrived(&mut client, &upstream).await;
    client.close_its_side().await;
    upstream
        .wait_for("the upstream to be dropped", |seen| seen.hang_ups == 1)
        .await;
    assert_eq!(rig.finish().await[0].status, Some(499));
}
