use std::time::Duration;

use fastllm_contract::{Backend, BackendId, FORMAT, Model, ModelName, Part, Protocol, Snapshot};
use fastllm_engine::{Category, Tables, Tuning};
use http::StatusCode;

use super::{DropReason, Metrics, Outcome};

fn tables(models: &[(&str, &str)]) -> Tables {
    let models: Vec<Model> = models
        .iter()
        .map(|(name, api_base)| Model {
            name: ModelName::new(name).unwrap(),
            policy: None,
            context_length: None,
            backends: vec![Backend {
                id: BackendId(1),
                api_base: (*api_base).to_owned(),
                upstream_model: "served".to_owned(),
                api_key: None,
                protocol: Protocol::Openai,
                auth_header: "authorization".to_owned(),
                auth_scheme: None,
                default_max_tokens: None,
                weight: 1,
            }],
        })
        .collect();
    let snapshot = Snapshot {
        format: FORMAT,
        version: 7,
        open: true,
        models: Part::complete(format!("{models:?}"), models),
        principals: Part::complete("p", Vec::new()),
        virtual_models: Part::default(),
        fallback_model: None,
        key_shards: Vec::new(),
    };
    Tables::build(&snapshot, None, &Tuning::default())
        .unwrap()
        .tables
}

fn text(metrics: &Metrics, tables: &Tables) -> String {
    String::from_utf8(metrics.render(Some(tables), 3)).unwrap()
}

#[test]
fn names_and_labels_are_those_of_the_reference() {
    let metrics = Metrics::new().unwrap();
    let model = ModelName::new("small").unwrap();
    let served = tables(&[("small", "http://a/v1")]);
    metrics.snapshot_published(&served);
    metrics.finished(Outcome::Unavailable, Duration::from_millis(3));
    metrics.rejected(Category::Unauthorised);
    metrics.forwarded(StatusCode::TOO_MANY_REQUESTS);
    metrics.retried();
    metrics.failed_over();
    metrics.fallback_used();
    metrics.answered(&model, "http://a/v1", Duration::from_millis(3));
    metrics.first_event(&model, Duration::from_millis(2));
    metrics.tokens(&model, 5, 6);
    metrics.usage_lost(DropReason::QueueFull, 2);
    let text = text(&metrics, &served);
    for line in [
        "fastllm_requests_total 1",
        "fastllm_requests_failed_total 1",
        "fastllm_request_outcomes_total{outcome=\"unavailable\"} 1",
        "fastllm_request_outcomes_total{outcome=\"ok\"} 0",
        "fastllm_rejections_total{reason=\"unauthorised\"} 1",
        "fastllm_upstream_status_total{class=\"rate_limited\"} 1",
        "fastllm_retries_total 1",
        "fastllm_failovers_total 1",
        "fastllm_fallback_used_total 1",
        "fastllm_usage_reports_dropped_total{reason=\"queue_full\"} 2",
        "fastllm_usage_queue_depth 3",
        "fastllm_model_requests_total{model=\"small\"} 1",
        "fastllm_model_tokens_total{kind=\"completion\",model=\"small\"} 6",
        "fastllm_backend_requests_total{api_base=\"http://a/v1\"} 0",
        "fastllm_backend_errors_total{api_base=\"http://a/v1\"} 0",
        "fastllm_backend_inflight{api_base=\"http://a/v1\",model=\"small\"} 0",
        "fastllm_backend_healthy{api_base=\"http://a/v1\"} 1",
        "fastllm_snapshot_version 7",
        "fastllm_snapshot_poll_failures_total 0",
        "fastllm_request_duration_seconds_count 1",
        "fastllm_request_duration_seconds_bucket{le=\"0.005\"} 1",
        "fastllm_time_to_first_token_seconds_count 1",
        "fastllm_model_duration_seconds_count{model=\"small\"} 1",
        "fastllm_model_time_to_first_token_seconds_count{model=\"small\"} 1",
        "fastllm_backend_duration_seconds_count{api_base=\"http://a/v1\"} 1",
    ] {
        assert!(text.lines().any(|found| found == line), "{line}\n{text}");
    }
    assert!(text.contains("fastllm_build_info{version=\""));
}

#[test]
fn labels_of_what_is_gone_go_with_the_snapshot() {
    let metrics = Metrics::new().unwrap();
    let gone = ModelName::new("vanished").unwrap();
    let both = tables(&[
        ("vanished", "http://vanished/v1"),
        ("kept", "http://kept/v1"),
    ]);
    metrics.snapshot_published(&both);
    metrics.answered(&gone, "http://vanished/v1", Duration::ZERO);
    metrics.first_event(&gone, Duration::ZERO);
    metrics.tokens(&gone, 1, 1);
    assert!(text(&metrics, &both).contains("vanished"));

    let one = tables(&[("kept", "http://kept/v1")]);
    metrics.snapshot_published(&one);
    assert!(!text(&metrics, &one).contains("vanished"));
}
