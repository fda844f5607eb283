//! Successful requests.

use serde_json::json;

use crate::support::{
    Barrier, KEY, Options, Step, TestGateway, Upstream, backend, chat, content, get, json_response,
    post, raw,
};

const RESPONSE: &str = "{ \"choices\" :[{\"message\":{\"content\":\"h\\u00e9\"}}],\n\
\"usage\":{\"prompt_tokens\":7,\"completion_tokens\":3,\
\"prompt_tokens_details\":{\"cached_tokens\":4},\
\"completion_tokens_details\":{\"reasoning_tokens\":2}}, \"x\": 1.50 }";

#[tokio::test]
async fn bytes_are_forwarded_unchanged_in_both_directions() {
    let upstream = Upstream::start([json_response("200 OK", RESPONSE)]).await;
    let gateway = TestGateway::start(&[&upstream]).await;
    let body = "{\"messages\" : [ {\"content\":\"\\u0041\"} ],\n \"model\":\"small\", \"n\": 1.0}";
    let reply = gateway.chat(body).await;
    assert_eq!(reply.status, 200);
    assert_eq!(reply.text(), RESPONSE);
    assert_eq!(reply.header("content-type"), Some("application/json"));
    let request = upstream.request();
    assert_eq!(String::from_utf8(request.body.clone()).unwrap(), body);
    assert_eq!(request.word(1), "/v1/chat/completions");

    let events = gateway.finish().await;
    assert_eq!(events.len(), 1);
    let event = &events[0];
    assert_eq!(
        (event.principal_id.0, event.key_id.map(|key| key.0)),
        (1, Some(10))
    );
    assert_eq!((event.prompt_tokens.0, event.completion_tokens.0), (7, 3));
    assert_eq!((event.status, event.usage_reported), (Some(200), true));
    let details = [event.cached_tokens, event.reasoning_tokens].map(|tokens| tokens.unwrap().0);
    assert_eq!((details, event.estimated), ([4, 2], false));
    assert_eq!(event.endpoint.as_deref(), Some("/chat/completions"));
    let sent = request.header("x-request-id");
    assert!(sent.is_some() && event.request_id.as_deref() == sent);
    assert_eq!(event.attempts, Some(1));
    assert_eq!((event.refusal, &event.requested_model), (None, &None));
    assert_eq!(event.model.as_str(), "small");
    assert!(event.duration_ms.is_some() && event.ttft_ms.is_none());
}

#[tokio::test]
async fn the_upstream_gets_its_own_credential_name_and_model() {
    let upstream = Upstream::start([json_response("200 OK", "{}")]).await;
    let mut content = content(&[upstream.api_base()]);
    content.models[2].backends[0].upstream_model = "vendor/\"small\"".to_owned();
    let gateway = TestGateway::serving(&content, Options::default()).await;
    let headers = format!(
        "authorization: bearer {KEY}\r\ncookie: a=b\r\nx-api-key: other\r\n\
accept-encoding: gzip\r\nopenai-beta: one\r\nx-request-id: mine-1\r\n"
    );
    let request = post(
        "/chat/completions",
        &headers,
        "{\"model\":\"small\",\"a\":[1]}",
    );
    let reply = gateway.send(&request).await;
    assert_eq!(reply.header("x-request-id"), Some("mine-1"));
    let request = upstream.request();
    assert_eq!(request.headers("authorization"), ["Bearer credential-1"]);
    assert_eq!(
        request.header("host"),
        Some(upstream.address.to_string().as_str())
    );
    assert_eq!(request.header("accept-encoding"), Some("identity"));
    assert_eq!(request.header("openai-beta"), Some("one"));
    assert_eq!(request.header("x-request-id"), Some("mine-1"));
    assert!(request.headers("cookie").is_empty() && request.headers("x-api-key").is_empty());
    assert!(!request.head.contains(KEY));
    let body = String::from_utf8(request.body).unwrap();
    assert_eq!(body, "{\"model\":\"vendor/\\\"small\\\"\",\"a\":[1]}");
}

#[tokio::test]
async fn a_large_chunked_body_arrives_whole() {
    let upstream = Upstream::start([json_response("200 OK", "{}")]).await;
    let gateway = TestGateway::start(&[&upstream]).await;
    let body = format!("{{\"model\":\"small\",\"x\":\"{}\"}}", "y".repeat(300_000));
    let mut client = gateway.client().await;
    let head = format!(
        "POST /v1/chat/completions HTTP/1.1\r\nhost: g\r\nx-api-key: {KEY}\r\n\
transfer-encoding: chunked\r\n\r\n"
    );
    client.write(head.as_bytes()).await;
    for part in body.as_bytes().chunks(7_000) {
        client
            .write(format!("{:x}\r\n", part.len()).as_bytes())
            .await;
        client.write(part).await;
        client.write(b"\r\n").await;
    }
    client.write(b"0\r\n\r\n").await;
    assert_eq!(client.reply().await.status, 200);
    let request = upstream.request();
    assert_eq!(
        request.header("content-length"),
        Some(body.len().to_string().as_str())
    );
    assert!(request.body == body.as_bytes());
}

#[tokio::test]
async fn only_models_that_the_key_may_use_are_listed() {
    let upstream = Upstream::start([]).await;
    let gateway = TestGateway::start(&[&upstream]).await;
    for path in ["/v1/models", "/models"] {
        let request = get(path, &format!("authorization: Bearer {KEY}\r\n"));
        let reply = gateway.send(&request).await;
        assert_eq!(reply.status, 200);
        let line = |id: &str| json!({"id": id, "object": "model", "owned_by": "fastllm-proxy", "created": 0});
        assert_eq!(
            reply.json(),
            json!({"object": "list", "data": [line("large"), line("small")]})
        );
    }
}

#[tokio::test]
async fn an_open_snapshot_needs_no_key_and_records_no_principal() {
    let upstream = Upstream::start([json_response("200 OK", RESPONSE)]).await;
    let mut content = content(&[upstream.api_base()]);
    content.open = true;
    let gateway = TestGateway::serving(&content, Options::default()).await;
    let body = "{\"model\":\"forbidden\",\"stream\":true}";
    let reply = gateway.send(&post("/v1/chat/completions", "", body)).await;
    assert_eq!(reply.status, 200);
    // No principal is charged, so no usage is requested.
    assert_eq!(
        String::from_utf8(upstream.request().body).unwrap(),
        "{\"model\":\"small\",\"stream\":true}"
    );
    assert!(gateway.finish().await.is_empty());
}

#[tokio::test]
async fn connections_are_reused_and_load_is_balanced() {
    let barrier = Barrier::new();
    let slow = [
        vec![Step::Wait(barrier.clone())],
        json_response("200 OK", "{}"),
    ]
    .concat();
    let one = Upstream::start([slow.clone()]).await;
    let two = Upstream::start([slow]).await;
    let content = content(&[one.api_base(), two.api_base()]);
    // Each thread has its own connections.
    let gateway = TestGateway::serving(&content, Options::flags(&["--workers=1"])).await;
    let mut clients = Vec::new();
    for _ in 0..4 {
        let mut client = gateway.client().await;
        client.write(&chat("{\"model\":\"small\"}")).await;
        clients.push(client);
        let sent = clients.len();
        gateway
            .until("the request to be in flight", async || {
                one.seen().requests.len() + two.seen().requests.len() == sent
            })
            .await;
    }
    assert_eq!(
        (one.seen().requests.len(), two.seen().requests.len()),
        (2, 2)
    );
    barrier.cancel();
    for client in &mut clients {
        assert_eq!(client.reply().await.status, 200);
    }
    let before = one.seen().connections + two.seen().connections;
    let mut client = gateway.client().await;
    for _ in 0..10 {
        assert_eq!(
            client.send(&chat("{\"model\":\"small\"}")).await.status,
            200
        );
    }
    assert_eq!(one.seen().connections + two.seen().connections, before);
}

#[tokio::test]
async fn an_invalid_backend_does_not_affect_other_pools() {
    let upstream = Upstream::start([json_response("200 OK", "{}")]).await;
    let mut content = content(&[upstream.api_base()]);
    let mut broken = backend(5, "http://:0/");
    broken.auth_header = "two words".to_owned();
    content.models[2].backends.insert(0, broken);
    let gateway = TestGateway::serving(&content, Options::default()).await;
    assert_eq!(gateway.chat("{\"model\":\"small\"}").await.status, 200);
    assert_eq!(gateway.chat("{\"model\":\"large\"}").await.status, 200);
}

#[tokio::test]
async fn a_response_with_two_lengths_is_invalid() {
    let response = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 3\r\n\
transfer-encoding: chunked\r\n\r\n8\r\n{\"a\": 1}\r\n0\r\n\r\n";
    let upstream = Upstream::start([raw(response)]).await;
    let gateway = TestGateway::start(&[&upstream]).await;
    let reply = gateway.chat("{\"model\":\"small\"}").await;
    assert_eq!(reply.error().0, 502);
}

#[tokio::test]
async fn a_body_authorised_as_json_is_forwarded_as_json() {
    let upstream = Upstream::start([json_response("200 OK", "{}")]).await;
    let gateway = TestGateway::start(&[&upstream]).await;
    // Parsed as a form, it would name another model.
    let body = "{\"model\":\"small\",\"x\":\"&model=forbidden&\"}";
    let headers = format!(
        "authorization: Bearer {KEY}\r\ncontent-type: application/x-www-form-urlencoded\r\n"
    );
    let request = post("/v1/chat/completions", &headers, body);
    assert_eq!(gateway.send(&request).await.status, 200);
    assert_eq!(
        upstream.request().headers("content-type"),
        ["application/json"]
    );
}

#[tokio::test]
async fn a_large_body_is_edited_correctly() {
    let upstream = Upstream::start([json_response("200 OK", "{}")]).await;
    let mut content = content(&[upstream.api_base()]);
    content.models[2].backends[0].upstream_model = "other".to_owned();
    let gateway = TestGateway::serving(&content, Options::default()).await;
    let long = "y".repeat(300_000);
    let body = |front: &str, model: &str| {
        format!("{{{front}\"x\":\"{long}\",\"model\":\"{model}\",\"stream\": true,\"z\":1}}")
    };
    assert_eq!(gateway.chat(&body("", "small")).await.status, 200);
    let request = upstream.request();
    let expected = body("\"stream_options\":{\"include_usage\":true},", "other");
    assert_eq!(
        request.header("content-length"),
        Some(expected.len().to_string().as_str())
    );
    assert!(request.body == expected.as_bytes());
}
