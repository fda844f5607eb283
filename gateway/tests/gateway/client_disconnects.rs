//! A client disconnect aborts the upstream request at once, in every phase.

use crate::support::{Client, Step, TestGateway, Upstream, chat, events};

const STREAMED: &str = "{\"model\":\"small\",\"stream\":true}";
const WHOLE: &str = "{\"model\":\"small\"}";
const EVENT: &str = "data: {\"choices\":[{}]}\n\n";
const USAGE: &str =
    "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":4,\"completion_tokens\":2}}\n\n";

/// Runs `leave` between the request and the disconnect of the client; the upstream
/// connection must be closed, and one usage event recorded.
async fn leaves(
    body: &str,
    before: Vec<u8>,
    leave: impl AsyncFnOnce(&mut Client, &Upstream),
) -> fastllm_contract::UsageEvent {
    let script = vec![Step::Send(before), Step::UntilDisconnect];
    let upstream = Upstream::start([script]).await;
    let gateway = TestGateway::start(&[&upstream]).await;
    let mut client = gateway.client().await;
    client.write(&chat(body)).await;
    leave(&mut client, &upstream).await;
    drop(client);
    upstream
        .wait_for("the upstream connection to be closed", |seen| {
            seen.disconnects == 1
        })
        .await;
    let mut events = gateway.finish().await;
    assert_eq!(events.len(), 1);
    let event = events.remove(0);
    assert_eq!((event.status, event.refusal), (Some(499), None));
    event
}

/// The usage of an event without reported usage: whether it is an estimate,
/// prompt tokens, and completion tokens.
fn usage_of(event: &fastllm_contract::UsageEvent) -> (bool, u64, u64) {
    assert!(!event.usage_reported);
    let (prompt, completion) = (event.prompt_tokens.0, event.completion_tokens.0);
    (event.estimated, prompt, completion)
}

async fn request_arrived(_: &mut Client, upstream: &Upstream) {
    upstream
        .wait_for("the request", |seen| seen.requests.len() == 1)
        .await;
}

#[tokio::test]
async fn before_the_first_byte() {
    let event = leaves(STREAMED, Vec::new(), request_arrived).await;
    assert_eq!(usage_of(&event), (false, 0, 0));
    // An unstreamed response may have been generated completely.
    let event = leaves(WHOLE, Vec::new(), request_arrived).await;
    assert_eq!(usage_of(&event), (true, WHOLE.len() as u64 * 2 / 7, 0));
}

#[tokio::test]
async fn before_the_first_event() {
    let event = leaves(STREAMED, events(&[": working\n\n"], false), request_arrived).await;
    assert_eq!(usage_of(&event), (false, 0, 0));
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
    assert_eq!(usage_of(&event), (true, STREAMED.len() as u64 * 2 / 7, 1));
    assert!(event.ttft_ms.is_some());
}

#[tokio::test]
async fn after_the_usage_event() {
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
    assert!(event.usage_reported && !event.estimated);
    assert_eq!((event.prompt_tokens.0, event.completion_tokens.0), (4, 2));
}

#[tokio::test]
async fn in_the_middle_of_an_unstreamed_response() {
    let head = b"HTTP/1.1 200 OK\r\ncontent-length: 5000\r\n\r\n{\"abc\":1".to_vec();
    let event = leaves(WHOLE, head, async |client: &mut Client, _: &Upstream| {
        client.head().await;
    })
    .await;
    assert_eq!(usage_of(&event), (true, WHOLE.len() as u64 * 2 / 7, 1));
}

#[tokio::test]
async fn files_in_a_prompt_are_not_counted_as_text() {
    let body = |file: &str| {
        format!(
            "{{\"model\":\"small\",\"messages\":[{{\"role\":\"user\",\"content\":[{{\"type\":\"image_url\",\
\"image_url\":{{\"url\":\"data:image/png;base64,{file}\"}}}}]}}]}}"
        )
    };
    let event = leaves(&body(&"iVBORw0K".repeat(1000)), Vec::new(), request_arrived).await;
    let prompt = body("").len() as u64 * 2 / 7 + 85;
    assert_eq!(usage_of(&event), (true, prompt, 0));
}

#[tokio::test]
async fn by_closing_only_the_sending_side() {
    let script = vec![Step::UntilDisconnect];
    let upstream = Upstream::start([script]).await;
    let gateway = TestGateway::start(&[&upstream]).await;
    let mut client = gateway.client().await;
    client.write(&chat(WHOLE)).await;
    request_arrived(&mut client, &upstream).await;
    client.close_its_side().await;
    upstream
        .wait_for("the upstream connection to be closed", |seen| {
            seen.disconnects == 1
        })
        .await;
    assert_eq!(gateway.finish().await[0].status, Some(499));
}
