//! Failover between models: virtual models, fallback, and the backend affinity of
//! conversations.

use std::collections::BTreeMap;

use fastllm_contract::{ModelName, RefusalKind, Rule, SplitBy, Target, VirtualModel};
use serde_json::json;

use crate::support::{
    Barrier, KEY, Options, SnapshotContent, Step, TestGateway, Upstream, backend, content, get,
    json_response, post,
};

fn name(text: &str) -> ModelName {
    ModelName::new(text).unwrap()
}

fn targets(models: &[&str]) -> Vec<Target> {
    let target = |model: &&str| Target {
        model: name(model),
        weight: 0,
    };
    models.iter().map(target).collect()
}

/// `auto` with these default targets.
fn auto(models: &[&str]) -> VirtualModel {
    VirtualModel {
        name: name("auto"),
        rules: Vec::new(),
        default_targets: targets(models),
        split_by: SplitBy::Prompt,
    }
}

/// `small`, `large` and `forbidden`, each on its own upstream.
fn separate_upstreams(small: &str, large: &str, forbidden: &str) -> SnapshotContent {
    let mut content = content(&[small.to_owned()]);
    for (model, address, id) in [(0, forbidden, 20), (1, large, 21)] {
        content.models[model].backends = vec![backend(id, address)];
    }
    content
}

async fn responding(status: &str, body: &str) -> Upstream {
    Upstream::start([json_response(status, body)]).await
}

async fn count(gateway: &TestGateway, name: &str) -> i64 {
    #[expect(clippy::cast_possible_truncation, reason = "counters are small")]
    let count = gateway.metric(name).await.round() as i64;
    count
}

const AUTO: &str = "{\"model\":\"auto\"}";
const SMALL: &str = "{\"model\":\"small\"}";

#[tokio::test]
async fn rules_select_the_model_and_the_usage_names_both_models() {
    let (small, large) = (
        responding("200 OK", "{\"by\":\"small\"}").await,
        responding("200 OK", "{\"by\":\"large\"}").await,
    );
    let mut content =
        separate_upstreams(&small.api_base(), &large.api_base(), "http://127.0.0.1:1");
    let mut stands = auto(&["small"]);
    stands.rules.push(Rule {
        headers: BTreeMap::from([("X-Tier".to_owned(), "gold".to_owned())]),
        targets: targets(&["large"]),
        ..Rule::default()
    });
    content.virtual_models.push(stands);
    let gateway = TestGateway::serving(&content, Options::default()).await;
    assert_eq!(gateway.chat(AUTO).await.text(), "{\"by\":\"small\"}");
    let headers = format!("authorization: Bearer {KEY}\r\nx-tier: gold\r\n");
    let golden = post("/v1/chat/completions", &headers, AUTO);
    assert_eq!(gateway.send(&golden).await.text(), "{\"by\":\"large\"}");
    // The upstream receives its own model name.
    assert_eq!(large.seen().requests[0].body, b"{\"model\":\"small\"}");

    let list = gateway
        .send(&get("/v1/models", &format!("x-api-key: {KEY}\r\n")))
        .await
        .json();
    let ids: Vec<_> = list["data"].as_array().unwrap().iter().collect();
    let ids: Vec<_> = ids.into_iter().map(|model| model["id"].clone()).collect();
    assert_eq!(json!(ids), json!(["auto", "large", "small"]));

    let events = gateway.finish().await;
    let accounted: Vec<_> = events
        .iter()
        .map(|event| (event.model.as_str(), event.requested_model.clone()))
        .collect();
    let requested = Some(name("auto"));
    assert_eq!(
        accounted,
        [("small", requested.clone()), ("large", requested)]
    );
}

#[tokio::test]
async fn failures_move_to_the_next_model_and_the_fallback() {
    for failing in ["500 X", "429 X", "503 X"] {
        let (small, large) = (
            responding(failing, "{}").await,
            responding("200 OK", "{\"by\":\"large\"}").await,
        );
        let mut content =
            separate_upstreams(&small.api_base(), &large.api_base(), "http://127.0.0.1:1");
        content.fallback = Some(name("large"));
        let gateway = TestGateway::serving(&content, Options::default()).await;
        assert_eq!(
            gateway.chat(SMALL).await.text(),
            "{\"by\":\"large\"}",
            "{failing}"
        );
        assert_eq!(small.seen().requests.len(), 1);
        assert_eq!(count(&gateway, "fastllm_failovers_total").await, 1);
        assert_eq!(count(&gateway, "fastllm_fallback_used_total").await, 1);
        assert_eq!(count(&gateway, "fastllm_retries_total").await, 0);
        let events = gateway.finish().await;
        assert_eq!(events.len(), 1);
        assert_eq!(events[0].model, name("large"));
        assert_eq!(events[0].requested_model, Some(name("small")));
        assert_eq!((events[0].status, events[0].refusal), (Some(200), None));
    }
}

#[tokio::test]
async fn a_client_error_ends_the_failover() {
    let (small, large) = (
        responding("400 X", "{\"error\":1}").await,
        responding("200 OK", "{}").await,
    );
    let mut content =
        separate_upstreams(&small.api_base(), &large.api_base(), "http://127.0.0.1:1");
    content.virtual_models.push(auto(&["small", "large"]));
    let gateway = TestGateway::serving(&content, Options::default()).await;
    assert_eq!(gateway.chat(AUTO).await.status, 400);
    assert!(large.seen().requests.is_empty());
    assert_eq!(count(&gateway, "fastllm_failovers_total").await, 0);
}

#[tokio::test]
async fn the_most_useful_response_survives_unreachable_models() {
    let limited = "{\"error\":\"slow down\"}";
    let small = responding("429 X", limited).await;
    let gone = responding("200 OK", "{}").await;
    let nowhere = gone.api_base();
    drop(gone);
    let mut content = separate_upstreams(&small.api_base(), &nowhere, "http://127.0.0.1:1");
    content.virtual_models.push(auto(&["small", "large"]));
    let gateway = TestGateway::serving(&content, Options::flags(&["--max-retries=1"])).await;
    let reply = gateway.chat(AUTO).await;
    assert_eq!((reply.status, reply.text().as_str()), (429, limited));
    assert_eq!(count(&gateway, "fastllm_failovers_total").await, 1);
    // A refused connection may be temporary, so it is retried once.
    assert_eq!(count(&gateway, "fastllm_retries_total").await, 1);
    let events = gateway.finish().await;
    assert_eq!((events.len(), events[0].status), (1, Some(429)));
    assert_eq!(events[0].model, name("small"));
}

#[tokio::test]
async fn failover_never_reaches_a_model_without_a_grant() {
    let (small, forbidden) = (
        responding("500 X", "{}").await,
        responding("200 OK", "{}").await,
    );
    let mut content = separate_upstreams(
        &small.api_base(),
        "http://127.0.0.1:1",
        &forbidden.api_base(),
    );
    content.fallback = Some(name("forbidden"));
    content.virtual_models = vec![auto(&["forbidden", "small"])];
    content.virtual_models.push(VirtualModel {
        name: name("closed"),
        ..auto(&["forbidden"])
    });
    let gateway = TestGateway::serving(&content, Options::default()).await;
    assert_eq!(gateway.chat(AUTO).await.status, 500);
    assert_eq!(gateway.chat(SMALL).await.status, 500);
    let refused = gateway.chat("{\"model\":\"closed\"}").await;
    assert_eq!(refused.error().2, "model_access_denied");
    let unknown = gateway.chat("{\"model\":\"unknown\"}").await;
    assert_eq!(unknown.error().2, "model_not_found");
    assert!(forbidden.seen().requests.is_empty());
    let mut events = gateway.finish().await;
    events.sort_by_key(|event| event.at);
    assert_eq!(events.len(), 3);
    let last = &events[2];
    assert_eq!(last.refusal, Some(RefusalKind::Authorisation));
    assert_eq!(last.model, name("forbidden"));
    assert_eq!(last.requested_model, Some(name("closed")));
}

/// A response with `retry-after`.
fn busy(seconds: u32) -> Vec<Step> {
    crate::support::raw(format!(
        "HTTP/1.1 503 X\r\ncontent-length: 2\r\nretry-after: {seconds}\r\n\r\n{{}}"
    ))
}

#[tokio::test]
async fn a_single_busy_backend_is_retried_unless_its_retry_after_is_long() {
    let moment = Upstream::start([busy(0), json_response("200 OK", "{\"ok\":1}")]).await;
    let gateway = TestGateway::start(&[&moment]).await;
    assert_eq!(gateway.chat(SMALL).await.text(), "{\"ok\":1}");
    assert_eq!(count(&gateway, "fastllm_retries_total").await, 1);

    let long = Upstream::start([busy(60), json_response("200 OK", "{}")]).await;
    let gateway = TestGateway::start(&[&long]).await;
    let reply = gateway.chat(SMALL).await;
    assert_eq!(
        (reply.status, reply.header("retry-after")),
        (503, Some("60"))
    );
    assert_eq!(long.seen().requests.len(), 1);
}

#[tokio::test]
async fn a_backend_with_a_retry_after_is_skipped_by_every_request() {
    let bad = Upstream::start([busy(60), json_response("200 OK", "{\"by\":\"bad\"}")]).await;
    let good = responding("200 OK", "{\"by\":\"good\"}").await;
    let gateway = TestGateway::start(&[&bad, &good]).await;
    for _ in 0..6 {
        assert_eq!(gateway.chat(SMALL).await.text(), "{\"by\":\"good\"}");
    }
    assert_eq!(bad.seen().requests.len(), 1);
    assert_eq!(count(&gateway, "fastllm_retries_total").await, 1);
}

#[tokio::test]
async fn a_backend_that_keeps_failing_is_ejected() {
    let bad = responding("500 X", "{}").await;
    let good = responding("200 OK", "{}").await;
    let flags = Options::flags(&["--policy=round-robin", "--health-interval=3600"]);
    let gateway = TestGateway::start_with(&[&bad, &good], flags).await;
    for _ in 0..10 {
        assert_eq!(gateway.chat(SMALL).await.status, 200);
    }
    // Every second request starts there, until five in a row have failed.
    gateway
        .until("the backend to be ejected", async || {
            let before = bad.seen().requests.len();
            for _ in 0..4 {
                assert_eq!(gateway.chat(SMALL).await.status, 200);
            }
            bad.seen().requests.len() == before
        })
        .await;
}

#[tokio::test]
async fn a_conversation_stays_on_its_backend() {
    let (one, two) = (
        responding("200 OK", "{\"by\":1}").await,
        responding("200 OK", "{\"by\":2}").await,
    );
    let gateway = TestGateway::start(&[&one, &two]).await;
    let mut talks = Vec::new();
    for talk in 0..6 {
        let mut messages = vec![
            json!({"role": "system", "content": "be brief"}),
            json!({"role": "user", "content": format!("question {talk}, in a few words more")}),
        ];
        let mut by = Vec::new();
        for turn in 0..4 {
            let body = json!({"model": "small", "messages": messages, "seed": turn});
            by.push(gateway.chat(&body.to_string()).await.text());
            messages.push(json!({"role": "assistant", "content": "yes"}));
            messages.push(json!({"role": "user", "content": format!("and {turn}?")}));
        }
        by.dedup();
        assert_eq!(by.len(), 1, "{by:?}");
        talks.extend(by);
    }
    // The backends are idle, so the one with the cached system prompt is preferred.
    talks.dedup();
    assert_eq!(talks.len(), 1);
}

#[tokio::test]
async fn latency_is_measured_and_the_faster_backend_is_preferred() {
    let barrier = Barrier::new();
    let mut script = vec![Step::Wait(barrier.clone())];
    script.extend(json_response("200 OK", "{}"));
    let slow = Upstream::start([script]).await;
    let fast = responding("200 OK", "{}").await;
    let flags = Options::flags(&["--policy=lowest-latency"]);
    let gateway = TestGateway::start_with(&[&slow, &fast], flags).await;
    let mut held = gateway.client().await;
    held.write(&crate::support::chat(SMALL)).await;
    slow.wait_for("the slow request", |seen| seen.requests.len() == 1)
        .await;
    // The slow backend takes as long as all of these requests together.
    for _ in 0..20 {
        assert_eq!(gateway.chat(SMALL).await.status, 200);
    }
    barrier.cancel();
    assert_eq!(held.reply().await.status, 200);
    for _ in 0..20 {
        assert_eq!(gateway.chat(SMALL).await.status, 200);
    }
    assert_eq!(slow.seen().requests.len(), 1);
    assert_eq!(fast.seen().requests.len(), 40);
}

#[tokio::test]
async fn a_backend_at_a_refused_address_fails_over_and_a_range_can_be_allowed() {
    let good = responding("200 OK", "{\"by\":\"good\"}").await;
    // The system would connect to a local server by this address.
    let unspecified = |upstream: &Upstream| {
        let base = upstream.api_base();
        base.replace("127.0.0.1", "0.0.0.0")
    };
    let refused = unspecified(&good);
    let gateway = TestGateway::serving(
        &content(&[refused.clone(), good.api_base()]),
        Options::default(),
    )
    .await;
    let reply = gateway.chat(SMALL).await;
    assert_eq!(
        (reply.status, reply.text()),
        (200, "{\"by\":\"good\"}".to_owned())
    );

    let gateway =
        TestGateway::serving(&content(std::slice::from_ref(&refused)), Options::default()).await;
    let reply = gateway.chat(SMALL).await;
    assert_eq!(reply.status, 502, "{}", reply.text());
    assert_eq!(good.seen().requests.len(), 1);

    let local = responding("200 OK", "{\"by\":\"local\"}").await;
    let allowed = Options::flags(&["--allow-upstream-cidr=0.0.0.0/32"]);
    let gateway = TestGateway::serving(&content(&[unspecified(&local)]), allowed).await;
    assert_eq!(gateway.chat(SMALL).await.status, 200);
}
