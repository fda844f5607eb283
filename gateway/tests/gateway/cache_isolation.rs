//! A cached response is never served for another request or to another principal.

use fastllm_contract::{ModelName, Principal, PrincipalId, SplitBy, Target, VirtualModel};

use crate::cache::{BODY, cache_status, cached_content, numbered_upstream, send};
use crate::support::{KEY, Options, SnapshotContent, TestGateway, Upstream, post, snapshot};

const HIT: Option<&str> = Some("hit");
const MISS: Option<&str> = Some("miss");
const OTHER: &str = "sk-another";
const WITHOUT: &str = "sk-without";

/// The default key, a key of another principal, and one of a principal without a grant.
fn three_keys(upstream: &Upstream) -> SnapshotContent {
    let mut content = cached_content(&[upstream.api_base()]);
    let usual = content.principals[0].clone();
    for (id, name, key, models) in [
        (2, "another", OTHER, usual.allowed_models.clone()),
        (3, "without", WITHOUT, Vec::new()),
    ] {
        content.principals.push(Principal {
            id: PrincipalId(id),
            name: name.to_owned(),
            allowed_models: models,
            ..usual.clone()
        });
        content.keys.push((key.to_owned(), id, None, false));
    }
    content.keys.push(("sk-second".to_owned(), 1, None, false));
    content
}

fn with_key(key: &str, body: &str) -> Vec<u8> {
    let headers = format!("authorization: Bearer {key}\r\n");
    post("/v1/chat/completions", &headers, body)
}

#[tokio::test]
async fn another_principal_gets_no_cached_response() {
    let upstream = numbered_upstream().await;
    let gateway = TestGateway::serving(&three_keys(&upstream), Options::default()).await;
    for (key, number, cached) in [
        (KEY, 1, MISS),
        (OTHER, 2, MISS),
        (KEY, 1, HIT),
        (OTHER, 2, HIT),
        // The same principal, with another of its keys.
        ("sk-second", 1, HIT),
    ] {
        assert_eq!(
            cache_status(&gateway.send(&with_key(key, BODY)).await),
            (number, cached),
            "{key}"
        );
    }
}

#[tokio::test]
async fn shared_responses_are_limited_to_principals_with_a_grant() {
    let upstream = numbered_upstream().await;
    let options = Options::flags(&["--cache-scope=shared"]);
    let gateway = TestGateway::serving(&three_keys(&upstream), options).await;
    assert_eq!(
        cache_status(&gateway.send(&with_key(KEY, BODY)).await),
        (1, MISS)
    );
    assert_eq!(
        cache_status(&gateway.send(&with_key(OTHER, BODY)).await),
        (1, HIT)
    );
    let refused = gateway.send(&with_key(WITHOUT, BODY)).await;
    assert_eq!(
        (refused.status, refused.header("x-fastllm-cache")),
        (403, None)
    );
    assert_eq!(
        gateway.send(&with_key("sk-unknown", BODY)).await.status,
        401
    );
}

#[tokio::test]
async fn a_revoked_grant_takes_effect_at_once() {
    let upstream = numbered_upstream().await;
    let mut content = cached_content(&[upstream.api_base()]);
    let gateway = TestGateway::serving(&content, Options::default()).await;
    assert_eq!(cache_status(&gateway.chat(BODY).await), (1, MISS));
    content.version = 2;
    content.principals[0].allowed_models.clear();
    publish(&gateway, &content).await;
    assert_eq!(gateway.chat(BODY).await.status, 403);
}

#[tokio::test]
async fn an_open_gateway_has_separate_cached_responses() {
    let upstream = numbered_upstream().await;
    let mut content = cached_content(&[upstream.api_base()]);
    content.open = true;
    let gateway = TestGateway::serving(&content, Options::default()).await;
    let open = post("/v1/chat/completions", "", BODY);
    assert_eq!(cache_status(&gateway.send(&open).await), (1, MISS));
    assert_eq!(cache_status(&gateway.send(&open).await), (1, HIT));
    // Authenticated clients do not receive them.
    content.version = 2;
    content.open = false;
    publish(&gateway, &content).await;
    assert_eq!(cache_status(&gateway.chat(BODY).await), (2, MISS));
}

#[tokio::test]
async fn endpoint_body_and_model_are_part_of_the_cache_key() {
    let upstream = numbered_upstream().await;
    let mut content = cached_content(&[upstream.api_base()]);
    content.models[1].cache_ttl_seconds = Some(3600);
    let gateway = TestGateway::serving(&content, Options::default()).await;
    let headers = format!("authorization: Bearer {KEY}\r\n");
    let large = BODY.replace("small", "large");
    let spaced = BODY.replace(',', ", ");
    let described = BODY.replace("[]", "[],\"metadata\":{\"a\":1}");
    let questions = [
        ("/v1/chat/completions", BODY),
        ("/v1/completions", BODY),
        ("/v1/embeddings", BODY),
        ("/v1/chat/completions", large.as_str()),
        ("/v1/chat/completions", spaced.as_str()),
        ("/v1/chat/completions", described.as_str()),
    ];
    for cached in [MISS, HIT] {
        for ((path, body), number) in questions.iter().zip(1..) {
            let reply = gateway.send(&post(path, &headers, body)).await;
            assert_eq!(cache_status(&reply), (number, cached), "{path} {body}");
        }
    }
    // The path prefix is not part of the key.
    let reply = gateway
        .send(&post("/chat/completions", &headers, BODY))
        .await;
    assert_eq!(cache_status(&reply), (1, HIT));
}

#[tokio::test]
async fn every_name_of_a_model_shares_the_cached_response() {
    let upstream = numbered_upstream().await;
    let mut content = cached_content(&[upstream.api_base()]);
    content.virtual_models.push(VirtualModel {
        name: ModelName::new("auto").unwrap(),
        rules: Vec::new(),
        default_targets: vec![Target {
            model: ModelName::new("small").unwrap(),
            weight: 1,
        }],
        split_by: SplitBy::Prompt,
    });
    let gateway = TestGateway::serving(&content, Options::default()).await;
    let auto = BODY.replace("small", "auto");
    assert_eq!(cache_status(&gateway.chat(&auto).await), (1, MISS));
    assert_eq!(cache_status(&gateway.chat(BODY).await), (1, HIT));
    assert_eq!(cache_status(&gateway.chat(&auto).await), (1, HIT));
    let events = gateway.finish().await;
    let requested = events.iter().map(|event| {
        let requested = event.requested_model.as_ref();
        (
            event.model.as_str(),
            requested.map(ModelName::as_str),
            event.cached,
        )
    });
    let expected = [
        ("small", Some("auto"), false),
        ("small", None, true),
        ("small", Some("auto"), true),
    ];
    assert!(requested.eq(expected));
}

#[tokio::test]
async fn forwarded_headers_are_part_of_the_cache_key() {
    let upstream = numbered_upstream().await;
    let content = cached_content(&[upstream.api_base()]);
    let options = Options::flags(&["--forward-header=x-tenant"]);
    let gateway = TestGateway::serving(&content, options).await;
    for (lines, number, cached) in [
        ("", 1, MISS),
        ("openai-beta: one\r\n", 2, MISS),
        ("openai-beta: two\r\n", 3, MISS),
        ("X-Tenant: one\r\n", 4, MISS),
        ("x-tenant: two\r\n", 5, MISS),
        ("accept: audio/wav\r\n", 6, MISS),
        ("OpenAI-Beta: one\r\n", 2, HIT),
        ("x-tenant: one\r\n", 4, HIT),
        // Header fields that are not forwarded or do not affect the response.
        ("user-agent: other\r\nx-unknown: 1\r\n", 1, HIT),
    ] {
        assert_eq!(
            cache_status(&send(&gateway, lines, BODY).await),
            (number, cached),
            "{lines}"
        );
    }
}

async fn publish(gateway: &TestGateway, content: &SnapshotContent) {
    gateway.control.publish(snapshot(content));
    #[expect(clippy::cast_precision_loss, reason = "versions are small")]
    let version = content.version as f64;
    gateway
        .until("the snapshot", async || {
            gateway.metric("fastllm_snapshot_version").await > version - 0.5
        })
        .await;
}

#[tokio::test]
async fn a_snapshot_invalidates_only_the_responses_that_it_affects() {
    let upstream = numbered_upstream().await;
    let mut content = cached_content(&[upstream.api_base()]);
    content.models[1].cache_ttl_seconds = Some(3600);
    let gateway = TestGateway::serving(&content, Options::default()).await;
    let large = BODY.replace("small", "large");
    assert_eq!(cache_status(&gateway.chat(BODY).await), (1, MISS));
    assert_eq!(cache_status(&gateway.chat(&large).await), (2, MISS));

    content.version = 2;
    content.models[1].backends[0].upstream_model = "successor".to_owned();
    content.keys.push((OTHER.to_owned(), 1, None, false));
    publish(&gateway, &content).await;
    assert_eq!(cache_status(&gateway.chat(BODY).await), (1, HIT));
    assert_eq!(cache_status(&gateway.chat(&large).await), (3, MISS));

    // Responses from before a reverted change are still valid.
    content.version = 3;
    content.models[1].backends[0].upstream_model = "small".to_owned();
    publish(&gateway, &content).await;
    assert_eq!(cache_status(&gateway.chat(&large).await), (2, HIT));

    content.version = 4;
    content.models[2].cache_ttl_seconds = Some(1800);
    publish(&gateway, &content).await;
    assert_eq!(cache_status(&gateway.chat(BODY).await), (4, MISS));
    content.version = 5;
    content.models[2].cache_ttl_seconds = None;
    publish(&gateway, &content).await;
    assert_eq!(cache_status(&gateway.chat(BODY).await), (5, None));
}
