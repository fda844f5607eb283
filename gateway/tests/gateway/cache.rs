//! Cached responses: which responses are stored, their content, and for how long.

use fastllm_contract::{ModelName, UsageEvent};
use tokio::net::TcpListener;

use crate::support::{
    Barrier, Control, KEY, Options, Reply, SnapshotContent, Step, TestGateway, Upstream, backend,
    chat, chat_over_http2, content, events, json_response, logged, next_data, post, raw, snapshot,
    soon,
};

pub(super) const BODY: &str = "{\"model\":\"small\",\"messages\":[]}";

/// The default content, with a model `small` whose responses are cached.
pub(super) fn cached_content(addresses: &[String]) -> SnapshotContent {
    let mut content = content(addresses);
    content.models[2].cache_ttl_seconds = Some(3600);
    content
}

/// An upstream whose responses are numbered.
pub(super) async fn numbered_upstream() -> Upstream {
    let response = |number: u32| {
        let usage = "{\"prompt_tokens\":7,\"completion_tokens\":3,\"cost\":0.000125}";
        json_response(
            "200 OK",
            &format!("{{\"number\":{number},\"usage\":{usage}}}"),
        )
    };
    Upstream::start((1..100).map(response)).await
}

pub(super) async fn start(upstream: &Upstream) -> TestGateway {
    TestGateway::serving(&cached_content(&[upstream.api_base()]), Options::default()).await
}

/// Sends a request with additional header lines.
pub(super) async fn send(gateway: &TestGateway, lines: &str, body: &str) -> Reply {
    let headers = format!("authorization: Bearer {KEY}\r\n{lines}");
    gateway
        .send(&post("/v1/chat/completions", &headers, body))
        .await
}

/// The number of a response, and its cache header.
pub(super) fn cache_status(reply: &Reply) -> (u64, Option<&str>) {
    assert_eq!((reply.status, reply.complete), (200, true));
    let number = reply.json()["number"].as_u64().unwrap();
    (number, reply.header("x-fastllm-cache"))
}

const HIT: Option<&str> = Some("hit");
const MISS: Option<&str> = Some("miss");

#[tokio::test]
async fn a_cache_hit_is_the_first_response_byte_for_byte() {
    let parts: [&[u8]; 3] = [b"\x1f\x8b\x08 not", b"\0really\xff", b" compressed"];
    let head = "HTTP/1.1 200 OK\r\nContent-Type: application/json; charset=utf-8\r\n\
Content-Encoding: gzip\r\nOpenAI-Version: 2020-10-01\r\nX-Request-Id: theirs\r\n\
X-RateLimit-Remaining-Requests: 9\r\nDate: Mon, 01 Jan 2001 00:00:00 GMT\r\n\
X-Fastllm-Cache: hit\r\nConnection: x-of-the-hop\r\nX-Of-The-Hop: 1\r\n\
Transfer-Encoding: chunked\r\n\r\n";
    let mut response = head.as_bytes().to_vec();
    for part in parts {
        response.extend(format!("{:x}\r\n", part.len()).into_bytes());
        response.extend([part, b"\r\n"].concat());
    }
    response.extend(b"0\r\n\r\n");
    let upstream = Upstream::start([vec![Step::Trickle(response)]]).await;
    let gateway = start(&upstream).await;

    let first = send(&gateway, "x-request-id: one\r\n", BODY).await;
    let again = send(&gateway, "x-request-id: two\r\n", BODY).await;
    assert_eq!(upstream.seen().requests.len(), 1);
    assert_eq!((first.status, again.status), (200, 200));
    assert_eq!(first.body, parts.concat());
    assert_eq!(again.body, first.body);
    assert!(again.complete);
    for field in ["content-type", "content-encoding", "openai-version"] {
        assert!(first.header(field).is_some(), "{field}");
        assert_eq!(first.header(field), again.header(field));
    }
    let length = first.body.len().to_string();
    assert_eq!(again.header("content-length"), Some(length.as_str()));
    for field in [
        "x-ratelimit-remaining-requests",
        "x-of-the-hop",
        "transfer-encoding",
    ] {
        assert_eq!(again.header(field), None);
    }
    assert!(!again.header("date").unwrap().contains("2001"));
    assert_eq!(
        [&first, &again].map(|reply| reply.header("x-request-id").unwrap()),
        ["one", "two"]
    );
    assert_eq!(
        [&first, &again].map(|reply| reply.header("x-fastllm-cache")),
        [MISS, HIT]
    );
}

#[tokio::test]
async fn http1_and_http2_receive_the_same_cached_response() {
    let upstream = numbered_upstream().await;
    let gateway = start(&upstream).await;
    let first = gateway.chat(BODY).await;
    chat_over_http2(&gateway, "https://page.example", BODY, async |response| {
        assert_eq!(response.status(), 200);
        let field = |name: &str| response.headers()[name].to_str().unwrap().to_owned();
        assert_eq!(field("x-fastllm-cache"), "hit");
        assert_eq!(field("content-type"), "application/json");
        assert!(response.headers().contains_key("x-request-id"));
        let mut body = response.into_body();
        let mut got = Vec::new();
        while let Some(data) = next_data(&mut body).await {
            got.extend_from_slice(&data.unwrap());
        }
        assert_eq!(got, first.body);
    })
    .await;
    // Stored over HTTP/2.
    let other: &str = "{\"model\":\"small\",\"n\":2}";
    chat_over_http2(&gateway, "https://page.example", other, async |response| {
        assert_eq!(response.headers()["x-fastllm-cache"], "miss");
        let mut body = response.into_body();
        while next_data(&mut body).await.is_some() {}
    })
    .await;
    assert_eq!(cache_status(&gateway.chat(other).await), (2, HIT));
}

#[tokio::test]
async fn only_models_with_a_cache_policy_are_cached() {
    let upstream = numbered_upstream().await;
    let gateway = start(&upstream).await;
    let large = "{\"model\":\"large\"}";
    assert_eq!(cache_status(&gateway.chat(large).await), (1, None));
    assert_eq!(cache_status(&gateway.chat(large).await), (2, None));
    for use_of in ["hit", "miss", "store"] {
        let counter = format!("fastllm_cache_total{{kind=\"{use_of}\"}}");
        assert!(gateway.metric(&counter).await < 0.5, "{use_of}");
    }
}

#[tokio::test]
async fn without_capacity_nothing_is_cached() {
    for flag in ["--cache-max-entries=0", "--cache-max-bytes=0"] {
        let upstream = numbered_upstream().await;
        let content = cached_content(&[upstream.api_base()]);
        let gateway = TestGateway::serving(&content, Options::flags(&[flag])).await;
        assert_eq!(cache_status(&gateway.chat(BODY).await), (1, None));
        assert_eq!(cache_status(&gateway.chat(BODY).await), (2, None));
    }
}

#[tokio::test]
async fn a_full_cache_evicts_the_oldest_response() {
    let upstream = numbered_upstream().await;
    let content = cached_content(&[upstream.api_base()]);
    let gateway = TestGateway::serving(&content, Options::flags(&["--cache-max-entries=2"])).await;
    let body = |number: u32| format!("{{\"model\":\"small\",\"seed\":{number}}}");
    for number in 1..=3 {
        assert_eq!(cache_status(&gateway.chat(&body(number)).await).1, MISS);
    }
    assert_eq!(cache_status(&gateway.chat(&body(3)).await), (3, HIT));
    assert_eq!(cache_status(&gateway.chat(&body(2)).await), (2, HIT));
    assert_eq!(cache_status(&gateway.chat(&body(1)).await), (4, MISS));
    assert!((gateway.metric("fastllm_cache_entries").await - 2.0).abs() < 0.5);
    assert!(gateway.metric("fastllm_cache_bytes").await > 500.0);
}

#[tokio::test]
async fn a_cached_response_expires_after_the_ttl_of_its_model() {
    let upstream = numbered_upstream().await;
    let mut content = cached_content(&[upstream.api_base()]);
    content.models[2].cache_ttl_seconds = Some(1);
    let gateway = TestGateway::serving(&content, Options::default()).await;
    assert_eq!(cache_status(&gateway.chat(BODY).await), (1, MISS));
    gateway
        .until("the cached response to expire", async || {
            cache_status(&gateway.chat(BODY).await) == (2, MISS)
        })
        .await;
    assert!(gateway.metric("fastllm_cache_total{kind=\"hit\"}").await > 0.5);
}

#[tokio::test]
async fn streams_are_never_cached() {
    let parts = ["data: {\"choices\":[{}]}\n\n", "data: [DONE]\n\n"];
    let upstream = Upstream::start([raw(events(&parts, true))]).await;
    let gateway = start(&upstream).await;
    // A requested stream, and an unrequested one.
    for body in ["{\"model\":\"small\",\"stream\":true}", BODY] {
        let before = upstream.seen().requests.len();
        for _ in 0..2 {
            let reply = gateway.chat(body).await;
            assert_eq!((reply.text(), reply.status), (parts.concat(), 200));
            assert_eq!(reply.header("x-fastllm-cache"), None);
        }
        assert_eq!(upstream.seen().requests.len(), before + 2);
    }
    assert!(gateway.metric("fastllm_cache_total{kind=\"store\"}").await < 0.5);
}

#[tokio::test]
async fn uploads_are_never_cached() {
    let upstream = numbered_upstream().await;
    let gateway = start(&upstream).await;
    let headers =
        format!("authorization: Bearer {KEY}\r\ncontent-type: multipart/form-data; boundary=b\r\n");
    let form = "--b\r\ncontent-disposition: form-data; name=\"model\"\r\n\r\nsmall\r\n--b--\r\n";
    let request = post("/v1/audio/transcriptions", &headers, form);
    for number in [1, 2] {
        assert_eq!(cache_status(&gateway.send(&request).await), (number, None));
    }
}

/// Sends each request twice; each response must come from the upstream.
async fn assert_never_cached(responses: &[Vec<u8>]) {
    let twice = responses.iter().flat_map(|response| [response, response]);
    let script = |response: &Vec<u8>| vec![Step::Send(response.clone()), Step::Close];
    let upstream = Upstream::start(twice.map(script)).await;
    let gateway = start(&upstream).await;
    for (number, response) in responses.iter().enumerate() {
        let body = format!("{{\"model\":\"small\",\"seed\":{number}}}");
        for time in 1..=2 {
            gateway.chat(&body).await;
            let seen = upstream.seen().requests.len();
            assert_eq!(
                seen,
                number * 2 + time,
                "{}",
                String::from_utf8_lossy(response)
            );
        }
    }
    assert!(gateway.metric("fastllm_cache_total{kind=\"store\"}").await < 0.5);
    assert!(gateway.metric("fastllm_cache_entries").await < 0.5);
}

#[tokio::test]
async fn aborted_and_possibly_aborted_responses_are_never_cached() {
    assert_never_cached(
        &[
            "HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\n{\"a\":1}",
            "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n7\r\n{\"a\":1}\r\n",
            "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n7\r\n{\"a\":1}\r\nx\r\n\r\n",
            // Only the end of the connection marks the end of the response.
            "HTTP/1.1 200 OK\r\nconnection: close\r\n\r\n{\"a\":1}",
            "HTTP/1.0 200 OK\r\n\r\n{\"a\":1}",
            // The body is complete, but its JSON is not.
            "HTTP/1.1 200 OK\r\ncontent-length: 6\r\n\r\n{\"a\":1",
            "HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n",
        ]
        .map(|response| response.as_bytes().to_vec()),
    )
    .await;
}

#[tokio::test]
async fn uncacheable_responses_are_never_cached() {
    let good = |field: &str, body: &str| {
        let head = format!(
            "HTTP/1.1 200 OK\r\n{field}content-length: {}\r\n\r\n",
            body.len()
        );
        [head.as_bytes(), body.as_bytes()].concat()
    };
    let status =
        |status: &str| format!("HTTP/1.1 {status}\r\ncontent-length: 2\r\n\r\n{{}}").into_bytes();
    assert_never_cached(&[
        good("set-cookie: who=me\r\n", "{}"),
        good("cache-control: max-age=9, no-store\r\n", "{}"),
        good("cache-control: Private=\"x\"\r\n", "{}"),
        good("", "{\"error\":{\"message\":\"no\"}}"),
        good("", "{\"id\":\"resp_1\",\"status\":\"in_progress\"}"),
        good("", &format!("{{\"x\":\"{}\"}}", "y".repeat(600 << 10))),
        status("201 Created"),
        status("400 Bad Request"),
        status("404 Not Found"),
    ])
    .await;
    // The same response without the obstacle.
    let upstream = Upstream::start([vec![Step::Send(good("", "{}")), Step::Close]]).await;
    let gateway = start(&upstream).await;
    let cached = [gateway.chat(BODY).await, gateway.chat(BODY).await];
    assert_eq!(
        cached.map(|reply| reply.header("x-fastllm-cache") == HIT),
        [false, true]
    );
}

#[tokio::test]
async fn a_response_whose_client_left_is_not_cached() {
    let barrier = Barrier::new();
    let head = "HTTP/1.1 200 OK\r\ncontent-length: 7\r\n\r\n{\"a\"";
    let slow = vec![
        Step::Send(head.into()),
        Step::Wait(barrier.clone()),
        Step::Send(b":1}".to_vec()),
    ];
    let upstream = Upstream::start([slow, json_response("200 OK", "{\"number\":2}")]).await;
    let gateway = start(&upstream).await;
    let mut client = gateway.client().await;
    client.write(&chat(BODY)).await;
    client.head().await;
    drop(client);
    gateway
        .until("the usage event", async || {
            gateway
                .metric("fastllm_request_outcomes_total{outcome=\"client_gone\"}")
                .await
                > 0.5
        })
        .await;
    barrier.cancel();
    assert_eq!(cache_status(&gateway.chat(BODY).await), (2, MISS));
    assert_eq!(cache_status(&gateway.chat(BODY).await), (2, HIT));
}

#[tokio::test]
async fn clients_can_bypass_the_cache() {
    let upstream = numbered_upstream().await;
    let gateway = start(&upstream).await;
    for (lines, number, cached) in [
        ("", 1, MISS),
        ("", 1, HIT),
        // Neither looked up nor stored.
        ("cache-control: no-store\r\n", 2, None),
        ("x-fastllm-cache: skip\r\n", 3, None),
        ("", 1, HIT),
        // Not looked up, but stored.
        ("cache-control: no-cache\r\n", 4, None),
        ("", 4, HIT),
    ] {
        let reply = send(&gateway, lines, BODY).await;
        assert_eq!(cache_status(&reply), (number, cached), "{lines}");
    }
}

#[tokio::test]
async fn after_failover_the_response_is_cached_for_the_model_that_served_it() {
    let broken = Upstream::start([json_response("500 Internal Server Error", "{}")]).await;
    let good = numbered_upstream().await;
    let mut content = cached_content(&[broken.api_base()]);
    content.models[1].backends = vec![backend(30, &good.api_base())];
    content.fallback = Some(ModelName::new("large").unwrap());
    content.models[1].cache_ttl_seconds = Some(3600);
    let gateway = TestGateway::serving(&content, Options::flags(&["--max-retries=0"])).await;
    assert_eq!(cache_status(&gateway.chat(BODY).await), (1, MISS));
    // Nothing is cached for the model that was tried first.
    assert_eq!(cache_status(&gateway.chat(BODY).await), (2, MISS));
    let large = BODY.replace("small", "large");
    assert_eq!(cache_status(&gateway.chat(&large).await), (2, HIT));

    // Nothing is cached if the serving model has no cache policy.
    content.version = 2;
    content.models[1].cache_ttl_seconds = None;
    gateway.control.publish(snapshot(&content));
    gateway
        .until("the change", async || {
            gateway.metric("fastllm_snapshot_version").await > 1.5
        })
        .await;
    let stores = gateway.metric("fastllm_cache_total{kind=\"store\"}").await;
    assert_eq!(cache_status(&gateway.chat(BODY).await), (3, MISS));
    assert_eq!(cache_status(&gateway.chat(BODY).await), (4, MISS));
    let after = gateway.metric("fastllm_cache_total{kind=\"store\"}").await;
    assert!((after - stores).abs() < 0.5);
}

#[tokio::test]
async fn a_cache_hit_needs_no_backend() {
    let upstream = numbered_upstream().await;
    let gateway = start(&upstream).await;
    assert_eq!(cache_status(&gateway.chat(BODY).await), (1, MISS));
    drop(upstream);
    assert_eq!(cache_status(&gateway.chat(BODY).await), (1, HIT));
    assert_eq!(gateway.chat("{\"model\":\"small\"}").await.status, 502);
}

#[tokio::test]
async fn concurrent_equal_requests_are_both_forwarded() {
    let barrier = Barrier::new();
    let slow = |number: u32| {
        let response = json_response("200 OK", &format!("{{\"number\":{number}}}"));
        [vec![Step::Wait(barrier.clone())], response].concat()
    };
    let upstream = Upstream::start([slow(1), slow(2)]).await;
    let gateway = start(&upstream).await;
    let mut clients = [gateway.client().await, gateway.client().await];
    for client in &mut clients {
        client.write(&chat(BODY)).await;
    }
    upstream
        .wait_for("both", |seen| seen.requests.len() == 2)
        .await;
    barrier.cancel();
    for client in &mut clients {
        assert_eq!(cache_status(&client.reply().await).1, MISS);
    }
    assert_eq!(cache_status(&gateway.chat(BODY).await).1, HIT);
}

fn figures(event: &UsageEvent) -> (u64, u64, Option<u64>, bool) {
    let cost = event.cost_micros.map(|cost| cost.0);
    let (prompt, completion) = (event.prompt_tokens.0, event.completion_tokens.0);
    (prompt, completion, cost, event.usage_reported)
}

#[tokio::test]
async fn a_cache_hit_is_accounted_for_like_the_original_response() {
    let upstream = numbered_upstream().await;
    let content = cached_content(&[upstream.api_base()]);
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let control = Control::start_on(listener, snapshot(&content));
    let gateway =
        TestGateway::with_control(control, Options::flags(&["--health-report-interval=1"]));
    gateway.until_ready().await;
    assert_eq!(cache_status(&gateway.chat(BODY).await), (1, MISS));
    let reply = send(&gateway, "x-request-id: cache-hit-1\r\n", BODY).await;
    assert_eq!(cache_status(&reply), (1, HIT));

    for (name, count) in [
        ("fastllm_requests_total", 2.0),
        ("fastllm_request_outcomes_total{outcome=\"ok\"}", 2.0),
        ("fastllm_request_duration_seconds_count", 2.0),
        ("fastllm_cache_total{kind=\"hit\"}", 1.0),
        ("fastllm_cache_total{kind=\"miss\"}", 1.0),
        ("fastllm_cache_total{kind=\"store\"}", 1.0),
        ("fastllm_cache_entries", 1.0),
        // No request reached the upstream.
        ("fastllm_upstream_status_total{class=\"success\"}", 1.0),
        ("fastllm_model_requests_total{model=\"small\"}", 1.0),
        (
            "fastllm_model_tokens_total{kind=\"prompt\",model=\"small\"}",
            7.0,
        ),
    ] {
        let value = gateway.metric(name).await;
        assert!((value - count).abs() < 0.5, "{name}: {value}");
    }
    let seen = gateway.control.wait_for("a report of the usage", |seen| {
        seen.health.iter().any(|report| {
            let process = &report.process;
            (process.cache_hits, process.cache_misses) == (1, 1)
                && process.cache_entries == 1
                && process.cache_bytes > 500
        })
    });
    soon("a report of the usage", seen).await;
    let logged = logged();
    let line = logged
        .lines()
        .find(|line| line.contains("request_id=cache-hit-1"));
    assert!(
        line.unwrap()
            .contains(" attempts=0 stream=false cache=hit status=200 ")
    );

    let events = gateway.finish().await;
    let [first, hit] = events.as_slice() else {
        panic!("{events:?}");
    };
    assert_eq!(figures(first), (7, 3, Some(125), true));
    assert_eq!(figures(hit), figures(first));
    assert_eq!((first.cached, hit.cached), (false, true));
    assert_eq!((first.attempts, hit.attempts), (Some(1), Some(0)));
    assert_eq!(
        (hit.status, hit.refusal, hit.estimated),
        (Some(200), None, false)
    );
    assert_eq!((hit.model.as_str(), &hit.requested_model), ("small", &None));
    assert_eq!(hit.principal_id, first.principal_id);
}
