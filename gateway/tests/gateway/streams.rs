//! Streamed responses, independent of how they are split into segments.

use serde_json::{Value, json};

use crate::support::{Barrier, Options, Step, TestGateway, Upstream, chat, events, raw};

const ONE: &str = "data: {\"choices\":[{\"delta\":{\"content\":\"a\"}}],\"usage\":null}\n\n";
const TWO: &str =
    ": a comment\r\n\r\ndata:{\"choices\":[{\"delta\":{\"content\":\"\u{e9}\"}}]}\r\n\r\n";
const USAGE: &str =
    "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":11,\"completion_tokens\":5}}\n\n";
const DONE: &str = "data: [DONE]\n\n";
const DONE_CHUNK: &str = "e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n";
const BODY: &str = "{\"model\":\"small\",\"stream\":true}";
const ASKING: &str =
    "{\"model\":\"small\",\"stream\":true,\"stream_options\":{\"include_usage\":true}}";

fn sent(upstream: &Upstream) -> Value {
    serde_json::from_slice(&upstream.request().body).unwrap()
}

#[tokio::test]
async fn one_byte_per_read_yields_the_same_bytes_and_usage() {
    let stream = events(&[ONE, TWO, USAGE, DONE], true);
    let upstream = Upstream::start([vec![Step::Trickle(stream)]]).await;
    let gateway = TestGateway::start(&[&upstream]).await;
    let reply = gateway.chat(BODY).await;
    assert!(reply.complete);
    assert_eq!(reply.text(), [ONE, TWO, DONE].concat());
    assert_eq!(reply.header("content-type"), Some("text/event-stream"));
    assert_eq!(
        sent(&upstream)["stream_options"],
        json!({"include_usage": true})
    );
    let reported = gateway.finish().await;
    assert_eq!(reported.len(), 1);
    assert_eq!(
        (reported[0].prompt_tokens.0, reported[0].completion_tokens.0),
        (11, 5)
    );
    assert!(reported[0].usage_reported && reported[0].ttft_ms.is_some());
}

#[tokio::test]
async fn a_client_that_requests_usage_receives_it() {
    let upstream = Upstream::start([raw(events(&[ONE, USAGE, DONE], true))]).await;
    let gateway = TestGateway::start(&[&upstream]).await;
    let reply = gateway.chat(ASKING).await;
    assert_eq!(reply.text(), [ONE, USAGE, DONE].concat());
    assert_eq!(upstream.request().body, ASKING.as_bytes());
    let reported = gateway.finish().await;
    assert_eq!(reported[0].prompt_tokens.0, 11);
}

#[tokio::test]
async fn events_may_be_split_anywhere() {
    let text = [ONE, TWO, USAGE, DONE].concat();
    let cuts: Vec<usize> = (1..text.len())
        .filter(|cut| text.is_char_boundary(*cut))
        .collect();
    let scripts = cuts.iter().map(|cut| {
        let (before, after) = text.split_at(*cut);
        raw(events(&[before, after], true))
    });
    let upstream = Upstream::start(scripts).await;
    let gateway = TestGateway::start(&[&upstream]).await;
    let mut client = gateway.client().await;
    for cut in &cuts {
        let reply = client.send(&chat(BODY)).await;
        assert_eq!(reply.text(), [ONE, TWO, DONE].concat(), "cut at {cut}");
    }
    let reported = gateway.finish().await;
    assert_eq!(reported.len(), cuts.len());
    assert!(reported.iter().all(|event| event.prompt_tokens.0 == 11));
}

#[tokio::test]
async fn any_line_ending_and_an_unterminated_last_event_are_accepted() {
    for (end, last) in [
        ("\n\n", ""),
        ("\r\n\r\n", ""),
        ("\r\r", ""),
        ("\n\n", "no blank line"),
    ] {
        let first = ONE.replace("\n\n", end);
        let usage = USAGE.replace("\n\n", if last.is_empty() { end } else { "\n" });
        let upstream = Upstream::start([raw(events(&[&first, &usage], true))]).await;
        let gateway = TestGateway::start(&[&upstream]).await;
        assert_eq!(gateway.chat(BODY).await.text(), first);
        assert_eq!(gateway.finish().await[0].completion_tokens.0, 5, "{end:?}");
    }
}

#[tokio::test]
async fn a_complete_event_is_forwarded_at_once() {
    let barrier = Barrier::new();
    let start = events(&[ONE, "data: {\"begun\":"], false);
    let script = vec![
        Step::Send(start),
        Step::Wait(barrier.clone()),
        Step::Send(format!("3\r\n1}}\n\r\n1\r\n\n\r\n{DONE_CHUNK}").into_bytes()),
    ];
    let upstream = Upstream::start([script]).await;
    let gateway = TestGateway::start(&[&upstream]).await;
    let mut client = gateway.client().await;
    client.write(&chat(BODY)).await;
    assert!(client.head().await.starts_with("HTTP/1.1 200"));
    client.until(ONE).await;
    barrier.cancel();
    client
        .until(&["data: {\"begun\":1}\n\n", DONE].concat())
        .await;
    assert_eq!(client.chunk().await, Some(Vec::new()));
}

#[tokio::test]
async fn an_error_as_the_first_event_fails_over() {
    let error = "data: {\"error\":{\"message\":\"overloaded\",\"code\":503}}\n\n";
    let comment = ": processing\n\n";
    let bad = Upstream::start([raw(events(&[comment, error], true))]).await;
    let good = Upstream::start([raw(events(&[ONE, DONE], true))]).await;
    let gateway = TestGateway::start(&[&bad, &good]).await;
    for _ in 0..4 {
        assert_eq!(gateway.chat(BODY).await.text(), [ONE, DONE].concat());
    }
    let (failed, served) = (bad.seen().requests.len(), good.seen().requests.len());
    assert_eq!(served, 4);
    assert!(failed > 0);
    let events = gateway.finish().await;
    assert_eq!(events.len(), 4);
    assert!(
        events
            .iter()
            .all(|event| event.status == Some(200) && event.refusal.is_none())
    );
}

#[tokio::test]
async fn an_error_from_every_backend_is_forwarded_unchanged() {
    let error = "event: error\ndata: {\"error\":{\"message\":\"no\",\"code\":\"503\"}}\n\n";
    let upstream = Upstream::start([raw(events(&[error], true))]).await;
    let gateway = TestGateway::start(&[&upstream]).await;
    let reply = gateway.chat(BODY).await;
    assert_eq!((reply.status, reply.text().as_str()), (200, error));
    let outcome = "fastllm_request_outcomes_total{outcome=\"upstream_error\"}";
    assert!((gateway.metric(outcome).await - 1.0).abs() < 0.5);
    let events = gateway.finish().await;
    assert_eq!(events.len(), 1);
    assert!(!events[0].usage_reported && !events[0].estimated);
    assert_eq!(events[0].attempts, Some(3));
}

#[tokio::test]
async fn a_client_error_is_not_retried() {
    let error = "data: {\"error\":{\"message\":\"too long\",\"code\":400}}\n\n";
    let one = Upstream::start([raw(events(&[error], true))]).await;
    let two = Upstream::start([raw(events(&[error], true))]).await;
    let gateway = TestGateway::start(&[&one, &two]).await;
    assert_eq!(gateway.chat(BODY).await.text(), error);
    assert_eq!(one.seen().requests.len() + two.seen().requests.len(), 1);
}

#[tokio::test]
async fn an_abort_before_the_first_event_fails_over() {
    let good = || raw(events(&[ONE, DONE], true));
    for broken in [
        vec![Step::Reset],
        vec![Step::Close],
        vec![
            Step::Send(b"HTTP/1.1 200 OK\r\ncontent-".to_vec()),
            Step::Reset,
        ],
        vec![Step::Send(events(&[": comment\n\n"], false)), Step::Close],
        vec![Step::Send(events(&["data: {\"cho"], false)), Step::Reset],
    ] {
        let bad = Upstream::start([broken.clone()]).await;
        let backup = Upstream::start([good()]).await;
        let gateway = TestGateway::start(&[&bad, &backup]).await;
        for _ in 0..2 {
            let reply = gateway.chat(BODY).await;
            assert_eq!(reply.text(), [ONE, DONE].concat(), "{broken:?}");
        }
        assert!(!bad.seen().requests.is_empty(), "{broken:?}");
        assert_eq!(gateway.finish().await.len(), 2);
    }
}

#[tokio::test]
async fn an_abort_after_the_first_event_is_an_error_event_and_not_retried() {
    for end in [Step::Close, Step::Reset] {
        let barrier = Barrier::new();
        let script = vec![
            Step::Send(events(&[ONE, "data: {\"half"], false)),
            Step::Wait(barrier.clone()),
            end,
        ];
        let one = Upstream::start([script.clone()]).await;
        let two = Upstream::start([script]).await;
        let gateway = TestGateway::start(&[&one, &two]).await;
        let mut client = gateway.client().await;
        client.write(&chat(BODY)).await;
        client.head().await;
        client.until(ONE).await;
        barrier.cancel();
        let last = String::from_utf8(client.chunk().await.unwrap()).unwrap();
        let data = last.trim().strip_prefix("data: ").unwrap();
        let error: Value = serde_json::from_str(data).unwrap();
        assert_eq!(error["error"]["code"], "upstream_aborted");
        assert_eq!(client.chunk().await, Some(Vec::new()));
        assert_eq!(one.seen().requests.len() + two.seen().requests.len(), 1);
        let events = gateway.finish().await;
        assert_eq!(events.len(), 1);
        assert!(!events[0].usage_reported && events[0].estimated);
        let found = (events[0].prompt_tokens.0, events[0].completion_tokens.0);
        assert_eq!(found, (BODY.len() as u64 * 2 / 7, 1));
        assert_eq!(events[0].status, Some(200));
    }
}

#[tokio::test]
async fn an_aborted_unstreamed_response_is_not_terminated() {
    let script = vec![
        Step::Send(b"HTTP/1.1 200 OK\r\ncontent-length: 50\r\n\r\n{\"choices\":".to_vec()),
        Step::Close,
    ];
    let upstream = Upstream::start([script]).await;
    let gateway = TestGateway::start(&[&upstream]).await;
    let reply = gateway.chat("{\"model\":\"small\"}").await;
    assert!(!reply.complete);
    let events = gateway.finish().await;
    assert_eq!(events.len(), 1);
    assert!(!events[0].usage_reported && events[0].estimated);
    // {"model":"small"}, and a truncated {"choices":.
    let found = (events[0].prompt_tokens.0, events[0].completion_tokens.0);
    assert_eq!(found, (17 * 2 / 7, 6 * 2 / 7));
}

#[tokio::test]
async fn a_compressed_response_is_forwarded_unchanged() {
    let response = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\
content-encoding: gzip\r\ncontent-length: 6\r\n\r\n\x1f\x8b\x08\n\n\x00";
    let upstream = Upstream::start([raw(response)]).await;
    let gateway = TestGateway::start_with(&[&upstream], Options::default()).await;
    let reply = gateway.chat(BODY).await;
    assert_eq!(reply.body, b"\x1f\x8b\x08\n\n\x00");
    assert_eq!(reply.header("content-encoding"), Some("gzip"));
    let event = &gateway.finish().await[0];
    assert!(!event.usage_reported && event.estimated);
    assert_eq!(event.completion_tokens.0, 0);
}

#[tokio::test]
async fn comments_are_delayed_for_a_bounded_time() {
    let barrier = Barrier::new();
    let comment = format!(": {}\n\n", "x".repeat(70_000));
    let script = vec![
        Step::Send(events(&[&comment], false)),
        Step::Wait(barrier.clone()),
        Step::Send(format!("{:x}\r\n{ONE}\r\n{DONE_CHUNK}", ONE.len()).into_bytes()),
    ];
    let upstream = Upstream::start([script]).await;
    let gateway = TestGateway::start(&[&upstream]).await;
    let mut client = gateway.client().await;
    client.write(&chat(BODY)).await;
    client.head().await;
    client.until(&comment).await;
    barrier.cancel();
    client.until(&[ONE, DONE].concat()).await;
}
