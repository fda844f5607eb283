//! Spans exported to an OTLP collector.

use std::time::Duration;

use opentelemetry_proto::tonic::trace::v1::Span;

use crate::support::{
    Collector, KEY, Options, TestGateway, Upstream, attribute, events, get, json_response, logged,
    post, raw,
};

const BODY: &str =
    "{\"model\":\"small\",\"messages\":[{\"role\":\"user\",\"content\":\"canary\"}]}";
const RESPONSE: &str = "{\"usage\":{\"prompt_tokens\":7,\"completion_tokens\":3}}";
const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";
const SPAN: &str = "b7ad6b7169203331";

fn to(collector: &Collector, one_in: u32) -> Options {
    Options::flags(&[
        &format!("--otel-endpoint={}", collector.url()),
        "--otel-protocol=http/protobuf",
        &format!("--otel-sample-one-in={one_in}"),
    ])
}

fn chat_from(traceparent: &str) -> Vec<u8> {
    post(
        "/v1/chat/completions",
        &format!("authorization: Bearer {KEY}\r\ntraceparent: {traceparent}\r\n"),
        BODY,
    )
}

fn assert_attributes(span: &Span, expected: &[(&str, &str)]) {
    for (key, value) in expected {
        assert_eq!(attribute(span, key), *value, "{key} of {span:?}");
    }
}

#[tokio::test]
async fn a_request_is_one_span_without_identity_and_content() {
    let collector = Collector::start().await;
    let upstream = Upstream::start([json_response("200 OK", RESPONSE)]).await;
    let mut options = to(&collector, 1);
    options
        .flags
        .push("--otel-headers=x-tenant=a%20b".to_owned());
    let gateway = TestGateway::start_with(&[&upstream], options).await;
    // Neither of these is a proxied request.
    let list = get("/v1/models", &format!("authorization: Bearer {KEY}\r\n"));
    assert_eq!(gateway.send(&list).await.status, 200);
    assert_eq!(gateway.get("/readyz").await.status, 200);
    assert_eq!(gateway.chat(BODY).await.status, 200);
    let spans = collector.wait_for(1).await;
    let span = &spans[0];
    assert_eq!(
        (spans.len(), span.name.as_str(), span.kind),
        (1, "chat small", 3)
    );
    assert!(span.parent_span_id.is_empty() && span.status.is_none());
    assert!(span.end_time_unix_nano > span.start_time_unix_nano);
    let (port, api_base) = (upstream.address.port().to_string(), upstream.api_base());
    assert_attributes(
        span,
        &[
            ("gen_ai.operation.name", "chat"),
            ("gen_ai.provider.name", "openai"),
            ("gen_ai.request.model", "small"),
            ("gen_ai.response.model", "small"),
            ("gen_ai.usage.input_tokens", "7"),
            ("gen_ai.usage.output_tokens", "3"),
            ("http.response.status_code", "200"),
            ("server.address", "127.0.0.1"),
            ("server.port", &port),
            ("error.type", ""),
            ("model", "small"),
            ("served_model", "small"),
            ("backend", &api_base),
            ("stream", "false"),
            ("status", "200"),
            ("attempts", "1"),
        ],
    );
    let posts = collector.posts();
    assert_eq!(posts[0].word(1), "/v1/traces");
    assert_eq!(
        posts[0].header("content-type"),
        Some("application/x-protobuf")
    );
    assert_eq!(posts[0].header("x-tenant"), Some("a b"));
    let sent = String::from_utf8_lossy(&posts[0].body).into_owned();
    for kept in ["canary", "sk-usual", "tester", "messages"] {
        assert!(!sent.contains(kept), "{kept} in {sent}");
    }
}

#[tokio::test]
async fn spans_identify_their_process() {
    let collector = Collector::start().await;
    let upstream = Upstream::start([json_response("200 OK", RESPONSE)]).await;
    let mut options = to(&collector, 1);
    options
        .flags
        .push("--otel-resource=team=blue,service.name=other".to_owned());
    options.flags.push("--replica=pod-7".to_owned());
    let gateway = TestGateway::start_with(&[&upstream], options).await;
    gateway.chat(BODY).await;
    collector.wait_for(1).await;
    let requests = collector.requests();
    let resource = requests[0].resource_spans[0].resource.clone().unwrap();
    let text = format!("{resource:?}");
    for received in ["service.name", "fastllm-proxy", "pod-7", "team", "blue"] {
        assert!(text.contains(received), "{received} in {text}");
    }
    assert!(!text.contains("other"), "{text}");
}

#[tokio::test]
async fn a_streams_span_has_the_time_of_the_first_event() {
    const ONE: &str = "data: {\"choices\":[{\"delta\":{\"content\":\"a\"}}]}\n\n";
    let collector = Collector::start().await;
    let upstream = Upstream::start([raw(events(&[ONE, "data: [DONE]\n\n"], true))]).await;
    let gateway = TestGateway::start_with(&[&upstream], to(&collector, 1)).await;
    gateway.chat("{\"model\":\"small\",\"stream\":true}").await;
    let span = collector.wait_for(1).await.remove(0);
    assert_attributes(
        &span,
        &[("stream", "true"), ("gen_ai.request.stream", "true")],
    );
    let first = &span.events[0];
    assert_eq!(first.name, "first_token");
    assert!(first.time_unix_nano >= span.start_time_unix_nano);
    assert!(first.time_unix_nano <= span.end_time_unix_nano);
    let seconds: f64 = attribute(&span, "gen_ai.response.time_to_first_chunk")
        .parse()
        .unwrap();
    assert!(seconds > 0.0);
}

#[tokio::test]
async fn spans_of_rejections_and_failures_have_the_error() {
    let collector = Collector::start().await;
    let upstream = Upstream::start([json_response("400 Bad Request", "{}")]).await;
    let gateway = TestGateway::start_with(&[&upstream], to(&collector, 1)).await;
    assert_eq!(gateway.chat(BODY).await.status, 400);
    let unknown = "{\"model\":\"nobodys-secret\"}";
    assert_eq!(gateway.chat(unknown).await.status, 404);
    let spans = collector.wait_for(2).await;
    assert_attributes(&spans[0], &[("error.type", "400"), ("status", "400")]);
    assert_attributes(
        &spans[1],
        &[
            ("error.type", "model_not_found"),
            ("status", "404"),
            ("attempts", "0"),
            ("model", ""),
            ("backend", ""),
        ],
    );
    assert_eq!(spans[1].name, "chat");
    assert!(spans.iter().all(|span| span.status.is_some()));
    assert!(!format!("{spans:?}").contains("nobodys"));
}

#[tokio::test]
async fn one_in_n_requests_is_traced_and_the_context_is_propagated() {
    let collector = Collector::start().await;
    let upstream = Upstream::start([json_response("200 OK", RESPONSE)]).await;
    let mut gateway = TestGateway::start_with(&[&upstream], to(&collector, 3)).await;
    for _ in 0..10 {
        assert_eq!(gateway.chat(BODY).await.status, 200);
    }
    gateway.stop();
    gateway.ended().await;
    // The last spans are sent at shutdown.
    let mut spans = collector.spans();
    spans.sort_by_key(|span| span.start_time_unix_nano);
    let ours: Vec<String> = spans
        .iter()
        .map(|span| {
            format!(
                "00-{}-{}-01",
                hex::encode(&span.trace_id),
                hex::encode(&span.span_id)
            )
        })
        .collect();
    let received: Vec<Option<String>> = upstream
        .seen()
        .requests
        .iter()
        .map(|request| request.header("traceparent").map(str::to_owned))
        .collect();
    let expected: Vec<Option<String>> = (0..10)
        .map(|index| (index % 3 == 0).then(|| ours[index / 3].clone()))
        .collect();
    assert_eq!((ours.len(), received), (4, expected));
}

#[tokio::test]
async fn the_callers_sampling_decision_is_honoured() {
    let collector = Collector::start().await;
    let upstream = Upstream::start([json_response("200 OK", RESPONSE)]).await;
    let mut gateway = TestGateway::start_with(&[&upstream], to(&collector, 1_000_000)).await;
    // This request is the one that the sampler selects.
    assert_eq!(gateway.chat(BODY).await.status, 200);
    let (no, yes) = (
        format!("00-{TRACE}-{SPAN}-00"),
        format!("00-{TRACE}-{SPAN}-01"),
    );
    for caller in [&no, &yes, &no] {
        assert_eq!(gateway.send(&chat_from(caller)).await.status, 200);
    }
    gateway.stop();
    gateway.ended().await;
    let spans = collector.spans();
    let child = spans
        .iter()
        .find(|span| hex::encode(&span.trace_id) == TRACE)
        .unwrap();
    assert_eq!(
        (spans.len(), hex::encode(&child.parent_span_id)),
        (2, SPAN.to_owned())
    );
    let received: Vec<String> = upstream.seen().requests[1..]
        .iter()
        .map(|request| request.header("traceparent").unwrap().to_owned())
        .collect();
    let ours = format!("00-{TRACE}-{}-01", hex::encode(&child.span_id));
    assert_eq!(received, [no.clone(), ours, no]);
}

#[tokio::test]
async fn spans_are_exported_over_grpc() {
    let collector = Collector::called().await;
    let upstream = Upstream::start([json_response("200 OK", RESPONSE)]).await;
    let address = format!("--otel-endpoint={}", collector.url());
    let options = Options::flags(&[&address, "--otel-sample-one-in=1"]);
    let gateway = TestGateway::start_with(&[&upstream], options).await;
    assert_eq!(gateway.chat(BODY).await.status, 200);
    assert_eq!(collector.wait_for(1).await[0].name, "chat small");
    gateway
        .until("the response to be read", async || {
            gateway.metric("fastllm_trace_spans_exported_total").await > 0.5
        })
        .await;
    let posts = collector.posts();
    assert_eq!(posts[0].header("content-type"), Some("application/grpc"));
    assert!(posts[0].word(1).ends_with(".TraceService/Export"));
}

#[tokio::test]
async fn an_unavailable_collector_loses_spans_only() {
    let upstream = Upstream::start([json_response("200 OK", RESPONSE)]).await;
    // The discard port refuses connections.
    let options = Options::flags(&[
        "--otel-endpoint=http://127.0.0.1:9",
        "--otel-sample-one-in=1",
    ]);
    let mut gateway = TestGateway::start_with(&[&upstream], options).await;
    for _ in 0..20 {
        assert_eq!(gateway.chat(BODY).await.status, 200);
    }
    let lost = "fastllm_trace_spans_dropped_total{reason=\"unreachable\"}";
    gateway
        .until("the loss to be counted", async || {
            gateway.metric(lost).await > 19.5
        })
        .await;
    assert!(logged().contains("the collector does not take spans"));
    assert_eq!(gateway.chat(BODY).await.status, 200);
    gateway.stop();
    tokio::time::timeout(Duration::from_secs(5), gateway.ended())
        .await
        .unwrap();
}

#[tokio::test]
async fn spans_rejected_by_the_collector_are_counted_and_not_retried() {
    let collector = Collector::with_status(400).await;
    let upstream = Upstream::start([json_response("200 OK", RESPONSE)]).await;
    let gateway = TestGateway::start_with(&[&upstream], to(&collector, 1)).await;
    assert_eq!(gateway.chat(BODY).await.status, 200);
    let lost = "fastllm_trace_spans_dropped_total{reason=\"refused\"}";
    gateway
        .until("the loss to be counted", async || {
            gateway.metric(lost).await > 0.5
        })
        .await;
    assert_eq!(collector.posts().len(), 1);
}
