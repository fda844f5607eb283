//! CORS: web pages that use the gateway from a browser.

use crate::support::{
    KEY, Message, Options, Reply, TestGateway, Upstream, chat_over_http2, get, post, raw,
};

const PAGE: &str = "https://app.example";
const BODY: &str = "{\"model\":\"small\"}";
const RESPONSE: &[u8] = b"HTTP/1.1 200 OK\r\nAccess-Control-Allow-Origin: *\r\n\
access-control-allow-credentials: true\r\nvary: accept\r\ncontent-length: 2\r\n\r\n{}";

fn preflight(path: &str, origin: &str, more: &str) -> Vec<u8> {
    format!(
        "OPTIONS {path} HTTP/1.1\r\nhost: g\r\norigin: {origin}\r\n\
access-control-request-method: POST\r\n{more}\r\n"
    )
    .into_bytes()
}

fn asking(origin: &str) -> Vec<u8> {
    let headers = format!("x-api-key: {KEY}\r\norigin: {origin}\r\n");
    post("/v1/chat/completions", &headers, BODY)
}

/// Every value of a header field.
fn all(reply: &Reply, name: &str) -> Vec<String> {
    let message = Message {
        head: reply.head.clone(),
        body: Vec::new(),
    };
    let values = message.headers(name);
    values.into_iter().map(str::to_owned).collect()
}

async fn gateway(flags: &[&str]) -> (Upstream, TestGateway) {
    let upstream = Upstream::start([raw(RESPONSE)]).await;
    let gateway = TestGateway::start_with(&[&upstream], Options::flags(flags)).await;
    (upstream, gateway)
}

#[tokio::test]
async fn preflight_requests_need_no_key() {
    let (upstream, gateway) = gateway(&["--cors-origin", PAGE]).await;
    let wanted = "authorization, content-type, x-stainless-os";
    let more = format!("access-control-request-headers: {wanted}\r\n");
    let mut client = gateway.client().await;
    for path in ["/v1/chat/completions", "/embeddings", "/v1/models/small"] {
        let reply = client.send(&preflight(path, PAGE, &more)).await;
        assert_eq!((reply.status, &*reply.body), (204, &b""[..]), "{path}");
        assert_eq!(reply.header("access-control-allow-origin"), Some(PAGE));
        assert_eq!(reply.header("access-control-allow-headers"), Some(wanted));
        let methods = reply.header("access-control-allow-methods");
        assert!(methods.unwrap().contains("POST"));
        assert!(reply.header("access-control-max-age").is_some());
        assert!(reply.header("access-control-allow-credentials").is_none());
        assert!(reply.header("vary").unwrap().contains("origin"));
    }
    let reply = client.send(&preflight("/v1/completions", PAGE, "")).await;
    let headers = reply.header("access-control-allow-headers").unwrap();
    for name in ["authorization", "content-type", "x-api-key", "openai-beta"] {
        assert!(headers.contains(name), "{name}");
    }
    // Every other request behaves as before.
    let other = preflight("/v1/completions", "https://other.example", "");
    let reply = client.send(&other).await;
    assert_eq!(reply.status, 204);
    assert_eq!(reply.header("access-control-allow-origin"), None);
    assert_eq!(reply.header("access-control-allow-headers"), None);
    assert_eq!(
        client.send(&preflight("/nowhere", PAGE, "")).await.status,
        401
    );
    let plain = b"OPTIONS /v1/completions HTTP/1.1\r\nhost: g\r\n\r\n";
    assert_eq!(client.send(plain).await.status, 401);
    assert!(upstream.seen().requests.is_empty());
}

#[tokio::test]
async fn responses_carry_the_allowed_origin() {
    let flags = ["--cors-origin", PAGE, "--forward-response-header=x-team"];
    let (_upstream, gateway) = gateway(&flags).await;
    let mut client = gateway.client().await;
    let models = get(
        "/v1/models",
        &format!("x-api-key: {KEY}\r\norigin: {PAGE}\r\n"),
    );
    let refused = get("/v1/models", &format!("origin: {PAGE}\r\n"));
    for (request, status) in [(asking(PAGE), 200), (models, 200), (refused, 401)] {
        let reply = client.send(&request).await;
        assert_eq!(reply.status, status);
        assert_eq!(all(&reply, "access-control-allow-origin"), [PAGE]);
        assert!(all(&reply, "vary").contains(&"origin".to_owned()));
        let exposed = reply.header("access-control-expose-headers").unwrap();
        let exposed: Vec<&str> = exposed.split(", ").collect();
        for name in ["x-request-id", "retry-after", "openai-model", "x-team"] {
            assert!(exposed.contains(&name), "{name}");
        }
        assert!(reply.header("access-control-allow-credentials").is_none());
    }
    for request in [asking("https://other.example"), asking("null")] {
        let reply = client.send(&request).await;
        assert_eq!(reply.status, 200);
        assert_eq!(reply.header("access-control-allow-origin"), None);
        assert_eq!(all(&reply, "vary"), ["origin"]);
    }
    let status = get("/livez", &format!("origin: {PAGE}\r\n"));
    let status = client.send(&status).await;
    assert_eq!(status.header("access-control-allow-origin"), None);
}

#[tokio::test]
async fn all_origins_can_be_allowed() {
    let (_upstream, gateway) = gateway(&["--cors-origin=*"]).await;
    let reply = gateway.send(&asking("https://any.example")).await;
    assert_eq!(all(&reply, "access-control-allow-origin"), ["*"]);
    let reply = gateway
        .send(&preflight("/v1/completions", "null", ""))
        .await;
    assert_eq!(all(&reply, "access-control-allow-origin"), ["*"]);
}

#[tokio::test]
async fn http2_responses_carry_the_same_cors_headers() {
    let (_upstream, gateway) = gateway(&["--cors-origin", PAGE]).await;
    chat_over_http2(&gateway, PAGE, BODY, async |response| {
        let headers = response.headers();
        let origins = headers.get_all("access-control-allow-origin");
        assert!(origins.iter().eq([PAGE]));
        assert!(!headers.contains_key("access-control-allow-credentials"));
        assert!(headers.get_all("vary").iter().eq(["origin"]));
    })
    .await;
}

#[tokio::test]
async fn without_configuration_there_are_no_cors_headers() {
    let (_upstream, gateway) = gateway(&[]).await;
    let reply = gateway.send(&asking(PAGE)).await;
    // Those of the upstream allow other pages than the operator's.
    for name in [
        "access-control-allow-origin",
        "access-control-allow-credentials",
        "vary",
    ] {
        assert_eq!(reply.header(name), None, "{name}");
    }
    let reply = gateway.send(&preflight("/v1/completions", PAGE, "")).await;
    assert_eq!(reply.status, 401);
    assert_eq!(reply.header("vary"), None);
}
