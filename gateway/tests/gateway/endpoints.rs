//! Endpoints other than chat, with their requests and responses.

use fastllm_contract::ModelName;
use serde_json::json;

use crate::support::{
    KEY, Message, Options, Step, TestGateway, Upstream, content, get, json_response, post,
};

/// The last request that the upstream received.
fn last(upstream: &Upstream) -> Message {
    upstream.seen().requests.pop().unwrap()
}

/// Every endpoint that accepts JSON, with a matching response.
const JSON: [(&str, &str, (u64, u64)); 9] = [
    (
        "/chat/completions",
        "{\"choices\":[],\"usage\":{\"prompt_tokens\":7,\"completion_tokens\":3}}",
        (7, 3),
    ),
    (
        "/completions",
        "{\"choices\":[],\"usage\":{\"prompt_tokens\":6,\"completion_tokens\":2}}",
        (6, 2),
    ),
    (
        "/responses",
        "{\"output\":[],\"usage\":{\"input_tokens\":5,\"output_tokens\":4,\"total_tokens\":9}}",
        (5, 4),
    ),
    (
        "/embeddings",
        "{\"data\":[],\"usage\":{\"prompt_tokens\":8}}",
        (8, 0),
    ),
    (
        "/rerank",
        "{\"results\":[],\"meta\":{\"billed_units\":{\"input_tokens\":9}}}",
        (9, 0),
    ),
    (
        "/score",
        "{\"data\":[],\"usage\":{\"total_tokens\":4}}",
        (4, 0),
    ),
    (
        "/audio/speech",
        "{\"usage\":{\"input_tokens\":3,\"output_tokens\":1}}",
        (3, 1),
    ),
    (
        "/images/generations",
        "{\"data\":[],\"usage\":{\"input_tokens\":50,\"output_tokens\":60}}",
        (50, 60),
    ),
    ("/moderations", "{\"usage\":{\"total_tokens\":2}}", (2, 0)),
];

#[tokio::test]
async fn every_json_endpoint_is_forwarded_and_accounted_for() {
    let upstream =
        Upstream::start(JSON.map(|(_, response, _)| json_response("200 OK", response))).await;
    let gateway = TestGateway::start(&[&upstream]).await;
    for (path, response, _) in JSON {
        let body = "{\"input\" : \"a\", \"model\":\"small\"}";
        let reply = gateway
            .send(&post(
                &format!("/v1{path}"),
                &format!("x-api-key: {KEY}\r\n"),
                body,
            ))
            .await;
        assert_eq!((reply.status, &*reply.text()), (200, response), "{path}");
        let request = last(&upstream);
        assert_eq!(request.word(1), format!("/v1{path}"));
        assert_eq!(request.header("content-type"), Some("application/json"));
        assert_eq!(request.body, body.as_bytes());
    }
    let events = gateway.finish().await;
    assert_eq!(events.len(), JSON.len());
    for (event, (path, _, used)) in events.iter().zip(JSON) {
        assert_eq!(event.endpoint.as_deref(), Some(path));
        let found = (event.prompt_tokens.0, event.completion_tokens.0);
        assert_eq!((event.usage_reported, found), (true, used), "{path}");
    }
}

#[tokio::test]
async fn a_generated_response_without_usage_is_estimated() {
    let response = "{\"choices\":[],\"usage\":{\"prompt_tokens\":8}}";
    let upstream = Upstream::start([json_response("200 OK", response)]).await;
    let gateway = TestGateway::start(&[&upstream]).await;
    assert_eq!(gateway.chat("{\"model\":\"small\"}").await.text(), response);
    let event = &gateway.finish().await[0];
    assert!(!event.usage_reported && event.estimated);
    let found = (event.prompt_tokens.0, event.completion_tokens.0);
    let text = response.len().div_ceil(2) as u64;
    assert_eq!(found, (8, text * 2 / 7));
}

#[tokio::test]
async fn binary_data_does_not_count_as_tokens() {
    for (path, completion) in [("/images/generations", 0), ("/completions", 10)] {
        let half = format!("{{\"data\":\"{}", "A".repeat(61));
        let head = "HTTP/1.1 200 OK\r\ncontent-length: 5000\r\n\r\n";
        let script = vec![Step::Send([head, &half].concat().into_bytes()), Step::Close];
        let upstream = Upstream::start([script]).await;
        let gateway = TestGateway::start(&[&upstream]).await;
        let body = "{\"model\":\"small\"}";
        let key = format!("x-api-key: {KEY}\r\n");
        assert!(!gateway.send(&post(path, &key, body)).await.complete);
        let event = &gateway.finish().await[0];
        assert!(event.estimated, "{path}");
        let found = (event.prompt_tokens.0, event.completion_tokens.0);
        assert_eq!(found, (body.len() as u64 * 2 / 7, completion), "{path}");
    }
}

#[tokio::test]
async fn usage_is_requested_only_for_completions() {
    let responses = JSON.map(|(_, response, _)| json_response("200 OK", response));
    let upstream = Upstream::start(responses).await;
    let gateway = TestGateway::start(&[&upstream]).await;
    for (path, ..) in JSON {
        let body = "{\"model\":\"small\",\"stream\":true}";
        let reply = gateway
            .send(&post(path, &format!("x-api-key: {KEY}\r\n"), body))
            .await;
        assert_eq!(reply.status, 200);
        let sent = String::from_utf8(last(&upstream).body).unwrap();
        let asks = sent.contains("include_usage");
        assert_eq!(asks, path.ends_with("completions"), "{path}");
        assert!(asks || sent == body);
    }
}

fn form(parts: &[(&str, &str)]) -> String {
    let parts = parts.iter().map(|(parameters, value)| {
        format!("--frontier\r\nContent-Disposition: form-data; {parameters}\r\n\r\n{value}\r\n")
    });
    parts.collect::<String>() + "--frontier--\r\n"
}

fn upload(path: &str, content_type: &str, body: &str) -> Vec<u8> {
    let headers = format!("x-api-key: {KEY}\r\ncontent-type: {content_type}\r\n");
    post(path, &headers, body)
}

#[tokio::test]
async fn a_form_may_have_its_model_field_anywhere() {
    const FILE: (&str, &str) = (
        "name=\"file\"; filename=\"model\"",
        "RIFF \r\n--front \u{0}",
    );
    let response =
        "{\"text\":\"a\",\"usage\":{\"type\":\"tokens\",\"input_tokens\":14,\"output_tokens\":5}}";
    let upstream = Upstream::start([(); 4].map(|()| json_response("200 OK", response))).await;
    let mut content = content(&[upstream.api_base()]);
    content.models[2].backends[0].upstream_model = "vendor/whisper".to_owned();
    let gateway = TestGateway::serving(&content, Options::default()).await;
    for (path, parts) in [
        (
            "/v1/audio/transcriptions",
            [("name=\"model\"", "small"), FILE],
        ),
        (
            "/v1/audio/transcriptions",
            [FILE, ("name=\"model\"", "small")],
        ),
        (
            "/v1/audio/translations",
            [FILE, ("name=\"model\"", "small")],
        ),
        ("/images/edits", [FILE, ("name=\"model\"", "small")]),
    ] {
        let given = "multipart/form-data; charset=utf-7; boundary=frontier";
        let reply = gateway.send(&upload(path, given, &form(&parts))).await;
        assert_eq!((reply.status, &*reply.text()), (200, response));
        let request = last(&upstream);
        assert_eq!(
            request.header("content-type"),
            Some("multipart/form-data; boundary=frontier")
        );
        let sent = parts.map(|(parameters, value)| {
            (
                parameters,
                if value == "small" {
                    "vendor/whisper"
                } else {
                    value
                },
            )
        });
        assert_eq!(String::from_utf8(request.body).unwrap(), form(&sent));
    }
    let events = gateway.finish().await;
    assert_eq!(events.len(), 4);
    assert!(events.iter().all(|event| {
        (event.prompt_tokens.0, event.completion_tokens.0) == (14, 5) && event.usage_reported
    }));
}

#[tokio::test]
async fn a_form_that_names_two_models_reaches_no_upstream() {
    let upstream = Upstream::start([]).await;
    let gateway = TestGateway::start(&[&upstream]).await;
    let two = form(&[("name=\"model\"", "small"), ("name=\"model\"", "forbidden")]);
    let good = form(&[("name=\"model\"", "small")]);
    let form_data = "multipart/form-data; boundary=frontier";
    for (content_type, body, code) in [
        (form_data, &two, "ambiguous_parameter"),
        (
            "multipart/form-data; boundary=other",
            &good,
            "invalid_form_data",
        ),
        ("application/json", &good, "invalid_form_data"),
        (
            "multipart/form-data; boundary=frontier\r\ncontent-type: multipart/form-data; boundary=x",
            &good,
            "invalid_form_data",
        ),
    ] {
        let reply = gateway
            .send(&upload("/v1/audio/transcriptions", content_type, body))
            .await;
        assert_eq!(reply.status, 400);
        assert_eq!(reply.json()["error"]["code"], code);
    }
}

#[tokio::test]
async fn a_single_model_is_returned_to_keys_that_may_use_it() {
    let upstream = Upstream::start([]).await;
    let mut content = content(&[upstream.api_base()]);
    content.models[2].name = ModelName::new("org/small:v1").unwrap();
    content.open = true;
    let gateway = TestGateway::serving(&content, Options::default()).await;
    for path in ["/v1/models/org/small:v1", "/models/org%2Fsmall%3av1"] {
        let reply = gateway.send(&get(path, "")).await;
        assert_eq!(reply.status, 200);
        assert_eq!(
            reply.json(),
            json!({"id": "org/small:v1", "object": "model", "owned_by": "fastllm-proxy", "created": 0})
        );
    }
    let reply = gateway.send(&get("/v1/models/none", "")).await;
    assert_eq!(
        (reply.status, reply.json()["error"]["type"].as_str()),
        (404, Some("model_not_found"))
    );
}

#[tokio::test]
async fn a_model_without_a_grant_is_not_returned() {
    let upstream = Upstream::start([]).await;
    let gateway = TestGateway::start(&[&upstream]).await;
    let models = |path: &str| get(path, &format!("x-api-key: {KEY}\r\n"));
    assert_eq!(gateway.send(&models("/v1/models/small")).await.status, 200);
    assert_eq!(
        gateway.send(&models("/v1/models/forbidden")).await.status,
        403
    );
    assert_eq!(gateway.send(&models("/v1/models/none")).await.status, 404);
    assert_eq!(gateway.send(&get("/v1/models/small", "")).await.status, 401);
}
