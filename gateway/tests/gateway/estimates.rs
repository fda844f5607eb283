//! Reservations cover the maximum cost of a request, and a response without
//! usage is charged by estimate.

use std::io::Write;

use fastllm_contract::{Micros, Prices, UsageEvent};
use flate2::Compression;
use flate2::write::GzEncoder;

use crate::limits::{budget, frequent_reports, limited, limits, until_reported};
use crate::support::{
    Barrier, Control, KEY, Options, Step, TestGateway, Upstream, chat, events, json_response, post,
    raw, snapshot,
};

const BODY: &str = "{\"model\":\"small\",\"max_tokens\":10}";

/// A stream event with one word, as many engines send it, and the final event.
const WORD: &str =
    "data: {\"choices\":[{\"delta\":{\"content\":\" sea\"},\"finish_reason\":null}]}\n\n";
const END: &str = "data: {\"choices\":[{\"delta\":{},\"finish_reason\":\"stop\"}]}\n\n";
const DONE: &str = "data: [DONE]\n\n";

fn response(kind: &str, body: &[u8]) -> Vec<Step> {
    let head = format!(
        "HTTP/1.1 200 OK\r\n{kind}\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    vec![Step::Send([head.as_bytes(), body].concat())]
}

fn gzipped(body: &str) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
    encoder.write_all(body.as_bytes()).unwrap();
    encoder.finish().unwrap()
}

/// A chat completion without usage, of 256 bytes plus this many.
fn without_usage(bytes: usize) -> String {
    let frame = "{\"choices\":[{\"message\":{\"content\":\"\"}}]}";
    let words = " sea".repeat(100 + bytes);
    let content = &words[..256 + bytes - frame.len()];
    frame.replace("\"\"", &format!("\"{content}\""))
}

async fn event(path: &str, headers: &str, body: &str, script: Vec<Step>) -> UsageEvent {
    let upstream = Upstream::start([script]).await;
    let gateway = TestGateway::start(&[&upstream]).await;
    let headers = format!("x-api-key: {KEY}\r\n{headers}");
    let reply = gateway
        .send(&post(&format!("/v1{path}"), &headers, body))
        .await;
    assert!(reply.complete, "{path}");
    gateway.finish().await.remove(0)
}

#[tokio::test]
async fn a_response_without_usage_has_an_estimated_usage_event() {
    let json = |body: &str| json_response("200 OK", body);
    let stream = |text: &str| raw(events(&[text], true));
    let words = [WORD, WORD, WORD, END, DONE].concat();
    let gzip = "content-type: application/json\r\ncontent-encoding: gzip";
    let brotli = "content-type: application/json\r\ncontent-encoding: br";
    let image = format!("{{\"data\":[{{\"b64_json\":\"{}\"}}]}}", "A".repeat(50_000));
    for (path, script, completion) in [
        ("/chat/completions", json(&without_usage(350)), 100),
        ("/chat/completions", stream(&words), 4),
        (
            "/chat/completions",
            response(gzip, &gzipped(&without_usage(350))),
            100,
        ),
        // Uninspected bodies, and bodies that are not text.
        ("/chat/completions", response(brotli, b"brotli"), 0),
        ("/completions", json(&without_usage(700)), 200),
        ("/embeddings", json("{\"data\":[{\"embedding\":[0.5]}]}"), 0),
        ("/rerank", json("{\"results\":[]}"), 0),
        ("/moderations", json("{\"results\":[]}"), 0),
        ("/images/generations", json(&image), 0),
        (
            "/audio/speech",
            response("content-type: audio/mpeg", &[7; 999]),
            0,
        ),
    ] {
        let event = event(path, "", BODY, script).await;
        assert!(!event.usage_reported && event.estimated, "{path}");
        let found = (event.prompt_tokens.0, event.completion_tokens.0);
        let expected = (BODY.len() as u64 * 2 / 7, completion);
        assert_eq!((event.status, found), (Some(200), expected), "{path}");
    }
}

#[tokio::test]
async fn a_transcript_and_the_texts_of_a_form_count_and_its_file_does_not() {
    let part = |head: &str, value: &str| {
        format!("--x\r\ncontent-disposition: form-data; {head}\r\n\r\n{value}\r\n")
    };
    let (model, prompt) = (
        part("name=\"model\"", "small"),
        "the names of seas ".repeat(350),
    );
    let file = part("name=\"file\"; filename=\"a\"", &"RIFF".repeat(1000));
    let headers = "content-type: multipart/form-data; boundary=x\r\n";
    let text = "the sea ".repeat(70);
    for (head, tokens) in [
        ("name=\"prompt\"", 1801),
        // Some engines read a text with a file name, too.
        ("name=\"prompt\"; filename=\"a\"", 1801),
        ("name=\"file\"; filename=\"b\"", 1),
    ] {
        let prompt = part(head, &prompt);
        for parts in [[&prompt, &model, &file], [&model, &file, &prompt]] {
            let form = [parts.map(String::as_str).concat(), "--x--\r\n".to_owned()].concat();
            let plain = response("content-type: text/plain", text.as_bytes());
            let event = event("/audio/transcriptions", headers, &form, plain).await;
            assert!(event.estimated);
            let found = (event.prompt_tokens.0, event.completion_tokens.0);
            assert_eq!(found, (tokens, 160), "{head}");
        }
    }
}

/// How many of these requests are admitted by a budget of 5000 tokens, if every
/// client leaves after the first event.
async fn admitted(body: &str) -> usize {
    let started = [raw(events(&[WORD], false)), vec![Step::UntilDisconnect]].concat();
    let upstream = Upstream::start([started]).await;
    let content = limited(&upstream, None, Some(budget(5000)));
    let gateway = TestGateway::serving(&content, frequent_reports()).await;
    for request in 0..20 {
        let mut client = gateway.client().await;
        client.write(&chat(body)).await;
        if !client.head().await.contains("200 OK") {
            return request;
        }
        client.until(WORD).await;
        drop(client);
        upstream
            .wait_for("the disconnect", |seen| seen.disconnects == request + 1)
            .await;
    }
    20
}

#[tokio::test]
async fn text_in_the_form_of_a_file_is_limited_like_any_text() {
    for words in ["word\\u0020", "word\\n", "word", "word "] {
        let text = words.repeat(3500 / words.len());
        for content in [
            format!("\";base64,{text}\""),
            format!("\"data:image/png;base64,{text}\""),
            format!("[{{\"type\":\"text\",\"text\":\"data:image/png;base64,{text}\"}}]"),
        ] {
            let body = format!(
                "{{\"model\":\"small\",\"max_tokens\":9,\"stream\":true,\
                 \"messages\":[{{\"role\":\"user\",\"content\":{content}}}]}}"
            );
            assert_eq!(admitted(&body).await, 5, "{content}");
        }
    }
}

/// Responses with this usage object: whole, streamed, large and compressed.
fn with_usage(usage: &str) -> [Vec<Step>; 5] {
    let words = " sea".repeat(89);
    let whole = format!("{{\"choices\":[{{\"text\":\"{words}\"}}],\"usage\":{usage}}}");
    let long = whole.replacen('{', &format!("{{\"x\":\"{}\",", " ".repeat(20_000)), 1);
    let chunk = format!("data: {{\"choices\":[],\"usage\":{usage}}}\n\n");
    let stream = [WORD, WORD, &chunk, DONE];
    let gzip = "content-type: application/json\r\ncontent-encoding: gzip";
    let events_gzip = "content-type: text/event-stream\r\ncontent-encoding: gzip";
    [
        json_response("200 OK", &whole),
        json_response("200 OK", &long),
        raw(events(&stream, true)),
        response(gzip, &gzipped(&whole)),
        response(events_gzip, &gzipped(&stream.concat())),
    ]
}

#[tokio::test]
async fn implausible_usage_is_replaced_by_an_estimate() {
    for usage in [
        "{\"prompt_tokens\":18446744073709551615,\"completion_tokens\":1}",
        "{\"prompt_tokens\":1,\"completion_tokens\":1000000001}",
        "{\"prompt_tokens\":-1,\"completion_tokens\":2}",
        "{\"prompt_tokens\":1.5,\"completion_tokens\":2}",
    ] {
        let responses = with_usage(usage);
        let count = responses.len();
        let upstream = Upstream::start(responses).await;
        let content = limited(&upstream, Some(limits(None, Some(1_000_000), None)), None);
        let gateway = TestGateway::serving(&content, Options::default()).await;
        let mut marked = 0.0;
        for _ in 0..count {
            assert_eq!(gateway.chat(BODY).await.status, 200);
            marked += 1.0;
            let found = gateway.metric("fastllm_usage_implausible_total").await;
            assert!((marked - found).abs() < 0.5, "{found} of {marked}");
        }
        for kind in ["prompt", "completion"] {
            let counter = format!("fastllm_model_tokens_total{{kind=\"{kind}\",model=\"small\"}}");
            assert!(gateway.metric(&counter).await.abs() < 0.5, "{usage}");
        }
        let events = gateway.finish().await;
        assert_eq!(events.len(), count);
        for event in events {
            assert!(event.estimated && !event.usage_reported, "{usage}");
            assert_eq!(event.prompt_tokens.0, BODY.len() as u64 * 2 / 7);
            assert!((1..10_000).contains(&event.completion_tokens.0), "{usage}");
        }
    }
}

#[tokio::test]
async fn counts_as_floats_and_in_strings_are_read() {
    for usage in [
        "{\"prompt_tokens\":12.0,\"completion_tokens\":3.0}",
        "{\"prompt_tokens\":\"12\",\"completion_tokens\":\"3\",\"total_tokens\":15.0}",
    ] {
        for script in with_usage(usage) {
            let event = event("/chat/completions", "", BODY, script).await;
            assert!(event.usage_reported && !event.estimated, "{usage}");
            let found = (event.prompt_tokens.0, event.completion_tokens.0);
            assert_eq!(found, (12, 3), "{usage}");
        }
    }
}

#[tokio::test]
async fn an_error_response_has_no_estimate() {
    let error = json_response("400 Bad Request", &without_usage(700));
    let event = event("/chat/completions", "", BODY, error).await;
    assert!(!event.usage_reported && !event.estimated);
    assert_eq!((event.prompt_tokens.0, event.completion_tokens.0), (0, 0));
}

#[tokio::test]
async fn a_backend_without_usage_is_still_limited_by_the_budget() {
    let upstream = Upstream::start([json_response("200 OK", &without_usage(350))]).await;
    let content = limited(&upstream, None, Some(budget(250)));
    let gateway = TestGateway::serving(&content, frequent_reports()).await;
    let each = BODY.len() as u64 * 2 / 7 + 100;
    for asked in 1..=3 {
        assert_eq!(gateway.chat(BODY).await.status, 200);
        until_reported(&gateway, "what was used", (asked * each, 0)).await;
    }
    assert_eq!(gateway.chat(BODY).await.status, 402);
    assert_eq!(upstream.seen().requests.len(), 3);
    let events = gateway.finish().await;
    let used: u64 = events
        .iter()
        .filter(|event| event.refusal.is_none())
        .map(|event| event.prompt_tokens.0 + event.completion_tokens.0)
        .sum();
    assert_eq!(used, 3 * each);
}

#[tokio::test]
async fn a_cached_response_without_usage_counts_each_time() {
    let upstream = Upstream::start([json_response("200 OK", &without_usage(350))]).await;
    let mut content = limited(&upstream, None, None);
    for model in &mut content.models {
        model.cache_ttl_seconds = Some(60);
    }
    let gateway = TestGateway::serving(&content, Options::default()).await;
    for _ in 0..2 {
        assert_eq!(gateway.chat(BODY).await.status, 200);
    }
    assert_eq!(upstream.seen().requests.len(), 1);
    let events = gateway.finish().await;
    assert_eq!([false, true], [events[0].cached, events[1].cached]);
    for event in &events {
        assert!(event.estimated && !event.usage_reported);
        let found = (event.prompt_tokens.0, event.completion_tokens.0);
        assert_eq!(found, (BODY.len() as u64 * 2 / 7, 100));
    }
}

/// Sends this request while the upstream does not respond.
async fn in_flight(
    gateway: &TestGateway,
    upstream: &Upstream,
    request: &[u8],
) -> crate::support::Client {
    let before = upstream.seen().requests.len();
    let mut client = gateway.client().await;
    client.write(request).await;
    upstream
        .wait_for("the request", |seen| seen.requests.len() > before)
        .await;
    client
}

#[tokio::test]
async fn the_reservation_covers_all_choices_of_a_request() {
    let usage = "{\"choices\":[],\"usage\":{\"prompt_tokens\":9,\"completion_tokens\":12}}";
    let barrier = Barrier::new();
    let slow = [
        vec![Step::Wait(barrier.clone())],
        json_response("200 OK", usage),
    ]
    .concat();
    let upstream = Upstream::start([slow, json_response("200 OK", usage)]).await;
    let content = limited(&upstream, None, Some(budget(10_000)));
    let gateway = TestGateway::serving(&content, frequent_reports()).await;
    // Engines ignore `best_of` in chat completions.
    let body = "{\"model\":\"small\",\"max_tokens\":10,\"n\":2,\"best_of\":4}";
    let mut client = in_flight(&gateway, &upstream, &chat(body)).await;
    let prompt = body.len() as u64 * 2 / 7;
    until_reported(&gateway, "the reservation", (0, prompt + 2 * 10)).await;
    barrier.cancel();
    assert_eq!(client.reply().await.status, 200);
    until_reported(&gateway, "what was used", (21, 0)).await;
}

#[tokio::test]
async fn the_usual_completion_size_is_per_choice() {
    let usage = "{\"choices\":[],\"usage\":{\"prompt_tokens\":9,\"completion_tokens\":12}}";
    let barrier = Barrier::new();
    let slow = vec![Step::Wait(barrier.clone()), Step::UntilDisconnect];
    let upstream = Upstream::start([json_response("200 OK", usage), slow]).await;
    let content = limited(&upstream, None, Some(budget(10_000)));
    let gateway = TestGateway::serving(&content, frequent_reports()).await;
    let of = |n: u64| format!("{{\"model\":\"small\",\"n\":{n}}}");
    assert_eq!(gateway.chat(&of(4)).await.status, 200);
    let body = of(5);
    let _client = in_flight(&gateway, &upstream, &chat(&body)).await;
    let prompt = body.len() as u64 * 2 / 7;
    until_reported(&gateway, "three for each", (21, prompt + 5 * 3)).await;
}

#[tokio::test]
async fn requests_whose_choices_exceed_the_limit_are_rejected() {
    let upstream = Upstream::start([json_response("200 OK", "{}")]).await;
    let content = limited(&upstream, Some(limits(None, Some(100), None)), None);
    let gateway = TestGateway::serving(&content, Options::default()).await;
    let of = |n: &str| format!("{{\"model\":\"small\",\"max_tokens\":10,\"n\":{n}}}");
    for n in ["10", "1e300", "18446744073709551616"] {
        let (status, _, code, _) = gateway.chat(&of(n)).await.error();
        assert_eq!((status, &*code), (400, "larger_than_limit"), "{n}");
    }
    assert_eq!(gateway.chat(&of("8")).await.status, 200);
    assert_eq!(upstream.seen().requests.len(), 1);
}

/// Checks the money reserved while a request is in flight.
async fn assert_reserved_money(path: &str, headers: &str, body: &str, wanted: u64) {
    let upstream = Upstream::start([vec![Step::UntilDisconnect]]).await;
    let mut described = budget(0);
    described.tokens_total = None;
    described.cost_total_micros = Some(Micros(1_000_000));
    let control = Control::start(snapshot(&limited(&upstream, None, Some(described)))).await;
    control.set_prices(Prices {
        image_price: Some(Micros(40_000)),
        input_price_per_mchar: Some(Micros(15_000_000)),
        audio_price_per_minute: Some(Micros(6_000)),
        ..Prices::default()
    });
    let gateway = TestGateway::with_control(control, frequent_reports());
    gateway.until_ready().await;
    let headers = format!("x-api-key: {KEY}\r\n{headers}");
    let request = post(&format!("/v1{path}"), &headers, body);
    let _client = in_flight(&gateway, &upstream, &request).await;
    gateway
        .control
        .wait_for("the reservation", |received| {
            let last = received.reports.last();
            let budget = last.and_then(|report| report.budgets.first());
            budget.is_some_and(|budget| budget.cost_reserved_micros.0 == wanted)
        })
        .await;
}

#[tokio::test]
async fn money_is_reserved_for_images_speech_and_audio() {
    let images = "{\"model\":\"small\",\"n\":3,\"prompt\":\"a sea\"}";
    assert_reserved_money("/images/generations", "", images, 120_000).await;
    let speech = "{\"model\":\"small\",\"input\":\"gr\\u00fc\u{df}e\"}";
    assert_reserved_money("/audio/speech", "", speech, 75).await;
    let audio = "RIFF".repeat(120_000);
    let form = format!(
        "--x\r\ncontent-disposition: form-data; name=\"model\"\r\n\r\nsmall\r\n\
--x\r\ncontent-disposition: form-data; name=\"file\"; filename=\"a\"\r\n\r\n{audio}\r\n--x--\r\n"
    );
    let minute = form.len() as u64 / 8;
    let cost = (minute * 6_000 + 30_000) / 60_000;
    let headers = "content-type: multipart/form-data; boundary=x\r\n";
    assert_reserved_money("/audio/transcriptions", headers, &form, cost).await;
}
