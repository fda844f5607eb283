//! Limits and budgets, as observed by clients and by the control plane.

use std::num::NonZeroU64;

use fastllm_contract::{
    Budget, BudgetId, BudgetShare, BudgetState, Grant, LimitReport, LimitReportReply, Limits,
    LimitsState, Micros, Prices, PrincipalId, RefusalKind, Subject, Timestamp, Tokens,
    WindowLength,
};
use serde_json::Value;

use crate::support::{
    Barrier, Control, KEY, Options, Reply, SnapshotContent, Step, TestGateway, Upstream, chat,
    content, events, json_response, logged, post, raw, snapshot,
};

const BODY: &str = "{\"model\":\"small\",\"max_tokens\":10}";
const RESPONSE: &str = "{\"choices\":[],\"usage\":{\"prompt_tokens\":20,\"completion_tokens\":10}}";

pub(crate) fn limits(requests: Option<u64>, tokens: Option<u64>, at_once: Option<u64>) -> Limits {
    Limits {
        requests_per_min: requests.and_then(NonZeroU64::new),
        tokens_per_min: tokens.and_then(NonZeroU64::new),
        concurrency: at_once.and_then(NonZeroU64::new),
    }
}

/// A budget that started long ago, with calendar windows.
pub(crate) fn budget(tokens: u64) -> Budget {
    Budget {
        id: BudgetId(7),
        tokens_total: Some(Tokens(tokens)),
        cost_total_micros: None,
        window: WindowLength::Monthly,
        time_zone: Some("UTC".to_owned()),
        window_start: Timestamp(0),
    }
}

pub(crate) fn limited(
    upstream: &Upstream,
    limits: Option<Limits>,
    budget: Option<Budget>,
) -> SnapshotContent {
    let mut content = content(&[upstream.api_base()]);
    content.principals[0].limits = limits;
    content.principals[0].budget = budget;
    content
}

async fn serving(
    upstream: &Upstream,
    limits: Option<Limits>,
    budget: Option<Budget>,
) -> TestGateway {
    TestGateway::serving(&limited(upstream, limits, budget), Options::default()).await
}

/// The rate limit header fields of a response.
fn rates(reply: &Reply) -> Vec<String> {
    [
        "limit-requests",
        "remaining-requests",
        "limit-tokens",
        "remaining-tokens",
    ]
    .iter()
    .filter_map(|name| {
        reply
            .header(&format!("x-ratelimit-{name}"))
            .map(str::to_owned)
    })
    .collect()
}

#[tokio::test]
async fn responses_and_rejections_carry_rate_limit_headers() {
    let response = raw(format!(
        "HTTP/1.1 200 OK\r\nx-ratelimit-remaining-requests: 9999\r\ncontent-length: {}\r\n\
         content-type: application/json\r\n\r\n{RESPONSE}",
        RESPONSE.len()
    ));
    let upstream = Upstream::start([response]).await;
    let gateway = serving(&upstream, Some(limits(Some(2), Some(100), None)), None).await;
    let first = gateway.chat(BODY).await;
    assert_eq!(first.status, 200);
    // The upstream's own rate limits are those of the operator.
    assert_eq!(
        first.head.matches("x-ratelimit-remaining-requests").count(),
        1
    );
    // The first reservation covers the estimated prompt and the maximum
    // number of completion tokens.
    assert_eq!(rates(&first), ["2", "1", "100", "81"]);
    assert!(first.header("x-ratelimit-reset").is_some());
    // 30 tokens were used; the refill within this moment is negligible.
    let second = gateway.chat(BODY).await;
    let left: u64 = rates(&second)[3].parse().unwrap();
    assert!((51..60).contains(&left), "{left}");
    let third = gateway.chat(BODY).await;
    assert_eq!(
        third.error(),
        (
            429,
            "rate_limit_exceeded".to_owned(),
            "rate_limit_exceeded".to_owned(),
            Value::Null
        )
    );
    assert!(third.text().contains("requests per minute for this caller"));
    assert_eq!(rates(&third)[..2], ["2", "0"]);
    let wait: u64 = third.header("retry-after").unwrap().parse().unwrap();
    assert!((29..=30).contains(&wait), "{wait}");
    assert_eq!(upstream.seen().requests.len(), 2);

    let refused = "fastllm_rejections_total{reason=\"rate_limited\"}";
    assert!((gateway.metric(refused).await - 1.0).abs() < 0.1);
    let events = gateway.finish().await;
    assert_eq!(events.len(), 3);
    let refusal = &events[2];
    assert_eq!(refusal.refusal, Some(RefusalKind::RateLimit));
    assert_eq!((refusal.status, refusal.prompt_tokens.0), (Some(429), 0));
}

#[tokio::test]
async fn rate_limit_headers_of_upstreams_are_forwarded_only_if_listed() {
    let response = raw(
        "HTTP/1.1 200 OK\r\nx-ratelimit-remaining-requests: 9999\r\ncontent-length: 2\r\n\r\n{}",
    );
    let upstream = Upstream::start([response]).await;
    let flag = "--forward-response-header=x-ratelimit-remaining-requests";
    for (flags, expected) in [(&[][..], None), (&[flag], Some("9999"))] {
        let gateway = TestGateway::start_with(&[&upstream], Options::flags(flags)).await;
        let reply = gateway.chat(BODY).await;
        assert_eq!(reply.header("x-ratelimit-remaining-requests"), expected);
        assert_eq!(reply.header("x-ratelimit-limit-requests"), None);
    }
}

#[tokio::test]
async fn a_request_larger_than_the_rate_limit_is_a_400_naming_limit_and_demand() {
    let upstream = Upstream::start([json_response("200 OK", RESPONSE)]).await;
    let gateway = serving(&upstream, Some(limits(None, Some(100), None)), None).await;
    let reply = gateway
        .chat("{\"model\":\"small\",\"max_tokens\":1000}")
        .await;
    let (status, kind, code, _) = reply.error();
    assert_eq!(
        (status, &*kind, &*code),
        (400, "invalid_request_error", "larger_than_limit")
    );
    assert!(
        reply
            .text()
            .contains("1010 tokens, more than the limit of 100 tokens per minute"),
        "{}",
        reply.text()
    );
    assert_eq!(gateway.chat(BODY).await.status, 200);
    assert_eq!(gateway.finish().await.len(), 1);
}

#[tokio::test]
async fn an_exceeded_budget_is_a_402_naming_it_and_raising_it_takes_effect_at_once() {
    let upstream = Upstream::start([json_response("200 OK", RESPONSE)]).await;
    let mut content = limited(&upstream, None, Some(budget(30)));
    let gateway = TestGateway::serving(&content, Options::default()).await;
    assert_eq!(gateway.chat(BODY).await.status, 200);
    let refused = gateway.chat(BODY).await;
    let (status, kind, code, _) = refused.error();
    assert_eq!(
        (status, &*kind, &*code),
        (402, "budget_exceeded", "budget_exceeded")
    );
    assert!(
        refused
            .text()
            .contains("the token budget of this caller is spent")
    );
    assert_eq!(refused.header("retry-after"), None);
    content.version = 2;
    content.principals[0].budget = Some(budget(31));
    gateway.control.publish(snapshot(&content));
    gateway
        .until("the raised budget", async || {
            gateway.chat(BODY).await.status == 200
        })
        .await;
    assert_eq!(gateway.chat(BODY).await.status, 402);
    let events = gateway.finish().await;
    let spent: Vec<_> = events
        .iter()
        .filter(|event| event.refusal.is_none())
        .collect();
    assert_eq!(spent.len(), 2);
    let refusals = events
        .iter()
        .filter(|event| event.refusal == Some(RefusalKind::Budget));
    assert_eq!(refusals.count(), events.len() - 2);
}

/// Covers every endpoint and every way of sending the key.
#[tokio::test]
async fn every_endpoint_enforces_the_budget() {
    let upstream = Upstream::start([json_response("200 OK", RESPONSE)]).await;
    let gateway = serving(&upstream, None, Some(budget(1))).await;
    assert_eq!(gateway.chat(BODY).await.status, 200);
    let form = "--b\r\ncontent-disposition: form-data; name=\"model\"\r\n\r\nsmall\r\n--b--\r\n";
    for path in [
        "chat/completions",
        "completions",
        "responses",
        "embeddings",
        "rerank",
        "score",
        "audio/transcriptions",
        "audio/translations",
        "audio/speech",
        "images/generations",
        "images/edits",
        "moderations",
    ] {
        let is_form = path.contains("edits") || path.contains("trans");
        let (kind, body) = if is_form {
            ("multipart/form-data; boundary=b", form)
        } else {
            ("application/json", BODY)
        };
        for who in [
            format!("authorization: Bearer {KEY}"),
            format!("x-api-key: {KEY}"),
        ] {
            let headers = format!("{who}\r\ncontent-type: {kind}\r\n");
            let reply = gateway
                .send(&post(&format!("/v1/{path}"), &headers, body))
                .await;
            assert_eq!(reply.status, 402, "{path}: {}", reply.text());
        }
    }
    assert_eq!(upstream.seen().requests.len(), 1);
}

/// Waits until the latest report of the budget contains these amounts:
/// settled and reserved.
pub(crate) async fn until_reported(gateway: &TestGateway, what: &str, wanted: (u64, u64)) {
    gateway
        .control
        .wait_for(what, |seen| {
            let last = seen
                .reports
                .last()
                .and_then(|report| report.budgets.first());
            last.is_some_and(|used| (used.tokens.0, used.tokens_reserved.0) == wanted)
        })
        .await;
}

pub(crate) fn frequent_reports() -> Options {
    Options::flags(&["--rate-limit-reconcile-interval=1"])
}

#[tokio::test]
async fn a_client_that_leaves_before_the_response_is_not_charged_and_frees_its_slot() {
    let barrier = Barrier::new();
    let slow = vec![Step::Wait(barrier.clone()), Step::UntilDisconnect];
    let upstream = Upstream::start([slow, json_response("200 OK", RESPONSE)]).await;
    let content = limited(
        &upstream,
        Some(limits(Some(9), None, Some(1))),
        Some(budget(1000)),
    );
    let gateway = TestGateway::serving(&content, frequent_reports()).await;
    let mut client = gateway.client().await;
    let stream = "{\"model\":\"small\",\"max_tokens\":10,\"stream\":true}";
    client.write(&chat(stream)).await;
    upstream
        .wait_for("the request", |seen| seen.requests.len() == 1)
        .await;
    let second = gateway.chat(BODY).await;
    assert_eq!(
        (second.status, second.header("retry-after")),
        (429, Some("1"))
    );
    assert!(second.text().contains("the limit of concurrent requests"));
    let estimate = stream.len() as u64 * 2 / 7 + 10;
    until_reported(&gateway, "the reservation", (0, estimate)).await;
    drop(client);
    barrier.cancel();
    gateway
        .until("the free slot", async || {
            gateway.chat(BODY).await.status == 200
        })
        .await;
    until_reported(&gateway, "what the second used", (30, 0)).await;
}

#[tokio::test]
async fn an_aborted_stream_is_settled_with_the_estimate_of_its_usage_event() {
    let delta = "data: {\"choices\":[{\"delta\":{\"content\":\"hello\"}}]}\n\n";
    let broken = vec![
        Step::Send(events(&[delta, delta, delta], false)),
        Step::Close,
    ];
    let upstream = Upstream::start([broken]).await;
    let content = limited(&upstream, None, Some(budget(1000)));
    let gateway = TestGateway::serving(&content, frequent_reports()).await;
    let stream = "{\"model\":\"small\",\"max_tokens\":10,\"stream\":true}";
    assert_eq!(gateway.chat(stream).await.status, 200);
    gateway
        .control
        .wait_for("the usage event", |seen| !seen.usage.is_empty())
        .await;
    let event = gateway.control.batches().remove(0).events.remove(0);
    assert!(event.estimated && event.completion_tokens.0 > 0);
    let used = event.prompt_tokens.0 + event.completion_tokens.0;
    until_reported(&gateway, "what was used", (used, 0)).await;
}

#[tokio::test]
async fn an_upstream_failure_debits_the_rate_limit_but_not_the_budget() {
    let upstream = Upstream::start([json_response("400 Bad Request", "{\"error\":{}}")]).await;
    let content = limited(
        &upstream,
        Some(limits(Some(2), None, None)),
        Some(budget(5)),
    );
    let gateway = TestGateway::serving(&content, frequent_reports()).await;
    assert_eq!(gateway.chat(BODY).await.status, 400);
    assert_eq!(gateway.chat(BODY).await.status, 400);
    assert_eq!(gateway.chat(BODY).await.status, 429);
    until_reported(&gateway, "nothing used", (0, 0)).await;
}

#[tokio::test]
async fn money_is_computed_with_the_prices_from_control() {
    let upstream = Upstream::start([json_response("200 OK", RESPONSE)]).await;
    let mut described = budget(0);
    described.tokens_total = None;
    described.cost_total_micros = Some(Micros(100));
    let control = Control::start(snapshot(&limited(&upstream, None, Some(described)))).await;
    control.set_prices(Prices {
        input_price_per_mtok: Some(Micros(2_000_000)),
        output_price_per_mtok: Some(Micros(6_000_000)),
        ..Prices::default()
    });
    let gateway = TestGateway::with_control(control, Options::default());
    gateway.until_ready().await;
    // 20 x 2 + 10 x 6 is the whole budget.
    assert_eq!(gateway.chat(BODY).await.status, 200);
    let refused = gateway.chat(BODY).await;
    assert_eq!(refused.status, 402);
    assert!(
        refused
            .text()
            .contains("the cost budget of this caller is spent")
    );
}

/// What the gateway counts as used of a budget, and what it reports of that as part
/// of usage batches, is the same amount, whatever the control plane charges.
#[tokio::test]
async fn usage_batches_contain_what_was_settled_of_budgets() {
    let ok = || json_response("200 OK", RESPONSE);
    let bad = json_response("400 Bad Request", "{\"error\":{}}");
    let upstream = Upstream::start([ok(), bad, ok()]).await;
    let mut described = budget(1000);
    described.cost_total_micros = Some(Micros(1000));
    let control = Control::start(snapshot(&limited(&upstream, None, Some(described)))).await;
    control.set_prices(Prices {
        input_price_per_mtok: Some(Micros(2_000_000)),
        output_price_per_mtok: Some(Micros(6_000_000)),
        ..Prices::default()
    });
    let mut gateway = TestGateway::with_control(control, frequent_reports());
    gateway.until_ready().await;
    for status in [200, 400, 200] {
        assert_eq!(gateway.chat(BODY).await.status, status);
    }
    gateway
        .control
        .wait_for("a report of all usage", |seen| {
            let budgets = seen.reports.iter().flat_map(|report| &report.budgets);
            budgets.into_iter().any(|used| used.tokens == Tokens(60))
        })
        .await;
    let reports = gateway.control.received().reports;
    let used = reports.last().unwrap().budgets[0];
    assert_eq!(
        (used.cost_micros, used.cost_reserved_micros),
        (Micros(200), Micros(0))
    );
    gateway.stop();
    gateway.ended().await;
    let batches = gateway.control.batches();
    let settled: Vec<_> = batches
        .iter()
        .flat_map(|batch| batch.settled.as_deref().unwrap())
        .collect();
    let windows = settled.iter().map(|of| (of.budget, of.window_start));
    assert!(
        windows
            .into_iter()
            .all(|of| of == (used.budget, used.window_start))
    );
    let tokens: u64 = settled.iter().map(|of| of.tokens.0).sum();
    let cost: u64 = settled.iter().map(|of| of.cost_micros.0).sum();
    assert_eq!((tokens, cost), (60, 200));
}

#[tokio::test]
async fn an_exhausted_grant_is_a_429_and_is_reported_at_once() {
    let upstream = Upstream::start([json_response("200 OK", RESPONSE)]).await;
    let content = limited(&upstream, None, Some(budget(100)));
    let control = Control::start(snapshot(&content)).await;
    control.set_limits_state(LimitsState {
        replicas: 4,
        ..LimitsState::default()
    });
    control.set_report_reply(LimitReportReply {
        replicas: 4,
        ..LimitReportReply::default()
    });
    let seldom = Options::flags(&["--rate-limit-reconcile-interval=3600"]);
    let gateway = TestGateway::with_control(control, seldom);
    gateway.until_ready().await;
    // The first report contains no usage.
    gateway
        .control
        .wait_for("the first report", |seen| seen.reports.len() == 1)
        .await;
    assert_eq!(gateway.chat(BODY).await.status, 200);
    let refused = gateway.chat(BODY).await;
    assert_eq!(
        (refused.status, refused.header("retry-after")),
        (429, Some("1"))
    );
    gateway
        .control
        .wait_for("an early report", |seen| seen.reports.len() == 2)
        .await;
    let report = gateway.control.received().reports.remove(1);
    let used = report.budgets[0];
    assert_eq!(used.tokens, Tokens(30));
    let share = |used_by_others| LimitReportReply {
        replicas: 4,
        duplicate_replica: false,
        allowances: Vec::new(),
        budgets: vec![BudgetShare {
            budget: used.budget,
            window_start: used.window_start,
            share: 0.5,
            tokens: Some(Grant {
                total: 100,
                granted: 40,
                used_by_others,
            }),
            cost_micros: None,
        }],
    };
    gateway.control.set_report_reply(share(0));
    gateway
        .until("another grant", async || {
            gateway.chat(BODY).await.status == 200
        })
        .await;
    // Other gateways have spent the rest meanwhile.
    gateway.control.set_report_reply(share(60));
    gateway
        .until("the end of the request", async || {
            gateway.chat(BODY).await.status == 402
        })
        .await;
}

fn demand(reports: &[LimitReport]) -> u64 {
    let counts = reports.iter().flat_map(|report| &report.counts);
    counts.map(|count| count.requests).sum()
}

#[tokio::test]
async fn the_usage_of_a_failed_report_is_reported_again() {
    let upstream = Upstream::start([json_response("200 OK", RESPONSE)]).await;
    let content = limited(&upstream, Some(limits(Some(1000), None, None)), None);
    let control = Control::start(snapshot(&content)).await;
    control.reject_reports(true);
    let frequent_reports = Options::flags(&["--rate-limit-reconcile-interval=1"]);
    let gateway = TestGateway::with_control(control, frequent_reports);
    gateway.until_ready().await;
    for _ in 0..30 {
        assert_eq!(gateway.chat(BODY).await.status, 200);
    }
    gateway
        .control
        .wait_for("a report that fails", |seen| {
            demand(&seen.rejected_reports) >= 30
        })
        .await;
    gateway.control.reject_reports(false);
    gateway
        .control
        .wait_for("its counts", |seen| demand(&seen.reports) > 0)
        .await;
    // Decayed by a few seconds.
    let seen = demand(&gateway.control.received().reports);
    assert!((20..=30).contains(&seen), "{seen}");
}

/// The report interval is one hour, and no request is rejected.
#[tokio::test]
async fn a_gateway_without_a_grant_reports_again_soon() {
    let upstream = Upstream::start([json_response("200 OK", RESPONSE)]).await;
    let control = Control::start(snapshot(&limited(&upstream, None, Some(budget(100))))).await;
    let share = |granted| LimitReportReply {
        replicas: 2,
        budgets: vec![BudgetShare {
            budget: BudgetId(7),
            window_start: Timestamp(0),
            share: 0.5,
            tokens: Some(Grant {
                total: 100,
                granted,
                used_by_others: 10,
            }),
            cost_micros: None,
        }],
        ..LimitReportReply::default()
    };
    control.set_report_reply(share(0));
    let gateway = TestGateway::with_control(
        control,
        Options::flags(&["--rate-limit-reconcile-interval=3600"]),
    );
    gateway.until_ready().await;
    gateway
        .control
        .wait_for("early reports", |seen| seen.reports.len() >= 3)
        .await;
}

#[tokio::test]
async fn a_duplicate_replica_is_reported_once() {
    let upstream = Upstream::start([json_response("200 OK", RESPONSE)]).await;
    let control = Control::start(snapshot(&limited(&upstream, None, None))).await;
    control.set_report_reply(LimitReportReply {
        replicas: 2,
        duplicate_replica: true,
        ..LimitReportReply::default()
    });
    let flags = ["--rate-limit-reconcile-interval=1", "--replica=doubled-pod"];
    let gateway = TestGateway::with_control(control, Options::flags(&flags));
    gateway.until_ready().await;
    // The first reply has been applied by then.
    gateway
        .control
        .wait_for("three reports", |seen| seen.reports.len() == 3)
        .await;
    let logs = logged();
    let logs = logs.lines().filter(|line| {
        line.contains("WARN") && line.contains("another gateway") && line.contains("doubled-pod")
    });
    assert_eq!(logs.count(), 1);
}

/// Control is unavailable when the gateway restarts: all spending is restored
/// from disk, including what was spent after control became unavailable.
#[tokio::test]
async fn a_restart_without_control_keeps_all_spending() {
    let upstream = Upstream::start([json_response("200 OK", RESPONSE)]).await;
    let folder = tempfile::tempdir().unwrap();
    let cache = folder.path().join("snapshot.json");
    let options = || Options {
        cache: Some(cache.clone()),
        flags: vec!["--rate-limit-reconcile-interval=1".to_owned()],
    };
    let content = limited(
        &upstream,
        Some(limits(Some(1000), None, None)),
        Some(budget(60)),
    );
    let control = Control::start(snapshot(&content)).await;
    control.set_limits_state(LimitsState {
        replicas: 1,
        ..LimitsState::default()
    });
    let mut gateway = TestGateway::with_control(control, options());
    gateway.until_ready().await;
    gateway
        .until("a snapshot on disk", async || cache.exists())
        .await;
    assert_eq!(gateway.chat(BODY).await.status, 200);
    assert_eq!(gateway.chat(BODY).await.status, 200);
    assert_eq!(gateway.chat(BODY).await.status, 402);
    gateway.stop();
    gateway.ended().await;

    let away = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let other = Control::start_on(away, snapshot(&content));
    // Control serves no snapshot.
    other.publish_text(9, "nonsense");
    let gateway = TestGateway::with_control(other, options());
    gateway.until_ready().await;
    assert_eq!(gateway.chat(BODY).await.status, 402);
    let kept = std::fs::read(folder.path().join("limits-state.json")).unwrap();
    let kept: LimitsState = serde_json::from_slice(&kept).unwrap();
    let spent: Vec<BudgetState> = kept.budgets;
    assert_eq!(spent[0].tokens_used, Tokens(60));
}

#[tokio::test]
async fn reports_include_the_demand_of_rejected_requests() {
    let upstream = Upstream::start([json_response("200 OK", RESPONSE)]).await;
    let content = limited(&upstream, Some(limits(Some(1), None, None)), None);
    let gateway = TestGateway::serving(&content, frequent_reports()).await;
    for status in [200, 429, 429] {
        assert_eq!(gateway.chat(BODY).await.status, status);
    }
    let demand = |seen: &crate::support::ControlReceived| -> u64 {
        let reports = seen.reports.iter().flat_map(|report| &report.counts);
        let mine = reports.filter(|count| count.subject == Subject::Principal(PrincipalId(1)));
        mine.map(|count| count.requests).sum()
    };
    gateway
        .control
        .wait_for("all three", |seen| demand(seen) == 3)
        .await;
}

/// The same content, with cached responses.
fn cached_content(upstream: &Upstream, limits: Limits, budget: Budget) -> SnapshotContent {
    let mut content = limited(upstream, Some(limits), Some(budget));
    content.models[2].cache_ttl_seconds = Some(3600);
    content
}

#[tokio::test]
async fn a_cache_hit_counts_like_the_original_response() {
    let upstream = Upstream::start([json_response("200 OK", RESPONSE)]).await;
    let all = limits(Some(9), Some(1000), Some(1));
    let gateway = TestGateway::serving(
        &cached_content(&upstream, all, budget(100)),
        frequent_reports(),
    )
    .await;
    let cached = |reply: &Reply| reply.header("x-fastllm-cache").map(str::to_owned);
    for (requests, hit) in [("8", false), ("7", true), ("6", true), ("5", true)] {
        let reply = gateway.chat(BODY).await;
        let word = if hit { "hit" } else { "miss" };
        assert_eq!((reply.status, cached(&reply).as_deref()), (200, Some(word)));
        assert_eq!(rates(&reply)[1], requests);
        assert_eq!(reply.header("x-ratelimit-limit-requests"), Some("9"));
    }
    until_reported(&gateway, "what four of them used", (120, 0)).await;
    // A cache hit does not bypass an exceeded budget.
    let refused = gateway.chat(BODY).await;
    assert_eq!((refused.status, cached(&refused)), (402, None));
    assert_eq!(upstream.seen().requests.len(), 1);
}

#[tokio::test]
async fn a_cache_hit_does_not_bypass_an_exhausted_rate_limit() {
    let upstream = Upstream::start([json_response("200 OK", RESPONSE)]).await;
    let two = limits(Some(2), None, None);
    let gateway = TestGateway::serving(
        &cached_content(&upstream, two, budget(1000)),
        frequent_reports(),
    )
    .await;
    let mut statuses = Vec::new();
    for _ in 0..3 {
        statuses.push(gateway.chat(BODY).await.status);
    }
    assert_eq!(statuses, [200, 200, 429]);
    assert_eq!(upstream.seen().requests.len(), 1);
}

#[tokio::test]
async fn a_cache_hit_costs_nothing() {
    let paid = "{\"usage\":{\"prompt_tokens\":20,\"completion_tokens\":10,\"cost\":0.000150}}";
    let upstream = Upstream::start([json_response("200 OK", paid)]).await;
    let money = Budget {
        tokens_total: None,
        cost_total_micros: Some(Micros(200)),
        ..budget(0)
    };
    let gateway = TestGateway::serving(
        &cached_content(&upstream, limits(Some(99), None, None), money),
        frequent_reports(),
    )
    .await;
    for _ in 0..5 {
        assert_eq!(gateway.chat(BODY).await.status, 200);
    }
    // The next forwarded request exceeds the budget and is the last one.
    let other = BODY.replace("10", "11");
    assert_eq!(gateway.chat(&other).await.status, 200);
    assert_eq!(gateway.chat(BODY).await.status, 402);
    assert_eq!(upstream.seen().requests.len(), 2);
}
