use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use fastllm_contract::{
    Backend, BackendId, Concurrency, FORMAT, Failover, HealthCheck, Model, ModelName, Protocol,
    RequestOptions, Section, Snapshot,
};
use fastllm_engine::{BackendMetrics, CacheUsage, Category, RoutingState, Tuning};
use http::StatusCode;

use super::{CacheUse, DropReason, Metrics, Observed, Outcome, SpanLoss};

fn tables(models: &[(&str, &str)]) -> RoutingState {
    tables_after(None, models)
}

fn tables_after(held: Option<&RoutingState>, models: &[(&str, &str)]) -> RoutingState {
    let models: Vec<Model> = models
        .iter()
        .map(|(name, api_base)| Model {
            cache_ttl_seconds: None,
            failover: Failover::default(),
            name: ModelName::new(name).unwrap(),
            policy: None,
            context_length: None,
            backends: vec![Backend {
                id: BackendId(1),
                api_base: (*api_base).to_owned(),
                upstream_model: (*name).to_owned(),
                api_key: None,
                protocol: Protocol::Openai,
                auth_header: "authorization".to_owned(),
                auth_scheme: None,
                default_max_tokens: None,
                weight: 1,
                draining: false,
                concurrency: Concurrency::default(),
                request_options: RequestOptions::default(),
                health: HealthCheck::default(),
            }],
        })
        .collect();
    let snapshot = Snapshot {
        teams: Section::default(),
        format: FORMAT,
        version: 7,
        open: true,
        models: Section::complete(format!("{models:?}"), models),
        principals: Section::complete("p", Vec::new()),
        virtual_models: Section::default(),
        fallback_model: None,
        key_shards: Vec::new(),
    };
    RoutingState::build(&snapshot, held, &Tuning::default())
        .unwrap()
        .state
}

fn serve(metrics: &Metrics, tables: &RoutingState) {
    metrics.attach(tables);
    metrics.snapshot_published(tables);
}

/// The metrics of a model's first backend.
fn series(tables: &RoutingState, model: &str) -> Arc<dyn BackendMetrics> {
    let (_, backend) = tables
        .backends()
        .find(|(name, _)| name.as_str() == model)
        .unwrap();
    Arc::clone(backend.metrics().unwrap())
}

fn text(metrics: &Metrics, tables: &RoutingState) -> String {
    String::from_utf8(metrics.render(Some(tables))).unwrap()
}

fn assert_line(text: &str, line: &str) {
    assert!(text.lines().any(|found| found == line), "{line}\n{text}");
}

/// Updates every metric.
fn moved() -> String {
    let metrics = Metrics::new().unwrap();
    let metrics = metrics.with_labels(&"team".parse().unwrap()).unwrap();
    let served = tables(&[("small", "http://a/v1")]);
    serve(&metrics, &served);
    let series = series(&served, "small");
    metrics.finished(Outcome::Unavailable, Duration::from_millis(3));
    metrics.rejected(Category::Unauthorised);
    metrics.forwarded(StatusCode::TOO_MANY_REQUESTS);
    metrics.retried();
    metrics.failed_over();
    metrics.fallback_used();
    series.record_response(Duration::from_millis(3));
    series.record_tokens(5, 6);
    metrics.first_event(Some(&*series), Duration::from_millis(2));
    metrics.usage_lost(DropReason::QueueFull, 2);
    metrics.used(None, None);
    metrics.usage_implausible();
    metrics.usage_spilled(500, 200_000);
    metrics.spans_lost(SpanLoss::Unreachable, 4);
    metrics.spans_exported(3);
    let _client = metrics.client_connected();
    let _upstreams = [metrics.upstream_connected(), metrics.upstream_connected()];
    drop(metrics.upstream_connected());
    metrics.name_not_found();
    metrics.cache(CacheUse::Store);
    metrics.observe_with(|| Observed {
        usage_queued: 3,
        cache: CacheUsage {
            entries: 3,
            bytes: 4000,
        },
    });
    text(&metrics, &served)
}

#[test]
fn names_and_labels_match_the_reference() {
    let text = moved();
    for line in [
        "fastllm_requests_total 1",
        "fastllm_requests_failed_total 1",
        "fastllm_request_outcomes_total{outcome=\"unavailable\"} 1",
        "fastllm_request_outcomes_total{outcome=\"ok\"} 0",
        "fastllm_rejections_total{reason=\"unauthorised\"} 1",
        "fastllm_upstream_status_total{class=\"rate_limited\"} 1",
        "fastllm_upstream_status_total{class=\"success\"} 0",
        "fastllm_retries_total 1",
        "fastllm_failovers_total 1",
        "fastllm_fallback_used_total 1",
        "fastllm_usage_reports_dropped_total{reason=\"queue_full\"} 2",
        "fastllm_usage_requests_total{team=\"\"} 1",
        "fastllm_usage_tokens_total{kind=\"cached\",team=\"\"} 0",
        "fastllm_usage_spill_events 500",
        "fastllm_usage_spill_bytes 200000",
        "fastllm_usage_queue_depth 3",
        "fastllm_trace_spans_dropped_total{reason=\"unreachable\"} 4",
        "fastllm_trace_spans_exported_total 3",
        "fastllm_client_connections 1",
        "fastllm_upstream_connections 2",
        "fastllm_model_requests_total{model=\"small\"} 1",
        "fastllm_model_tokens_total{kind=\"completion\",model=\"small\"} 6",
        "fastllm_backend_requests_total{api_base=\"http://a/v1\"} 0",
        "fastllm_backend_errors_total{api_base=\"http://a/v1\"} 0",
        "fastllm_backend_ejections_total{api_base=\"http://a/v1\",reason=\"failures\"} 0",
        "fastllm_backend_ejections_total{api_base=\"http://a/v1\",reason=\"credential\"} 0",
        "fastllm_backend_ejections_total{api_base=\"http://a/v1\",reason=\"configuration\"} 0",
        "fastllm_backend_probe_failures_total{api_base=\"http://a/v1\"} 0",
        "fastllm_backend_inflight{api_base=\"http://a/v1\",model=\"small\"} 0",
        "fastllm_backend_waiting{api_base=\"http://a/v1\",model=\"small\"} 0",
        "fastllm_backend_healthy{api_base=\"http://a/v1\"} 1",
        "fastllm_backend_ejected{api_base=\"http://a/v1\",reason=\"failures\"} 0",
        "fastllm_backend_ejected{api_base=\"http://a/v1\",reason=\"credential\"} 0",
        "fastllm_backend_ejected{api_base=\"http://a/v1\",reason=\"configuration\"} 0",
        "fastllm_snapshot_version 7",
        "fastllm_snapshot_poll_failures_total 0",
        "fastllm_dns_failures_total 1",
        "fastllm_cache_total{kind=\"store\"} 1",
        "fastllm_cache_total{kind=\"hit\"} 0",
        "fastllm_cache_entries 3",
        "fastllm_cache_bytes 4000",
        "fastllm_request_duration_seconds_count 1",
        "fastllm_request_duration_seconds_bucket{le=\"0.005\"} 1",
        "fastllm_time_to_first_token_seconds_count 1",
        "fastllm_model_duration_seconds_count{model=\"small\"} 1",
        "fastllm_model_time_to_first_token_seconds_count{model=\"small\"} 1",
        "fastllm_backend_duration_seconds_count{api_base=\"http://a/v1\"} 1",
    ] {
        assert_line(&text, line);
    }
    assert!(text.contains("fastllm_build_info{version=\""));
    for gauge in ["snapshot_age", "snapshot_last_contact"] {
        assert!(
            text.contains(&format!("\nfastllm_{gauge}_seconds ")),
            "{gauge}"
        );
    }
}

#[test]
fn the_reference_page_lists_exactly_the_metrics() {
    let page = include_str!("../../../../docs/reference/metrics.md");
    let (gateway, _) = page.split_once("\n## Control plane").unwrap();
    let documented: HashSet<&str> = gateway
        .lines()
        .filter_map(|line| line.strip_prefix("| `")?.split('`').next())
        .collect();
    let text = moved();
    let exposed: HashSet<&str> = text
        .lines()
        .filter_map(|line| line.strip_prefix("# TYPE ")?.split(' ').next())
        .collect();
    assert_eq!(documented, exposed);
}

#[test]
fn labels_are_removed_with_their_snapshot() {
    let metrics = Metrics::new().unwrap();
    let both = tables(&[
        ("vanished", "http://vanished/v1"),
        ("kept", "http://kept/v1"),
    ]);
    serve(&metrics, &both);
    let gone = series(&both, "vanished");
    gone.record_response(Duration::ZERO);
    gone.record_tokens(1, 1);
    assert!(text(&metrics, &both).contains("vanished"));

    let one = tables_after(Some(&both), &[("kept", "http://kept/v1")]);
    serve(&metrics, &one);
    // A request that is still in progress does not restore the labels.
    gone.record_response(Duration::ZERO);
    assert!(!text(&metrics, &one).contains("vanished"));
}

#[test]
fn sums_by_address_outlive_their_backends() {
    let metrics = Metrics::new().unwrap();
    let shared = [("one", "http://a/v1"), ("two", "http://a/v1")];
    let both = tables(&shared);
    serve(&metrics, &both);
    for (_, backend) in both.backends() {
        for _ in 0..2 {
            drop(backend.state().acquire());
        }
        backend.state().record_probe(false);
    }
    let requests = "fastllm_backend_requests_total{api_base=\"http://a/v1\"}";
    let exposed = text(&metrics, &both);
    // Two backends with separate counters.
    assert_line(&exposed, &format!("{requests} 4"));
    assert_line(
        &exposed,
        "fastllm_backend_probe_failures_total{api_base=\"http://a/v1\"} 2",
    );
    assert_eq!(exposed.matches(requests).count(), 1);
    assert_eq!(exposed.matches("fastllm_backend_healthy{").count(), 1);

    // The backend is removed, and another backend serves its address.
    drop(both.backends().next().unwrap().1.state().acquire());
    let other = tables(&shared);
    serve(&metrics, &other);
    drop(other.backends().next().unwrap().1.state().acquire());
    assert_line(&text(&metrics, &other), &format!("{requests} 6"));
}

#[test]
fn label_values_are_escaped() {
    let metrics = Metrics::new().unwrap();
    let odd = tables(&[("a\"b\\c", "http://a/v1")]);
    serve(&metrics, &odd);
    series(&odd, "a\"b\\c").record_response(Duration::ZERO);
    assert_line(
        &text(&metrics, &odd),
        "fastllm_model_requests_total{model=\"a\\\"b\\\\c\"} 1",
    );
}
