//! Usage in quantities other than tokens: images, characters, audio.

use fastllm_contract::UsageEvent;

use crate::support::{KEY, Step, TestGateway, Upstream, json_response, post, raw};

/// The usage event of one request with the usual key.
async fn event(path: &str, headers: &str, body: &str, script: Vec<Step>) -> UsageEvent {
    let upstream = Upstream::start([script]).await;
    let gateway = TestGateway::start(&[&upstream]).await;
    let headers = format!("x-api-key: {KEY}\r\n{headers}");
    gateway.send(&post(path, &headers, body)).await;
    gateway.finish().await.remove(0)
}

async fn json(path: &str, body: &str, response: &str) -> UsageEvent {
    event(path, "", body, json_response("200 OK", response)).await
}

fn form(audio: &str) -> String {
    let part = |head: &str, value: &str| {
        format!("--x\r\ncontent-disposition: form-data; {head}\r\n\r\n{value}\r\n")
    };
    let model = part("name=\"model\"", "small");
    let file = part("name=\"file\"; filename=\"a.wav\"", audio);
    format!("{model}{file}--x--\r\n")
}

const FORM: &str = "content-type: multipart/form-data; boundary=x\r\n";

#[tokio::test]
async fn images_are_counted_regardless_of_their_size() {
    let images = format!(
        "{{\"data\":[{{\"b64_json\":\"{}\"}},{{\"url\":\"x\"}}]}}",
        "A".repeat(300_000)
    );
    let event = json("/v1/images/generations", "{\"model\":\"small\"}", &images).await;
    assert_eq!(event.images, Some(2));
    assert!(!event.usage_reported);
    let chat = json("/v1/chat/completions", "{\"model\":\"small\"}", &images).await;
    assert_eq!(chat.images, None);
}

#[tokio::test]
async fn speech_usage_is_in_characters_and_bytes() {
    let response = "HTTP/1.1 200 OK\r\ncontent-type: audio/mpeg\r\ncontent-length: 5\r\n\r\nID3..";
    let body = "{\"model\":\"small\",\"input\":\"gr\\u00fc\u{df}e\"}";
    let speech = event("/v1/audio/speech", "", body, raw(response)).await;
    assert_eq!(
        (speech.input_characters, speech.audio_bytes),
        (Some(5), Some(5))
    );
    // No usage without input text.
    let failed = json_response("400 Bad Request", "{}");
    let failed = event("/v1/audio/speech", "", body, failed).await;
    assert_eq!((failed.input_characters, failed.audio_bytes), (None, None));
    let unknown = json("/v1/audio/speech", "{\"model\":\"small\"}", "{}").await;
    assert_eq!(
        (unknown.input_characters, unknown.audio_bytes),
        (None, None)
    );
}

#[tokio::test]
async fn transcription_usage_is_in_seconds_and_bytes() {
    for (response, ms) in [
        (
            "{\"text\":\"a\",\"usage\":{\"type\":\"duration\",\"seconds\":3}}",
            Some(3000),
        ),
        ("{\"duration\":8.47,\"text\":\"a\"}", Some(8470)),
        ("{\"text\":\"a\"}", None),
    ] {
        // A buffered upload, and one large enough to be streamed.
        for audio in ["RIFF".to_owned(), "RIFF".repeat(100_000)] {
            let script = json_response("200 OK", response);
            let event = event("/v1/audio/transcriptions", FORM, &form(&audio), script).await;
            assert_eq!(event.audio_ms, ms, "{response}");
            assert_eq!(event.audio_bytes, Some(audio.len() as u64));
            assert!(!event.usage_reported);
        }
    }
}

#[tokio::test]
async fn token_classes_are_reported_separately() {
    let response = "{\"choices\":[],\"usage\":{\"prompt_tokens\":90,\"completion_tokens\":30,\
         \"prompt_tokens_details\":{\"cached_tokens\":10,\"cache_creation_tokens\":20,\"audio_tokens\":5},\
         \"completion_tokens_details\":{\"reasoning_tokens\":7,\"audio_tokens\":0}}}";
    let event = json("/v1/chat/completions", "{\"model\":\"small\"}", response).await;
    let classes = [
        event.cached_tokens,
        event.cache_write_tokens,
        event.audio_prompt_tokens,
        event.reasoning_tokens,
        event.audio_completion_tokens,
    ];
    let classes = classes.map(|tokens| tokens.unwrap().0);
    assert_eq!(classes, [10, 20, 5, 7, 0]);
}
