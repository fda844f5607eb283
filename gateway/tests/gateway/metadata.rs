//! Request metadata sent by clients.

use fastllm_contract::MetadataValue::{Flag, Float, Integer, Text};
use serde_json::json;

use crate::support::{KEY, Options, TestGateway, Upstream, json_response, post};

const RESPONSE: &str = "{\"choices\":[],\"usage\":{\"prompt_tokens\":7,\"completion_tokens\":3}}";

async fn gateway(flags: &[&str]) -> (TestGateway, Upstream) {
    let upstream = Upstream::start([json_response("200 OK", RESPONSE)]).await;
    let gateway = TestGateway::start_with(&[&upstream], Options::flags(flags)).await;
    (gateway, upstream)
}

#[tokio::test]
async fn metadata_is_forwarded_unchanged_and_recorded_in_the_usage() {
    let (gateway, upstream) = gateway(&[]).await;
    let body = "{\"model\":\"small\",\"metadata\" : { \"batch\":42,\"share\":0.5,\"canary\":true,\
         \"team\":\"\\u00e9quipe\" } }";
    assert_eq!(gateway.chat(body).await.status, 200);
    assert_eq!(upstream.request().body, body.as_bytes());
    assert_eq!(
        gateway
            .chat("{\"model\":\"small\",\"metadata\":null}")
            .await
            .status,
        200
    );
    let events = gateway.finish().await;
    let metadata = events[0].metadata.as_ref().unwrap();
    let said: Vec<_> = metadata.iter().collect();
    let expected = [
        ("batch", Integer(42)),
        ("share", Float(0.5)),
        ("canary", Flag(true)),
        ("team", Text("\u{e9}quipe")),
    ];
    assert_eq!(said, expected);
    assert_eq!(events[1].metadata, None);
}

#[tokio::test]
async fn lists_and_nested_objects_are_recorded_and_names_count_characters() {
    let (gateway, upstream) = gateway(&[]).await;
    let name = "漢".repeat(64);
    let text = "漢".repeat(512);
    let body = format!(
        "{{\"model\":\"small\",\"metadata\":{{\"tags\":[\"team:search\",\"b\"],\"user_id\":null,\
         \"spend_logs_metadata\":{{\"job\":7}},\"{name}\":\"{text}\"}}}}"
    );
    assert_eq!(gateway.chat(&body).await.status, 200);
    assert_eq!(upstream.request().body, body.as_bytes());
    let event = &gateway.finish().await[0];
    assert_eq!(
        serde_json::to_value(&event.metadata).unwrap(),
        json!({
            "tags": ["team:search", "b"],
            "spend_logs_metadata.job": 7,
            (name): text,
        })
    );
}

#[tokio::test]
async fn invalid_metadata_is_rejected_and_not_forwarded() {
    let (gateway, upstream) = gateway(&[]).await;
    for (metadata, code) in [
        ("\"metadata\":[]", "invalid_type"),
        ("\"metadata\":{\"a\":{\"b\":{}}}", "invalid_type"),
        ("\"metadata\":{\"a\":[1]}", "invalid_type"),
        ("\"metadata\":{\"\":1}", "invalid_value"),
        ("\"metadata\":{},\"metadata\":{}", "ambiguous_parameter"),
        ("\"Metadata\":{}", "ambiguous_parameter"),
    ] {
        for path in ["/v1/chat/completions", "/v1/embeddings", "/v1/responses"] {
            let body = format!("{{\"model\":\"small\",{metadata}}}");
            let request = post(path, &format!("x-api-key: {KEY}\r\n"), &body);
            let (status, _, given, param) = gateway.send(&request).await.error();
            assert_eq!((status, given.as_str()), (400, code), "{body}");
            assert_eq!(param, json!("metadata"));
        }
    }
    assert!(upstream.seen().requests.is_empty());
    assert!(gateway.finish().await.is_empty());
}

#[tokio::test]
async fn the_usage_of_a_rejected_request_has_metadata() {
    let (gateway, _upstream) = gateway(&[]).await;
    let body = "{\"model\":\"forbidden\",\"metadata\":{\"team\":\"a\"}}";
    assert_eq!(gateway.chat(body).await.status, 403);
    let event = &gateway.finish().await[0];
    assert!(event.refusal.is_some());
    let metadata = event.metadata.as_ref().unwrap();
    assert_eq!(metadata.get("team"), Some(Text("a")));
}

#[tokio::test]
async fn configured_members_label_the_usage_metrics() {
    let (gateway, _upstream) = gateway(&["--metadata-labels=team,cost-center"]).await;
    let said =
        "{\"model\":\"small\",\"metadata\":{\"team\":\"a\",\"cost-center\":7,\"user\":\"x\"}}";
    assert_eq!(gateway.chat(said).await.status, 200);
    assert_eq!(gateway.chat("{\"model\":\"small\"}").await.status, 200);
    let tokens = "fastllm_usage_tokens_total{cost_center=\"7\",kind=\"prompt\",team=\"a\"}";
    // A request is accounted for after its response.
    gateway
        .until("the usage to be counted", async || {
            gateway.metric(tokens).await > 6.5
        })
        .await;
    let unsaid = "fastllm_usage_requests_total{cost_center=\"\",team=\"\"}";
    gateway
        .until("the other one", async || gateway.metric(unsaid).await > 0.5)
        .await;
}
