//! Query strings of clients: forwarded by an allow-list, else rejected.

use serde_json::{Value, json};

use crate::cache::{BODY, cache_status, cached_content, numbered_upstream};
use crate::support::{
    KEY, Options, Reply, SnapshotContent, TestGateway, Upstream, content, get, json_response,
    logged, post,
};

/// The default content, whose backend for `small` sends these parameters.
fn with_query(upstream: &Upstream, query: &[(&str, &str)]) -> SnapshotContent {
    let mut content = content(&[upstream.api_base()]);
    let backend = &mut content.models[2].backends[0];
    for (name, value) in query {
        let query = &mut backend.request_options.query;
        query.insert((*name).to_owned(), (*value).to_owned());
    }
    content
}

async fn send(gateway: &TestGateway, query: &str) -> Reply {
    let headers = format!("authorization: Bearer {KEY}\r\n");
    let path = format!("/v1/chat/completions{query}");
    gateway.send(&post(&path, &headers, BODY)).await
}

#[tokio::test]
async fn allowed_parameters_reach_the_upstream_as_received() {
    let upstream = Upstream::start([json_response("200 OK", "{}")]).await;
    let options = Options::flags(&["--forward-query=include[],x"]);
    let gateway = TestGateway::serving(&content(&[upstream.api_base()]), options).await;
    for (query, target) in [
        ("", "/v1/chat/completions"),
        ("?", "/v1/chat/completions"),
        (
            "?api-version=2024-10-21",
            "/v1/chat/completions?api-version=2024-10-21",
        ),
        (
            "?x=%2f+%C3%a9&&include[]=a&include%5B%5D=b&",
            "/v1/chat/completions?x=%2f+%C3%a9&include[]=a&include%5B%5D=b",
        ),
    ] {
        assert_eq!(send(&gateway, query).await.status, 200, "{query}");
        let requests = upstream.seen().requests;
        assert_eq!(requests.last().unwrap().word(1), target, "{query}");
    }
}

#[tokio::test]
async fn the_backends_own_parameters_win() {
    let upstream = Upstream::start([json_response("200 OK", "{}")]).await;
    let own = [("api-version", "1"), ("tenant", "a b")];
    let options = Options::flags(&["--forward-query=x"]);
    let gateway = TestGateway::serving(&with_query(&upstream, &own), options).await;
    for (query, added) in [
        ("", ""),
        ("?api-version=2", ""),
        ("?API%2DVersion=2&x=%20&api-version=3", "&x=%20"),
    ] {
        assert_eq!(send(&gateway, query).await.status, 200, "{query}");
        let requests = upstream.seen().requests;
        let target = format!("/v1/chat/completions?api-version=1&tenant=a%20b{added}");
        assert_eq!(requests.last().unwrap().word(1), target, "{query}");
    }
}

#[tokio::test]
async fn other_parameters_are_rejected_by_name_and_never_logged() {
    let upstream = Upstream::start([json_response("200 OK", "{}")]).await;
    let gateway = TestGateway::start(&[&upstream]).await;
    for (query, code, param) in [
        (
            "?beta=canary-value",
            "unsupported_query_parameter",
            json!("beta"),
        ),
        (
            "?api-version=1&model=canary-value",
            "unsupported_query_parameter",
            json!("model"),
        ),
        (
            "?canary-value%20x=1",
            "unsupported_query_parameter",
            Value::Null,
        ),
        ("?key=canary-value", "credential_in_query", json!("key")),
        (
            "?api%5Fkey=canary-value",
            "credential_in_query",
            json!("api_key"),
        ),
        ("?api-version=canary-value%", "invalid_query", Value::Null),
        (
            "?api-version=1;model=canary-value",
            "invalid_query",
            Value::Null,
        ),
    ] {
        let reply = send(&gateway, query).await;
        let (status, kind, replied, named) = reply.error();
        assert_eq!(
            (status, kind.as_str()),
            (400, "invalid_request_error"),
            "{query}"
        );
        assert_eq!((replied.as_str(), named), (code, param), "{query}");
        assert!(!reply.text().contains("canary-value"), "{query}");
    }
    let headers = format!("authorization: Bearer {KEY}\r\n");
    let models = gateway.send(&get("/v1/models?limit=1", &headers)).await;
    assert_eq!((models.error().0, models.error().3), (400, json!("limit")));
    let models = gateway
        .send(&get("/v1/models?api-version=1", &headers))
        .await;
    assert_eq!(models.status, 200);
    // A missing key is reported before parameters.
    let open = post("/v1/chat/completions?key=canary-value", "", BODY);
    assert_eq!(gateway.send(&open).await.status, 401);

    assert!(upstream.seen().requests.is_empty());
    drop(gateway.finish().await);
    assert!(!logged().contains("canary-value"));
}

#[tokio::test]
async fn forwarded_parameters_are_part_of_the_cache_key() {
    let upstream = numbered_upstream().await;
    let content = cached_content(&[upstream.api_base()]);
    let gateway = TestGateway::serving(&content, Options::default()).await;
    for (query, number, cached) in [
        ("", 1, "miss"),
        ("?api-version=1", 2, "miss"),
        ("?api-version=2", 3, "miss"),
        ("?api-version=1", 2, "hit"),
        ("", 1, "hit"),
    ] {
        let reply = send(&gateway, query).await;
        assert_eq!(cache_status(&reply), (number, Some(cached)), "{query}");
    }
}
