use super::{BODY, DONE, ONE, STREAM, errors, in_turn};
use crate::support::{
    Barrier, Options, Step, TestGateway, Upstream, chat, events, json_response, raw,
};

/// A stream that breaks after its first event.
fn breaking() -> Vec<Step> {
    vec![Step::Send(events(&[ONE], false)), Step::Close]
}

/// A response with a length that breaks within its body.
fn breaking_body() -> Vec<Step> {
    let response = "HTTP/1.1 200 OK\r\ncontent-length: 50\r\n\r\n{\"choices\":";
    vec![Step::Send(response.into()), Step::Close]
}

#[tokio::test]
async fn a_backend_that_breaks_every_response_after_a_good_head_is_ejected() {
    let failing = "data: {\"error\":{\"code\":500,\"message\":\"x\"}}\n\n";
    let fails_later = raw(events(&[ONE, failing], true));
    for (script, body) in [
        (breaking(), STREAM),
        (breaking_body(), BODY),
        (fails_later, STREAM),
    ] {
        let bad = Upstream::start([script]).await;
        let good = match body {
            STREAM => raw(events(&[ONE, DONE], true)),
            _ => json_response("200 OK", "{}"),
        };
        let good = Upstream::start([good]).await;
        let gateway = TestGateway::start_with(&[&bad, &good], in_turn()).await;
        // One at a time, so that each head arrives after the failure before it.
        gateway
            .until("the backend to be ejected", async || {
                let before = bad.seen().requests.len();
                for _ in 0..4 {
                    gateway.chat(body).await;
                }
                bad.seen().requests.len() == before
            })
            .await;
        assert!(errors(&gateway, &bad).await > 4.5);
        assert!(errors(&gateway, &good).await < 0.5);
    }
}

#[tokio::test]
async fn a_complete_response_resets_the_count_of_failures_and_an_error_does_not() {
    let four = |last: Vec<Step>| {
        let mut scripts = vec![breaking(); 4];
        scripts.push(last);
        scripts.extend(vec![breaking(); 4]);
        scripts.push(raw(events(&[ONE, DONE], true)));
        scripts
    };
    let complete = raw(events(&[ONE, DONE], true));
    let wrong = json_response("400 X", "{}");
    for (script, ejected) in [(complete, 0.0), (wrong, 1.0)] {
        let upstream = Upstream::start(four(script)).await;
        let gateway = TestGateway::start_with(&[&upstream], in_turn()).await;
        for _ in 0..9 {
            gateway.chat(STREAM).await;
        }
        let name = format!(
            "fastllm_backend_ejections_total{{api_base=\"{}\",reason=\"failures\"}}",
            upstream.api_base()
        );
        assert!((gateway.metric(&name).await - ejected).abs() < 0.5);
    }
}

#[tokio::test]
async fn a_client_that_leaves_a_stream_is_no_failure_of_the_backend() {
    let open = vec![Step::Send(events(&[ONE], false)), Step::UntilDisconnect];
    let upstream = Upstream::start([open]).await;
    let gateway = TestGateway::start_with(&[&upstream], in_turn()).await;
    for left in 1..=6 {
        let mut client = gateway.client().await;
        client.write(&chat(STREAM)).await;
        client.head().await;
        client.until(ONE).await;
        drop(client);
        upstream
            .wait_for("the request to be cancelled", |seen| {
                seen.disconnects == left
            })
            .await;
    }
    assert!(errors(&gateway, &upstream).await < 0.5);
}

#[tokio::test]
async fn a_request_that_exceeds_its_own_time_is_no_failure_of_the_backend() {
    let barrier = Barrier::new();
    let open = vec![Step::Send(events(&[ONE], false)), Step::Wait(barrier)];
    let upstream = Upstream::start([open]).await;
    let flags = Options::flags(&["--request-timeout=1"]);
    let gateway = TestGateway::start_with(&[&upstream], flags).await;
    let reply = gateway.chat(STREAM).await;
    assert!(reply.text().contains("upstream_timeout"));
    assert!(errors(&gateway, &upstream).await < 0.5);
}

#[tokio::test]
async fn an_error_of_the_client_within_a_stream_is_no_failure_of_the_backend() {
    let filtered = "data: {\"error\":{\"code\":\"content_filter\",\"message\":\"x\"}}\n\n";
    let upstream = Upstream::start([raw(events(&[ONE, filtered], true))]).await;
    let gateway = TestGateway::start(&[&upstream]).await;
    for _ in 0..6 {
        assert_eq!(gateway.chat(STREAM).await.text(), [ONE, filtered].concat());
    }
    assert!(errors(&gateway, &upstream).await < 0.5);
}
