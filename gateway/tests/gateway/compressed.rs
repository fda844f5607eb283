//! Responses with gzip that the request did not accept.

use std::io::Write;

use flate2::Compression;
use flate2::write::GzEncoder;

use crate::support::{Options, Step, TestGateway, Upstream, chat, events, raw};

const BODY: &str = "{\"model\":\"small\"}";
const STREAM: &str = "{\"model\":\"small\",\"stream\":true}";
const RESPONSE: &str = "{\"choices\":[],\"usage\":{\"prompt_tokens\":11,\"completion_tokens\":5}}";
const EVENT: &str = "data: {\"choices\":[{\"delta\":{\"content\":\"a\"}}]}\n\n";

/// Compresses parts, each flushed so that it can be decoded on arrival.
fn gzipped(parts: &[&str]) -> Vec<Vec<u8>> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
    let mut gzipped = Vec::new();
    for part in parts {
        encoder.write_all(part.as_bytes()).unwrap();
        encoder.flush().unwrap();
        gzipped.push(std::mem::take(encoder.get_mut()));
    }
    gzipped.push(encoder.finish().unwrap());
    gzipped
}

fn response(coding: &str, body: &[u8]) -> Vec<Step> {
    let head = format!(
        "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-encoding: {coding}\r\n\
         content-length: {}\r\n\r\n",
        body.len()
    );
    raw([head.as_bytes(), body].concat())
}

/// A stream of events in gzip.
fn stream(parts: &[&str]) -> (Vec<u8>, Vec<u8>) {
    let gzipped = gzipped(parts);
    let response = events(&gzipped, true);
    let head = "content-type: text/event-stream\r\n";
    let at = response
        .windows(head.len())
        .position(|part| part == head.as_bytes());
    let (before, after) = response.split_at(at.unwrap());
    let coded = [before, b"content-encoding: gzip\r\n", after].concat();
    (coded, gzipped.concat())
}

#[tokio::test]
async fn the_usage_is_recorded_and_the_bytes_are_forwarded() {
    let body = gzipped(&[RESPONSE]).concat();
    let upstream = Upstream::start([response("gzip", &body)]).await;
    let gateway = TestGateway::start(&[&upstream]).await;
    let reply = gateway.chat(BODY).await;
    assert_eq!((reply.status, &reply.body), (200, &body));
    assert_eq!(reply.header("content-encoding"), Some("gzip"));
    let sent = upstream.request();
    assert_eq!(sent.header("accept-encoding"), Some("identity"));
    let event = &gateway.finish().await[0];
    assert!(event.usage_reported);
    assert_eq!((event.prompt_tokens.0, event.completion_tokens.0), (11, 5));
}

#[tokio::test]
async fn a_stream_is_forwarded_with_the_usage_that_the_gateway_requested() {
    let usage = format!("data: {RESPONSE}\n\n");
    let (coded, body) = stream(&[EVENT, EVENT, &usage, "data: [DONE]\n\n"]);
    for script in [raw(&coded), vec![Step::Trickle(coded.clone())]] {
        let upstream = Upstream::start([script]).await;
        let gateway = TestGateway::start(&[&upstream]).await;
        let reply = gateway.chat(STREAM).await;
        assert!(reply.complete);
        assert_eq!(reply.body, body);
        let forwarded = upstream.request().body;
        assert!(
            String::from_utf8(forwarded)
                .unwrap()
                .contains("include_usage")
        );
        let event = &gateway.finish().await[0];
        assert!(event.usage_reported && event.ttft_ms.is_some());
        assert_eq!((event.prompt_tokens.0, event.completion_tokens.0), (11, 5));
    }
}

#[tokio::test]
async fn an_event_is_forwarded_before_the_next_one_arrives() {
    let parts = gzipped(&[EVENT, EVENT]);
    let barrier = crate::support::Barrier::new();
    let (coded, _) = stream(&[EVENT, EVENT]);
    let first =
        coded.len() - events(&parts[1..], true).len() + events(&[] as &[&[u8]], false).len();
    let script = vec![
        Step::Send(coded[..first].to_vec()),
        Step::Wait(barrier.clone()),
        Step::Send(coded[first..].to_vec()),
    ];
    let upstream = Upstream::start([script]).await;
    let gateway = TestGateway::start(&[&upstream]).await;
    let mut client = gateway.client().await;
    client.write(&chat(STREAM)).await;
    let _head = client.head().await;
    assert_eq!(client.chunk().await.unwrap(), parts[0]);
    barrier.cancel();
    // The stream reports neither its usage nor its end, and no event can be added
    // to compressed bytes.
    while let Some(chunk) = client.chunk().await {
        assert!(!chunk.is_empty());
    }
    let event = &gateway.finish().await[0];
    assert!(event.estimated && event.completion_tokens.0 >= 2);
}

#[tokio::test]
async fn an_error_in_the_first_event_fails_over() {
    let (failed, _) = stream(&[": hello\n\n", "data: {\"error\":{\"code\":503}}\n\n"]);
    let (good, body) = stream(&[EVENT, "data: [DONE]\n\n"]);
    let first = Upstream::start([raw(failed)]).await;
    let second = Upstream::start([raw(good)]).await;
    let flags = Options::flags(&["--policy=round-robin"]);
    let gateway = TestGateway::start_with(&[&first, &second], flags).await;
    for _ in 0..2 {
        assert_eq!(gateway.chat(STREAM).await.body, body);
    }
    assert!(!first.seen().requests.is_empty());
}

#[tokio::test]
async fn a_decompression_bomb_and_an_unknown_coding_are_forwarded_and_count_as_their_prompt() {
    let zeros = " ".repeat(16 << 20);
    let bomb = gzipped(&[&zeros, RESPONSE]).concat();
    let broken = [&gzipped(&[RESPONSE]).concat()[..20], b"no gzip"].concat();
    for (coding, body) in [("gzip", bomb), ("gzip", broken), ("br", b"brotli".to_vec())] {
        let upstream = Upstream::start([response(coding, &body)]).await;
        let gateway = TestGateway::start(&[&upstream]).await;
        assert_eq!(gateway.chat(BODY).await.body, body);
        let event = &gateway.finish().await[0];
        assert!(!event.usage_reported && event.estimated, "{coding}");
        let found = (event.prompt_tokens.0, event.completion_tokens.0);
        let prompt = BODY.len() as u64 * 2 / 7;
        assert_eq!((event.status, found), (Some(200), (prompt, 0)));
    }
}
