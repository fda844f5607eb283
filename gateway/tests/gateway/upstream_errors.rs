//! Errors of upstreams: who is at fault decides what the client receives, and
//! which backend gets the next requests.

mod ejections;
mod retry_field;

use crate::support::{
    KEY, Options, Step, TestGateway, Upstream, events, json_response, logged, post, raw,
};

const BODY: &str = "{\"model\":\"small\"}";
const STREAM: &str = "{\"model\":\"small\",\"stream\":true}";
const ONE: &str = "data: {\"choices\":[{\"delta\":{\"content\":\"a\"}}]}\n\n";
const DONE: &str = "data: [DONE]\n\n";
const GOOD: &str = "{\"ok\":1}";

const QUOTA: &str = "{\"error\":{\"message\":\"no quota\",\"type\":\"insufficient_quota\",\
\"code\":\"insufficient_quota\"}}";
const WRONG_KEY: &str = "[{\"error\":{\"code\":400,\"message\":\"x\",\"status\":\"INVALID_ARGUMENT\",\
\"details\":[{\"reason\":\"API_KEY_INVALID\"}]}}]";
const WRONG_MODEL: &str = "{\"error\":{\"message\":\"x\",\"type\":\"invalid_request_error\",\
\"code\":\"model_not_found\"}}";
const TOO_LONG: &str = "{\"error\":{\"message\":\"too long\",\"type\":\"invalid_request_error\",\
\"param\":\"messages\",\"code\":\"context_length_exceeded\"}}";

/// Rejections of the gateway: status, body, and the reason.
const REJECTIONS: [(&str, &str, &str); 9] = [
    (
        "401 X",
        "{\"error\":{\"message\":\"wrong key\"}}",
        "credential",
    ),
    ("402 X", "{\"error\":\"pay\"}", "credential"),
    ("403 X", "<html>", "credential"),
    ("429 X", QUOTA, "credential"),
    ("400 X", WRONG_KEY, "credential"),
    ("404 X", WRONG_MODEL, "configuration"),
    ("404 X", "{\"detail\":\"Not Found\"}", "configuration"),
    ("405 X", "", "configuration"),
    ("302 X", "", "configuration"),
];

/// Ejects nothing by probes, and alternates between backends.
fn in_turn() -> Options {
    Options::flags(&["--policy=round-robin", "--health-interval=3600"])
}

fn code(reason: &str) -> &'static str {
    match reason {
        "credential" => "upstream_credential_rejected",
        _ => "upstream_misconfigured",
    }
}

async fn good() -> Upstream {
    Upstream::start([json_response("200 OK", GOOD)]).await
}

async fn ejections(gateway: &TestGateway, upstream: &Upstream, reason: &str) -> (u64, u64) {
    let labels = format!(
        "{{api_base=\"{}\",reason=\"{reason}\"}}",
        upstream.api_base()
    );
    let count = async |name: &str| {
        let value = gateway.metric(&format!("{name}{labels}")).await;
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "counters are small"
        )]
        let value = value.round() as u64;
        value
    };
    (
        count("fastllm_backend_ejections_total").await,
        count("fastllm_backend_ejected").await,
    )
}

async fn errors(gateway: &TestGateway, upstream: &Upstream) -> f64 {
    let name = "fastllm_backend_errors_total";
    gateway
        .metric(&format!("{name}{{api_base=\"{}\"}}", upstream.api_base()))
        .await
}

#[tokio::test]
async fn a_backend_that_rejects_the_gateway_serves_no_client_and_is_ejected() {
    for (status, body, reason) in REJECTIONS {
        let bad = Upstream::start([json_response(status, body)]).await;
        let good = good().await;
        let gateway = TestGateway::start_with(&[&bad, &good], in_turn()).await;
        for _ in 0..20 {
            let reply = gateway.chat(BODY).await;
            assert_eq!(
                (reply.status, reply.text().as_str()),
                (200, GOOD),
                "{status}"
            );
        }
        assert_eq!(bad.seen().requests.len(), 3, "{status}");
        assert_eq!(ejections(&gateway, &bad, reason).await, (1, 1), "{status}");
        assert_eq!(ejections(&gateway, &bad, "failures").await, (0, 0));
    }
}

#[tokio::test]
async fn no_policy_prefers_a_backend_because_it_rejects_fast() {
    for policy in [
        "cache-affinity",
        "least-loaded",
        "round-robin",
        "lowest-latency",
    ] {
        let bad = Upstream::start([json_response("402 X", "{}")]).await;
        let good = good().await;
        let flags = [
            format!("--policy={policy}"),
            "--health-interval=3600".to_owned(),
        ];
        let flags = Options::flags(&flags.each_ref().map(String::as_str));
        let gateway = TestGateway::start_with(&[&bad, &good], flags).await;
        for _ in 0..20 {
            assert_eq!(gateway.chat(BODY).await.text(), GOOD, "{policy}");
        }
        assert!(bad.seen().requests.len() <= 3, "{policy}");
    }
}

#[tokio::test]
async fn a_rejection_by_every_backend_is_502_without_the_text_of_the_upstream() {
    for (status, body, reason) in REJECTIONS {
        let pool = [
            Upstream::start([json_response(status, body)]).await,
            Upstream::start([json_response(status, body)]).await,
        ];
        let gateway = TestGateway::start(&[&pool[0], &pool[1]]).await;
        let reply = gateway.chat(BODY).await;
        let (found, kind, found_code, _) = reply.error();
        assert_eq!(
            (found, found_code.as_str()),
            (502, code(reason)),
            "{status}"
        );
        assert_eq!(kind, code(reason));
        assert_eq!(reply.header("x-should-retry"), Some("false"));
        for upstream in &pool {
            assert_eq!(upstream.seen().requests.len(), 1, "{status}");
        }
        let events = gateway.finish().await;
        assert_eq!((events.len(), events[0].status), (1, Some(502)));
    }
}

#[tokio::test]
async fn the_text_of_a_rejection_is_logged_without_the_credential() {
    let text = "{\"error\":{\"message\":\"Wrong key: credential-1. Ask billing\"}}";
    let upstream = Upstream::start([json_response("401 X", text)]).await;
    let gateway = TestGateway::start(&[&upstream]).await;
    let reply = gateway.chat(BODY).await;
    assert!(!reply.text().contains("billing"));
    let log = logged();
    let line = log.lines().find(|line| line.contains("Ask billing"));
    let line = line.expect("the text in the log");
    assert!(line.contains("rejected=\"credential\"") && line.contains("status=401"));
    assert!(line.contains("Wrong key: ************.") && !line.contains("credential-1"));
}

#[tokio::test]
async fn an_error_with_a_success_status_is_one() {
    let failed = "{\"error\":{\"message\":\"x\",\"type\":\"overloaded_error\"}}";
    let rejected = "{\"error\":{\"message\":\"x\",\"code\":\"invalid_api_key\"}}";
    for body in [failed, rejected] {
        let bad = Upstream::start([json_response("200 OK", body)]).await;
        let good = good().await;
        let gateway = TestGateway::start_with(&[&bad, &good], in_turn()).await;
        for _ in 0..2 {
            assert_eq!(gateway.chat(BODY).await.text(), GOOD, "{body}");
        }
        assert!(!bad.seen().requests.is_empty());
    }
    // Alone, the client gets the error, but not what is about the gateway's credential.
    let bad = Upstream::start([json_response("200 OK", rejected)]).await;
    let gateway = TestGateway::start(&[&bad]).await;
    assert_eq!(gateway.chat(BODY).await.status, 502);
    let invalid = "{\"error\":{\"message\":\"x\",\"type\":\"invalid_request_error\"}}";
    let strict = Upstream::start([json_response("200 OK", invalid)]).await;
    let other = good().await;
    let gateway = TestGateway::start_with(&[&strict, &other], in_turn()).await;
    let texts = [
        gateway.chat(BODY).await.text(),
        gateway.chat(BODY).await.text(),
    ];
    assert!(texts.iter().any(|text| text == invalid) && texts.iter().any(|text| text == GOOD));
}

#[tokio::test]
async fn a_temporary_failure_is_more_useful_than_a_rejection() {
    let busy = "{\"error\":{\"message\":\"slow down\"}}";
    for (status, body) in [("429 X", busy), ("500 X", "{}")] {
        let rejecting = Upstream::start([json_response("401 X", "{}")]).await;
        let other = Upstream::start([json_response(status, body)]).await;
        let gateway = TestGateway::start(&[&rejecting, &other]).await;
        let reply = gateway.chat(BODY).await;
        assert_eq!(reply.text(), body, "{status}");
        assert_eq!(rejecting.seen().requests.len(), 1);
    }
}

#[tokio::test]
async fn rejections_use_up_no_retries() {
    let rejecting = || Upstream::start([json_response("401 X", "{}")]);
    let bad = [rejecting().await, rejecting().await, rejecting().await];
    let good = good().await;
    let pool = [&bad[0], &bad[1], &bad[2], &good];
    for retries in ["--max-retries=0", "--max-retries=2"] {
        let flags = Options::flags(&["--policy=round-robin", retries]);
        let gateway = TestGateway::start_with(&pool, flags).await;
        for _ in 0..4 {
            assert_eq!(gateway.chat(BODY).await.text(), GOOD, "{retries}");
        }
    }
}

#[tokio::test]
async fn a_backend_that_rejects_the_gateway_is_not_tried_again_for_a_busy_one() {
    let rejecting = Upstream::start([json_response("401 X", "{}")]).await;
    for first in 0..2 {
        let busy = [json_response("503 X", "{}"), json_response("200 OK", GOOD)];
        let busy = Upstream::start(busy).await;
        let before = rejecting.seen().requests.len();
        let pool = match first {
            0 => [&busy, &rejecting],
            _ => [&rejecting, &busy],
        };
        let gateway = TestGateway::start_with(&pool, in_turn()).await;
        assert_eq!(gateway.chat(BODY).await.text(), GOOD);
        assert_eq!(busy.seen().requests.len(), 2);
        assert_eq!(rejecting.seen().requests.len(), before + 1);
    }
}

#[tokio::test]
async fn a_fault_of_the_client_passes_unchanged_and_is_no_failure() {
    let moderated = "{\"error\":{\"code\":403,\"message\":\"x\",\
        \"metadata\":{\"reasons\":[\"violence\"]}}}";
    let unknown = "{\"error\":{\"message\":\"Response with id 'resp_1' not found.\",\
        \"type\":\"invalid_request_error\",\"param\":null,\"code\":404}}";
    for (status, body) in [
        ("400 X", TOO_LONG),
        ("413 X", "too large"),
        ("422 X", "{\"detail\":[]}"),
        ("403 X", moderated),
        ("404 X", unknown),
        ("500 X", TOO_LONG),
    ] {
        let pool = [
            Upstream::start([json_response(status, body)]).await,
            Upstream::start([json_response(status, body)]).await,
        ];
        let gateway = TestGateway::start_with(&[&pool[0], &pool[1]], in_turn()).await;
        for _ in 0..12 {
            let reply = gateway.chat(BODY).await;
            assert!(status.starts_with(&reply.status.to_string()));
            assert_eq!(reply.text(), body);
            assert_eq!(reply.header("x-should-retry"), Some("false"));
        }
        for upstream in &pool {
            assert_eq!(upstream.seen().requests.len(), 6, "{status}");
            assert!(errors(&gateway, upstream).await < 0.5, "{status}");
        }
    }
}

#[tokio::test]
async fn a_fault_of_the_client_in_the_first_event_is_no_failure() {
    let error = format!("data: {TOO_LONG}\n\n");
    let response = || raw(events(&[error.as_str(), DONE], true));
    let pool = [
        Upstream::start([response()]).await,
        Upstream::start([response()]).await,
    ];
    let gateway = TestGateway::start_with(&[&pool[0], &pool[1]], in_turn()).await;
    for _ in 0..12 {
        let reply = gateway.chat(STREAM).await;
        assert_eq!(reply.text(), [error.as_str(), DONE].concat());
    }
    for upstream in &pool {
        assert_eq!(upstream.seen().requests.len(), 6);
        assert!(errors(&gateway, upstream).await < 0.5);
        for reason in ["failures", "credential", "configuration"] {
            assert_eq!(ejections(&gateway, upstream, reason).await, (0, 0));
        }
    }
}

#[tokio::test]
async fn a_rejection_in_the_first_event_fails_over_and_does_not_reach_the_client() {
    let error = "event: error\ndata: {\"type\":\"error\",\"error\":\
        {\"type\":\"authentication_error\",\"message\":\"x\"}}\n\n";
    let bad = Upstream::start([raw(events(&[error], true))]).await;
    let good = Upstream::start([raw(events(&[ONE, DONE], true))]).await;
    let gateway = TestGateway::start_with(&[&bad, &good], in_turn()).await;
    for _ in 0..10 {
        assert_eq!(gateway.chat(STREAM).await.text(), [ONE, DONE].concat());
    }
    assert_eq!(bad.seen().requests.len(), 3);
    assert_eq!(ejections(&gateway, &bad, "credential").await, (1, 1));

    let gateway = TestGateway::start(&[&bad]).await;
    let reply = gateway.chat(STREAM).await;
    assert_eq!(reply.error().2, "upstream_credential_rejected");
    assert_eq!(reply.status, 502);
}

#[tokio::test]
async fn what_a_backend_does_not_implement_is_tried_elsewhere_and_is_no_failure() {
    let body = "{\"error\":{\"code\":501,\"message\":\"x\",\"type\":\"not_supported_error\"}}";
    let bad = Upstream::start([json_response("501 X", body)]).await;
    let good = good().await;
    let gateway = TestGateway::start_with(&[&bad, &good], in_turn()).await;
    for _ in 0..20 {
        assert_eq!(gateway.chat(BODY).await.text(), GOOD);
    }
    assert_eq!(bad.seen().requests.len(), 10);
    assert!(errors(&gateway, &bad).await < 0.5);

    let gateway = TestGateway::start(&[&bad]).await;
    let reply = gateway.chat(BODY).await;
    assert_eq!((reply.status, reply.text().as_str()), (501, body));
}

#[tokio::test]
async fn the_body_of_an_error_is_awaited_for_a_bounded_time() {
    // It arrives in pieces.
    let head = format!("HTTP/1.1 429 X\r\ncontent-length: {}\r\n\r\n", QUOTA.len());
    let bytes = [head.as_bytes(), QUOTA.as_bytes()].concat();
    let slow = Upstream::start([vec![Step::Trickle(bytes)]]).await;
    let gateway = TestGateway::start(&[&slow]).await;
    assert_eq!(gateway.chat(BODY).await.status, 502);

    // It never arrives.
    let silent = "HTTP/1.1 500 X\r\ncontent-length: 9\r\n\r\n{";
    let silent = vec![Step::Send(silent.into()), Step::UntilDisconnect];
    let silent = Upstream::start([silent]).await;
    let good = good().await;
    let gateway = TestGateway::start_with(&[&silent, &good], in_turn()).await;
    for _ in 0..2 {
        assert_eq!(gateway.chat(BODY).await.text(), GOOD);
    }
    assert_eq!(silent.seen().requests.len(), 1);
}

#[tokio::test]
async fn an_error_that_is_cut_off_fails_over() {
    let cut = "HTTP/1.1 400 X\r\ncontent-length: 90\r\n\r\n{\"error\":";
    let bad = Upstream::start([vec![Step::Send(cut.into()), Step::Close]]).await;
    let good = good().await;
    let gateway = TestGateway::start_with(&[&bad, &good], in_turn()).await;
    for _ in 0..4 {
        assert_eq!(gateway.chat(BODY).await.text(), GOOD);
    }
    assert_eq!(bad.seen().requests.len(), 2);
}

#[tokio::test]
async fn a_large_error_passes_as_a_whole() {
    let body = format!("{{\"error\":\"{}\"}}", "x".repeat(200_000));
    let upstream = Upstream::start([json_response("400 X", &body)]).await;
    let gateway = TestGateway::start(&[&upstream]).await;
    let reply = gateway.chat(BODY).await;
    assert_eq!((reply.status, reply.complete), (400, true));
    assert!(reply.text() == body);
}

#[tokio::test]
async fn an_endpoint_that_a_backend_does_not_serve_moves_no_other_request() {
    let absent = || json_response("404 X", "{\"detail\":\"Not Found\"}");
    let partial = [
        absent(),
        absent(),
        absent(),
        json_response("200 OK", "{\"by\":1}"),
    ];
    let partial = Upstream::start(partial).await;
    let other = Upstream::start([json_response("200 OK", "{\"by\":2}")]).await;
    let gateway = TestGateway::start_with(&[&partial, &other], in_turn()).await;
    let headers = format!("authorization: Bearer {KEY}\r\ncontent-type: application/json\r\n");
    let rerank = post("/v1/rerank", &headers, BODY);
    for _ in 0..10 {
        assert_eq!(gateway.send(&rerank).await.text(), "{\"by\":2}");
    }
    assert_eq!(partial.seen().requests.len(), 3);
    let mut by_partial = 0;
    for _ in 0..10 {
        by_partial += usize::from(gateway.chat(BODY).await.text() == "{\"by\":1}");
    }
    assert_eq!(by_partial, 5);
}
