//! Which streams are complete, by endpoint: the others end with an error event,
//! however their body ends.

use crate::support::{
    KEY, Options, Step, TestGateway, Upstream, chat, events, json_response, post,
};

const TEXT: &str = "data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"a\"}}]}\n\n";
const DONE: &str = "data: [DONE]\n\n";
const FORM: &str = "--b\r\ncontent-disposition: form-data; name=\"model\"\r\n\r\nsmall\r\n\
--b\r\ncontent-disposition: form-data; name=\"stream\"\r\n\r\ntrue\r\n--b--\r\n";

fn finish(index: u32) -> String {
    format!(
        "data: {{\"choices\":[{{\"index\":{index},\"delta\":{{}},\"finish_reason\":\"stop\"}}]}}\n\n"
    )
}

fn named(name: &str) -> String {
    format!("event: {name}\ndata: {{\"type\":\"{name}\"}}\n\n")
}

/// How the body of a stream ends.
#[derive(Debug, Clone, Copy)]
enum BodyEnd {
    LastChunk,
    Length,
    Close,
}

fn script(stream: &str, end: BodyEnd) -> Vec<Step> {
    let head = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n";
    match end {
        BodyEnd::LastChunk => vec![Step::Send(events(&[stream], true))],
        BodyEnd::Length => {
            let length = stream.len();
            let sent = format!("{head}content-length: {length}\r\n\r\n{stream}");
            vec![Step::Send(sent.into_bytes())]
        }
        BodyEnd::Close => {
            let sent = format!("{head}connection: close\r\n\r\n{stream}");
            vec![Step::Send(sent.into_bytes()), Step::Close]
        }
    }
}

fn request(path: &str, members: &str) -> Vec<u8> {
    if path.contains("transcriptions") {
        let headers = format!(
            "authorization: Bearer {KEY}\r\ncontent-type: multipart/form-data; boundary=b\r\n"
        );
        return post(path, &headers, FORM);
    }
    let headers = format!("authorization: Bearer {KEY}\r\ncontent-type: application/json\r\n");
    let body = format!("{{\"model\":\"small\",\"stream\":true{members}}}");
    post(path, &headers, &body)
}

async fn outcomes(gateway: &TestGateway, outcome: &str) -> bool {
    let name = format!("fastllm_request_outcomes_total{{outcome=\"{outcome}\"}}");
    gateway.metric(&name).await > 0.5
}

const CHAT: &str = "/v1/chat/completions";
const COMPLETIONS: &str = "/v1/completions";
const RESPONSES: &str = "/v1/responses";
const TRANSCRIPTIONS: &str = "/v1/audio/transcriptions";
const SPEECH: &str = "/v1/audio/speech";
const IMAGES: &str = "/v1/images/generations";

#[tokio::test]
async fn a_stream_without_its_end_is_aborted_however_its_body_ends() {
    let delta = named("response.output_text.delta");
    for (path, members, stream) in [
        (CHAT, "", TEXT.to_owned()),
        (CHAT, ",\"n\":2", [TEXT, &finish(0)].concat()),
        (CHAT, ",\"n\":2", [finish(1), finish(1)].concat()),
        (COMPLETIONS, ",\"prompt\":\"a\"", TEXT.to_owned()),
        (COMPLETIONS, ",\"prompt\":[\"a\",\"b\"]", finish(0)),
        (RESPONSES, "", [delta, finish(0)].concat()),
        (TRANSCRIPTIONS, "", named("transcript.text.delta")),
        (SPEECH, "", named("speech.audio.delta")),
        (IMAGES, "", named("image_generation.partial_image")),
    ] {
        for end in [BodyEnd::LastChunk, BodyEnd::Length, BodyEnd::Close] {
            let upstream = Upstream::start([script(&stream, end)]).await;
            let gateway = TestGateway::start(&[&upstream]).await;
            let reply = gateway.send(&request(path, members)).await;
            let case = format!("{path} {members} {stream} {end:?}");
            assert!(reply.complete, "{case}");
            let text = reply.text();
            let last = text.rsplit("\n\n").nth(1).unwrap();
            assert!(
                last.contains("\"code\":\"upstream_aborted\""),
                "{case}: {text}"
            );
            assert!(outcomes(&gateway, "upstream_error").await, "{case}");
            assert_eq!(upstream.seen().requests.len(), 1, "{case}");
        }
    }
}

#[tokio::test]
async fn a_stream_with_its_end_is_forwarded_unchanged() {
    let usage =
        "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":1,\"completion_tokens\":1}}\n\n";
    let asking = ",\"stream_options\":{\"include_usage\":true}";
    let error = "data: {\"error\":{\"message\":\"busy\",\"code\":500}}\n\n";
    for (path, members, stream) in [
        (CHAT, "", [TEXT, DONE].concat()),
        (CHAT, "", [TEXT, "data: [DONE]"].concat()),
        (CHAT, "", [TEXT, &finish(0)].concat()),
        (CHAT, asking, [TEXT, usage].concat()),
        (CHAT, ",\"n\":2", [finish(1), finish(0)].concat()),
        (CHAT, ",\"n\":2", [TEXT, DONE].concat()),
        // The upstream has reported its error itself.
        (CHAT, "", [TEXT, error].concat()),
        (
            COMPLETIONS,
            ",\"prompt\":[\"a\",\"b\"]",
            [finish(0), finish(1)].concat(),
        ),
        (RESPONSES, "", named("response.completed")),
        (RESPONSES, "", named("response.incomplete")),
        (TRANSCRIPTIONS, "", named("transcript.text.done")),
        (TRANSCRIPTIONS, "", [TEXT, &finish(0)].concat()),
        // An engine with a format of its own.
        (TRANSCRIPTIONS, "", "data: {\"text\":\"a\"}\n\n".to_owned()),
        (SPEECH, "", named("speech.audio.done")),
        (IMAGES, "", named("image_generation.completed")),
    ] {
        for end in [BodyEnd::LastChunk, BodyEnd::Length, BodyEnd::Close] {
            let upstream = Upstream::start([script(&stream, end)]).await;
            let gateway = TestGateway::start(&[&upstream]).await;
            let reply = gateway.send(&request(path, members)).await;
            let case = format!("{path} {members} {stream} {end:?}");
            assert!(reply.complete, "{case}");
            assert_eq!(reply.text(), stream, "{case}");
            let failed = stream.contains("error");
            assert_eq!(outcomes(&gateway, "ok").await, !failed, "{case}");
        }
    }
}

#[tokio::test]
async fn a_connection_that_breaks_after_the_last_event_changes_nothing() {
    for (path, stream) in [
        (CHAT, [TEXT, DONE].concat()),
        (RESPONSES, named("response.completed")),
    ] {
        let script = vec![Step::Send(events(&[&stream], false)), Step::Close];
        let upstream = Upstream::start([script]).await;
        let gateway = TestGateway::start(&[&upstream]).await;
        let reply = gateway.send(&request(path, "")).await;
        assert!(reply.complete);
        assert_eq!(reply.text(), stream);
        assert!(outcomes(&gateway, "ok").await);
    }
    // Usage may follow a finish reason.
    let stream = [TEXT, &finish(0)].concat();
    let script = vec![Step::Send(events(&[&stream], false)), Step::Close];
    let upstream = Upstream::start([script]).await;
    let gateway = TestGateway::start(&[&upstream]).await;
    let text = gateway.send(&request(CHAT, "")).await.text();
    assert!(text.contains("upstream_aborted"), "{text}");
}

#[tokio::test]
async fn usage_that_only_the_gateway_requested_stays_here_in_every_form() {
    let usage = "\"usage\":{\"prompt_tokens\":11,\"completion_tokens\":5}";
    for event in [
        format!("data: {{{usage}}}\n\n"),
        format!("data: {{\"choices\":null,{usage}}}\n\n"),
        format!("data: {{\"id\":\"c-1\",\"choices\":[],\"error\":null,{usage}}}\n\n"),
    ] {
        let stream = [TEXT, &event, DONE].concat();
        let upstream = Upstream::start([script(&stream, BodyEnd::LastChunk)]).await;
        let gateway = TestGateway::start(&[&upstream]).await;
        let reply = gateway.send(&request(CHAT, "")).await;
        assert_eq!(reply.text(), [TEXT, DONE].concat());
        let asking = request(CHAT, ",\"stream_options\":{\"include_usage\":true}");
        assert_eq!(gateway.send(&asking).await.text(), stream);
        let reported = gateway.finish().await;
        assert!(reported.iter().all(|event| event.prompt_tokens.0 == 11));
    }
}

#[tokio::test]
async fn a_response_that_fails_after_its_announcements_fails_over() {
    let announced = ["response.created", "response.in_progress"].map(named);
    let failed = "event: response.failed\ndata: {\"type\":\"response.failed\",\"response\":\
        {\"error\":{\"code\":\"server_error\"}}}\n\n";
    let good = named("response.completed");
    for broken in [
        script(&[&announced.concat(), failed].concat(), BodyEnd::LastChunk),
        script(&announced.concat(), BodyEnd::LastChunk),
        script(&announced.concat(), BodyEnd::Close),
    ] {
        let first = Upstream::start([broken]).await;
        let second = Upstream::start([script(&good, BodyEnd::LastChunk)]).await;
        let gateway = TestGateway::start(&[&first, &second]).await;
        let reply = gateway.send(&request(RESPONSES, "")).await;
        assert_eq!((reply.status, reply.text()), (200, good.clone()));
        assert_eq!(first.seen().requests.len(), 1);
        assert_eq!(second.seen().requests.len(), 1);
    }
}

#[tokio::test]
async fn a_client_error_after_announcements_is_forwarded_with_them() {
    let failed = "event: response.failed\ndata: {\"type\":\"response.failed\",\"response\":\
        {\"error\":{\"code\":\"context_length_exceeded\"}}}\n\n";
    let stream = [&named("response.created"), failed].concat();
    let first = Upstream::start([script(&stream, BodyEnd::LastChunk)]).await;
    let second = Upstream::start([script(DONE, BodyEnd::LastChunk)]).await;
    let gateway = TestGateway::start(&[&first, &second]).await;
    let reply = gateway.send(&request(RESPONSES, "")).await;
    assert_eq!((reply.status, reply.text()), (200, stream));
    assert_eq!(second.seen().requests.len(), 0);
}

/// A head of a stream, these bytes, and then nothing.
fn silent(bytes: &str) -> Vec<Step> {
    let parts: Vec<&str> = [bytes]
        .into_iter()
        .filter(|part| !part.is_empty())
        .collect();
    vec![Step::Send(events(&parts, false)), Step::UntilDisconnect]
}

#[tokio::test]
async fn a_stream_that_is_silent_before_its_first_event_fails_over() {
    let good = named("response.completed");
    let created = named("response.created");
    for bytes in ["", ": processing\n\n", &created] {
        let first = Upstream::start([silent(bytes)]).await;
        let second = Upstream::start([script(&good, BodyEnd::LastChunk)]).await;
        let options = Options::flags(&["--upstream-timeout=1"]);
        let gateway = TestGateway::start_with(&[&first, &second], options).await;
        let reply = gateway.send(&request(RESPONSES, "")).await;
        assert_eq!((reply.status, reply.text()), (200, good.clone()), "{bytes}");
        assert_eq!(second.seen().requests.len(), 1);
    }
    let only = Upstream::start([silent(": processing\n\n"), silent("")]).await;
    let options = Options::flags(&["--upstream-timeout=1", "--max-retries=0"]);
    let gateway = TestGateway::start_with(&[&only], options).await;
    let reply = gateway.send(&request(RESPONSES, "")).await;
    assert_eq!(
        (reply.status, reply.error().2.as_str()),
        (504, "upstream_timeout")
    );
}

#[tokio::test]
async fn the_head_of_a_silent_stream_is_due_with_its_first_heartbeat() {
    let upstream = Upstream::start([silent("")]).await;
    let options = Options::flags(&["--sse-heartbeat=1", "--upstream-timeout=60"]);
    let gateway = TestGateway::start_with(&[&upstream], options).await;
    let mut client = gateway.client().await;
    client.write(&request(RESPONSES, "")).await;
    assert!(client.head().await.starts_with("HTTP/1.1 200 "));
    client.until(": keep-alive\n").await;
}

#[tokio::test]
async fn a_stream_that_ends_after_the_role_fails_over() {
    let role = "data: {\"choices\":[{\"index\":0,\"delta\":{\"role\":\"assistant\",\"content\":\"\"}}]}\n\n";
    let good = [role, TEXT, &finish(0), DONE].concat();
    for end in [BodyEnd::LastChunk, BodyEnd::Close] {
        let first = Upstream::start([script(role, end)]).await;
        let second = Upstream::start([script(&good, BodyEnd::LastChunk)]).await;
        let gateway = TestGateway::start(&[&first, &second]).await;
        let reply = gateway.send(&request(CHAT, "")).await;
        assert_eq!((reply.status, reply.text()), (200, good.clone()), "{end:?}");
    }
}

/// Held until its end, a response passes on in parts, and unchanged.
#[tokio::test]
async fn a_large_response_is_held_and_forwarded_unchanged() {
    let body = format!(
        "{{\"choices\":[],\"text\":\"{}\"}}",
        "0123456789".repeat(90_000)
    );
    let upstream = Upstream::start([
        json_response("200 OK", &body),
        json_response("200 OK", "{}"),
    ])
    .await;
    let gateway = TestGateway::start(&[&upstream]).await;
    let mut client = gateway.client().await;
    let plain = chat("{\"model\":\"small\"}");
    let reply = client.send(&plain).await;
    assert_eq!(reply.status, 200);
    assert!(reply.text() == body);
    assert_eq!(client.send(&plain).await.text(), "{}");
}
