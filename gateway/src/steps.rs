//! Times the steps of a request that only this crate knows: the benchmarks run
//! this as a test of its own, and nobody else does.

use std::hint::black_box;
use std::sync::Arc;
use std::time::Duration;

use fastllm_contract::{KeyId, ModelName, PrincipalId, Timestamp, Tokens, UsageBatch, UsageEvent};
use fastllm_engine::{Caller, RoutingState, identify};
use fastllm_process::logging::{self, LogFormat};
use fastllm_steps::{Size, Stopwatch, chat, key, model, request_head, tables};
use fastllm_wire::Usage;
use http::StatusCode;

use crate::control_plane::usage_queue;
use crate::http::Head;
use crate::pipeline::prompt::Prompt;
use crate::request_log::{AccountingConfig, RequestLog};
use crate::telemetry::{ACCESS_TARGET, AccessLine, Metrics, Outcome};

const AT: Timestamp = Timestamp(1_767_225_600_000_000);
const TOOK: Duration = Duration::from_millis(750);

const WATCH: Stopwatch = Stopwatch {
    rounds: 9,
    round_ns: 40_000_000,
};

#[test]
#[ignore = "takes a core for seconds, and tells rather than tests"]
fn costs() {
    for (step, bytes) in [("prompt-1k", 1 << 10), ("prompt-64k", 64 << 10)] {
        let body = chat(bytes);
        let read = || Prompt::read(black_box(&body)).into_boundaries();
        assert_eq!(read().len(), 1);
        WATCH.time(step, read).unwrap();
    }
    let tables = tables(Size {
        keys: 1_000,
        models: 10,
    })
    .unwrap();
    let metrics = Arc::new(Metrics::new().unwrap());
    metrics.attach(&tables);
    time_metrics(&metrics, &tables);
    time_events(&metrics);
    time_request_log(&metrics, &tables);
    time_access();
}

fn time_metrics(metrics: &Metrics, tables: &RoutingState) {
    let (_, backend) = tables.backends().next().unwrap();
    WATCH
        .time("metrics", || {
            metrics.forwarded(StatusCode::OK);
            metrics.finished(Outcome::Ok, black_box(TOOK));
            let series = backend.metrics();
            if let Some(series) = &series {
                series.record_response(TOOK);
                series.record_tokens(250, 64);
            }
        })
        .unwrap();
}

fn event(model: &ModelName) -> UsageEvent {
    UsageEvent {
        cache_write_tokens: None,
        audio_prompt_tokens: None,
        audio_completion_tokens: None,
        images: None,
        input_characters: None,
        audio_ms: None,
        audio_bytes: None,
        cached: false,
        metadata: None,
        principal_id: PrincipalId(1),
        key_id: Some(KeyId(1)),
        model: model.clone(),
        requested_model: None,
        endpoint: Some("/chat/completions".into()),
        request_id: Some("0123456789abcdef-1".to_owned()),
        attempts: Some(1),
        prompt_tokens: Tokens(250),
        completion_tokens: Tokens(64),
        cached_tokens: None,
        reasoning_tokens: None,
        usage_reported: true,
        estimated: false,
        refusal: None,
        at: AT,
        duration_ms: Some(750),
        ttft_ms: None,
        status: Some(200),
        cost_micros: None,
    }
}

/// Made, queued, and taken into a batch by the other end.
fn time_events(metrics: &Arc<Metrics>) {
    let count = u32::try_from(UsageBatch::MAX_EVENTS).unwrap();
    let name = ModelName::new(&model(0)).unwrap();
    let (events, mut waiting) = usage_queue(metrics);
    let mut batch = Vec::with_capacity(UsageBatch::MAX_EVENTS);
    WATCH
        .each("usage-event", count, || {
            for _ in 0..count {
                events.push(event(black_box(&name)));
            }
            batch.clear();
            waiting.drain_into(&mut batch);
        })
        .unwrap();
    assert_eq!(batch.len(), UsageBatch::MAX_EVENTS);
}

/// The whole account, with metrics and usage event; nothing is logged yet.
fn time_request_log(metrics: &Arc<Metrics>, tables: &RoutingState) {
    let (events, mut waiting) = usage_queue(metrics);
    let accounting = AccountingConfig {
        metrics: Arc::clone(metrics),
        usage: events,
        tracer: None,
        log_format: LogFormat::Text,
        boot_id: Arc::from("0123456789abcdef"),
    };
    let sink = accounting.build();
    let head = Head::read(request_head(&key(0)).into_bytes()).unwrap();
    let caller = identify(tables, Some(key(0).as_bytes()), AT).unwrap();
    let (name, backend) = tables.backends().next().unwrap();
    let usage = Usage::from_response(&fastllm_steps::answer(250));
    let mut batch = Vec::new();
    WATCH
        .time("account", || {
            let mut log = RequestLog::begin(&sink, &head);
            if let Caller::Identified(identified) = &caller {
                log.set_caller(identified);
            }
            log.set_model(name, name, false);
            log.route.record_attempt(name, backend);
            log.metrics().forwarded(StatusCode::OK);
            log.usage.set_reported(usage);
            log.finish_forwarded(200, true);
            batch.clear();
            waiting.drain_into(&mut batch);
        })
        .unwrap();
    assert_eq!(batch.len(), 1);
}

/// Into the queue of the log's own thread, which writes to standard error.
fn time_access() {
    let name = model(0);
    let line = AccessLine {
        request_id: "0123456789abcdef-1",
        trace_id: None,
        principal: Some("principal-0"),
        requested_model: None,
        model: Some(&name),
        backend: Some(1),
        attempts: 1,
        stream: false,
        cache: None,
        status: 200,
        code: None,
        prompt_tokens: Some(250),
        completion_tokens: Some(64),
        ttft_ms: None,
        ms: 750,
    };
    let logging = logging::Config {
        preformatted_target: Some(ACCESS_TARGET),
        ..logging::Config::default()
    };
    let _log = logging.init_buffered("info").unwrap();
    WATCH
        .time("access-line", || black_box(&line).log(LogFormat::Text, AT))
        .unwrap();
}
