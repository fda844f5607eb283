use super::{BODY, in_turn};
use crate::support::{TestGateway, Upstream, json_response, raw};

/// An error that asks for a retry, as vendors send it.
fn retryable(status: &str) -> Vec<crate::support::Step> {
    raw(format!(
        "HTTP/1.1 {status}\r\nX-Should-Retry: true\r\ncontent-length: 2\r\n\r\n{{}}"
    ))
}

#[tokio::test]
async fn an_error_after_retries_forbids_another_one() {
    for status in ["500 X", "503 X", "429 X", "408 X", "409 X"] {
        let pool = [
            Upstream::start([retryable(status)]).await,
            Upstream::start([retryable(status)]).await,
        ];
        let gateway = TestGateway::start_with(&[&pool[0], &pool[1]], in_turn()).await;
        let reply = gateway.chat(BODY).await;
        assert!(status.starts_with(&reply.status.to_string()));
        let fields: Vec<_> = reply
            .head
            .to_lowercase()
            .lines()
            .map(str::to_owned)
            .collect();
        let fields = fields
            .iter()
            .filter(|line| line.starts_with("x-should-retry"));
        assert_eq!(
            fields.collect::<Vec<_>>(),
            ["x-should-retry: false"],
            "{status}"
        );
    }
}

#[tokio::test]
async fn the_gateways_own_errors_after_retries_forbid_another_one() {
    let gone = [Upstream::start([]).await, Upstream::start([]).await];
    let gateway = TestGateway::start_with(&[&gone[0], &gone[1]], in_turn()).await;
    let reply = gateway.chat(BODY).await;
    assert_eq!(reply.error().2, "upstream_unavailable");
    assert_eq!(reply.header("x-should-retry"), Some("false"));
}

#[tokio::test]
async fn an_error_that_was_not_retried_leaves_the_choice_to_the_client() {
    // The only backend: a server error is not repeated there.
    let plain = Upstream::start([json_response("500 X", "{}")]).await;
    let gateway = TestGateway::start_with(&[&plain], in_turn()).await;
    let reply = gateway.chat(BODY).await;
    assert_eq!((reply.status, reply.header("x-should-retry")), (500, None));

    let asking = Upstream::start([retryable("500 X")]).await;
    let gateway = TestGateway::start_with(&[&asking], in_turn()).await;
    let reply = gateway.chat(BODY).await;
    assert_eq!(reply.header("x-should-retry"), Some("true"));

    // Its `retry-after` is too long for the gateway.
    let later = "HTTP/1.1 429 X\r\nretry-after: 60\r\ncontent-length: 2\r\n\r\n{}";
    let later = Upstream::start([raw(later)]).await;
    let gateway = TestGateway::start_with(&[&later], in_turn()).await;
    let reply = gateway.chat(BODY).await;
    assert_eq!(reply.header("retry-after"), Some("60"));
    assert_eq!(reply.header("x-should-retry"), None);
    assert_eq!(later.seen().requests.len(), 1);
}

#[tokio::test]
async fn an_upstream_that_forbids_a_retry_is_not_tried_again() {
    let response = "HTTP/1.1 429 X\r\nx-should-retry: false\r\ncontent-length: 2\r\n\r\n{}";
    let upstream = Upstream::start([raw(response)]).await;
    let gateway = TestGateway::start_with(&[&upstream], in_turn()).await;
    let reply = gateway.chat(BODY).await;
    assert_eq!(
        (reply.status, reply.header("x-should-retry")),
        (429, Some("false"))
    );
    assert_eq!(upstream.seen().requests.len(), 1);
}
