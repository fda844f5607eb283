//! Requests that the gateway rejects, the order of the checks, and the errors.

use fastllm_contract::{ModelName, Principal, PrincipalId, RefusalKind};
use serde_json::{Value, json};

use crate::support::{
    Control, KEY, Options, TestGateway, Upstream, chat, content, get, json_response, post, snapshot,
};

const GOOD: &str = "{\"model\":\"small\"}";

fn with_key(key: &str, body: &str) -> Vec<u8> {
    let headers = format!("authorization: Bearer {key}\r\n");
    post("/v1/chat/completions", &headers, body)
}

#[tokio::test]
async fn invalid_keys_are_401_for_every_route() {
    let mut content = content(&[]);
    content
        .keys
        .push(("sk-expired".to_owned(), 1, Some(1), false));
    content.keys.push(("sk-disabled".to_owned(), 1, None, true));
    let gateway = TestGateway::serving(&content, Options::default()).await;
    let invalid = (
        401,
        "invalid_api_key".to_owned(),
        "invalid_api_key".to_owned(),
        Value::Null,
    );
    for request in [
        post("/v1/chat/completions", "", GOOD),
        post("/v1/chat/completions", "", "not json"),
        post(
            "/v1/chat/completions",
            "authorization: Basic eA==\r\n",
            GOOD,
        ),
        with_key("sk-unknown", GOOD),
        with_key("sk-disabled", GOOD),
        get("/v1/models", ""),
        get("/nowhere", ""),
    ] {
        let reply = gateway.send(&request).await;
        assert_eq!(
            reply.error(),
            invalid,
            "{}",
            String::from_utf8_lossy(&request)
        );
        assert_eq!(reply.header("www-authenticate"), Some("Bearer"));
    }
    let reply = gateway.send(&with_key("sk-expired", GOOD)).await;
    assert_eq!(reply.error().2, "expired_api_key");
    assert!(
        (gateway
            .metric("fastllm_rejections_total{reason=\"unauthenticated\"}")
            .await
            - 8.0)
            .abs()
            < 0.5
    );
    assert!(gateway.finish().await.is_empty());
}

#[tokio::test]
async fn unknown_routes_are_404_with_a_key() {
    let gateway = TestGateway::serving(&content(&[]), Options::default()).await;
    for (method, path) in [
        ("GET", "/v1/chat/completions"),
        ("GET", "/v1/files"),
        ("POST", "/health"),
    ] {
        let request = format!("{method} {path} HTTP/1.1\r\nhost: g\r\nx-api-key: {KEY}\r\n\r\n");
        let reply = gateway.send(request.as_bytes()).await;
        assert_eq!(reply.error().0, 404, "{path}");
        assert_eq!(reply.error().2, "not_found", "{path}");
    }
}

#[tokio::test]
async fn ambiguous_bodies_cannot_bypass_the_grant() {
    let upstream = Upstream::start([json_response("200 OK", "{}")]).await;
    let gateway = TestGateway::start(&[&upstream]).await;
    for (body, param) in [
        ("", None),
        ("[]", None),
        ("{\"model\":\"small\"", None),
        ("{\"model\":\"small\"}{}", None),
        ("{}", Some("model")),
        ("{\"model\":1}", Some("model")),
        ("{\"model\":\"\"}", Some("model")),
        (
            "{\"model\":\"small\",\"model\":\"forbidden\"}",
            Some("model"),
        ),
        (
            "{\"model\":\"forbidden\",\"model\":\"small\"}",
            Some("model"),
        ),
        (
            "{\"model\":\"small\",\"mod\\u0065l\":\"forbidden\"}",
            Some("model"),
        ),
        (
            "{\"model\":\"small\",\"Model\":\"forbidden\"}",
            Some("model"),
        ),
        (
            "{\"model\":\"small\",\"stream\":true,\"\u{17f}tream\":false}",
            Some("stream"),
        ),
        ("{\"model\":\"small\",\"stream\":\"yes\"}", Some("stream")),
    ] {
        let reply = gateway.chat(body).await;
        let (status, kind, _, found) = reply.error();
        assert_eq!(
            (status, kind.as_str()),
            (400, "invalid_request_error"),
            "{body}"
        );
        assert_eq!(found, json!(param), "{body}");
    }
    assert_eq!(
        gateway.chat("{\"mod\\u0065l\":\"forbidden\"}").await.status,
        403
    );
    assert_eq!(
        gateway.chat("{\"mod\\u0065l\":\"small\"}").await.status,
        200
    );
    assert_eq!(upstream.seen().requests.len(), 1);
}

#[tokio::test]
async fn an_unknown_model_is_404_and_one_without_a_grant_is_403() {
    let upstream = Upstream::start([]).await;
    let gateway = TestGateway::start(&[&upstream]).await;
    let reply = gateway.chat("{\"model\":\"nobodys\"}").await;
    let expected = |status, code: &str| (status, code.to_owned(), code.to_owned(), json!("model"));
    assert_eq!(reply.error(), expected(404, "model_not_found"));
    for name in ["nobodys", "small", "large", "forbidden"] {
        assert!(!reply.text().contains(name), "{name}");
    }
    let reply = gateway.chat("{\"model\":\"forbidden\"}").await;
    assert_eq!(reply.error(), expected(403, "model_access_denied"));

    let events = gateway.finish().await;
    assert_eq!(events.len(), 1);
    assert_eq!(events[0].refusal, Some(RefusalKind::Authorisation));
    assert_eq!(
        (events[0].status, events[0].model.as_str()),
        (Some(403), "forbidden")
    );
    assert_eq!(
        (events[0].prompt_tokens.0, events[0].completion_tokens.0),
        (0, 0)
    );
    assert!(upstream.seen().requests.is_empty());
}

#[tokio::test]
async fn a_model_without_a_grant_can_be_hidden() {
    let upstream = Upstream::start([]).await;
    let flags = Options::flags(&["--hide-ungranted-models"]);
    let gateway = TestGateway::start_with(&[&upstream], flags).await;
    let key = format!("x-api-key: {KEY}\r\n");
    let unknown = gateway.chat("{\"model\":\"nobodys\"}").await;
    assert_eq!(
        (unknown.status, &*unknown.error().2),
        (404, "model_not_found")
    );
    for reply in [
        gateway.chat("{\"model\":\"forbidden\"}").await,
        gateway.send(&get("/v1/models/forbidden", &key)).await,
        gateway.send(&get("/v1/models/nobodys", &key)).await,
    ] {
        assert_eq!((reply.status, reply.text()), (404, unknown.text()));
    }
    let granted = gateway.send(&get("/v1/models/small", &key)).await;
    assert_eq!(granted.status, 200);
    // The usage still records the actual reason for the operator.
    let reason = "fastllm_rejections_total{reason=\"unauthorised\"}";
    assert!((gateway.metric(reason).await - 2.0).abs() < 0.5);
    let events = gateway.finish().await;
    assert_eq!(events.len(), 1);
    assert_eq!(
        (events[0].status, events[0].refusal),
        (Some(404), Some(RefusalKind::Authorisation))
    );
}

#[tokio::test]
async fn a_fallback_does_not_reveal_a_hidden_model() {
    let upstream = Upstream::start([json_response("200 OK", "{}")]).await;
    let mut content = content(&[upstream.api_base()]);
    content.fallback = Some(ModelName::new("large").unwrap());
    let flags = Options::flags(&["--hide-ungranted-models"]);
    let gateway = TestGateway::serving(&content, flags).await;
    let unknown = gateway.chat("{\"model\":\"nobodys\"}").await;
    let hidden = gateway.chat("{\"model\":\"forbidden\"}").await;
    assert_eq!((hidden.status, hidden.text()), (404, unknown.text()));
    assert!(upstream.seen().requests.is_empty());
    assert_eq!(gateway.chat("{\"model\":\"small\"}").await.status, 200);
}

#[tokio::test]
async fn a_principal_without_grants_is_rejected() {
    let upstream = Upstream::start([]).await;
    let mut content = content(&[upstream.api_base()]);
    content.principals.push(Principal {
        team: None,
        limits: None,
        budget: None,
        models: Vec::new(),
        id: PrincipalId(2),
        name: "new".to_owned(),
        allow_all: false,
        allowed_models: Vec::new(),
        roles: Vec::new(),
    });
    content.keys.push(("sk-new".to_owned(), 2, None, false));
    let gateway = TestGateway::serving(&content, Options::default()).await;
    assert_eq!(gateway.send(&with_key("sk-new", GOOD)).await.status, 403);
    let list = gateway
        .send(&get("/v1/models", "x-api-key: sk-new\r\n"))
        .await;
    assert_eq!(list.json()["data"], json!([]));
}

#[tokio::test]
async fn bodies_over_the_limit_are_413() {
    let upstream = Upstream::start([json_response("200 OK", "{}")]).await;
    let gateway = TestGateway::start_with(&[&upstream], Options::flags(&["--max-body-mb=1"])).await;
    let announced = format!(
        "POST /v1/chat/completions HTTP/1.1\r\nhost: g\r\nx-api-key: {KEY}\r\n\
content-length: 1048577\r\n\r\n"
    );
    let reply = gateway.send(announced.as_bytes()).await;
    assert_eq!(reply.error().0, 413);
    assert_eq!(reply.error().2, "payload_too_large");

    let head = format!(
        "POST /v1/chat/completions HTTP/1.1\r\nhost: g\r\nx-api-key: {KEY}\r\n\
transfer-encoding: chunked\r\n\r\n100001\r\n"
    );
    let mut client = gateway.client().await;
    client.write(head.as_bytes()).await;
    client.write(&vec![b' '; 0x10_0001]).await;
    assert_eq!(client.reply().await.status, 413);

    let padding = " ".repeat((1 << 20) - GOOD.len());
    assert_eq!(gateway.chat(&format!("{padding}{GOOD}")).await.status, 200);
}

#[tokio::test]
async fn without_a_snapshot_requests_are_503_not_401() {
    let upstream = Upstream::start([json_response("200 OK", "{}")]).await;
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let first = snapshot(&content(&[upstream.api_base()]));
    let control = Control::start_on(listener, first.clone());
    control.publish_text(1, "{\"format\":");
    let gateway = TestGateway::with_control(control, Options::flags(&["--config-poll=1"]));
    gateway
        .control
        .wait_for("a first fetch", |received| !received.fetches.is_empty())
        .await;
    for request in [
        chat(GOOD),
        get("/v1/models", ""),
        with_key("sk-unknown", GOOD),
    ] {
        let reply = gateway.send(&request).await;
        assert_eq!(reply.error().2, "not_ready");
        assert_eq!(
            (reply.status, reply.header("retry-after")),
            (503, Some("1"))
        );
    }
    assert_eq!(gateway.get("/health").await.status, 503);
    assert_eq!(gateway.get("/readyz").await.status, 503);
    assert_eq!(gateway.get("/livez").await.status, 200);

    gateway.control.publish(first);
    gateway.until_ready().await;
    assert_eq!(gateway.chat(GOOD).await.status, 200);
    assert_eq!(gateway.get("/health").await.status, 200);
}
