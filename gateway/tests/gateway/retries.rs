//! Retried requests, and the response when every attempt fails.

use fastllm_contract::RefusalKind;

use crate::support::{Options, Step, TestGateway, Upstream, chat, json_response, raw};

const BODY: &str = "{\"model\":\"small\"}";

#[tokio::test]
async fn overload_and_server_errors_are_retried_on_another_backend() {
    for status in ["500 X", "503 X", "429 X"] {
        let bad = Upstream::start([json_response(status, "{}")]).await;
        let good = Upstream::start([json_response("200 OK", "{\"ok\":1}")]).await;
        let gateway = TestGateway::start(&[&bad, &good]).await;
        for _ in 0..2 {
            assert_eq!(gateway.chat(BODY).await.text(), "{\"ok\":1}", "{status}");
        }
        assert_eq!(good.seen().requests.len(), 2);
        let retried = gateway.metric("fastllm_retries_total").await;
        assert!((retried - 1.0).abs() < 0.5, "{status}: {retried}");
        assert_eq!(bad.seen().requests.len(), 1);
        assert_eq!(gateway.finish().await.len(), 2);
    }
}

#[tokio::test]
async fn other_client_errors_are_not_retried() {
    let response = "{\"error\":{\"message\":\"no such thing\"}}";
    let one = Upstream::start([json_response("422 X", response)]).await;
    let two = Upstream::start([json_response("422 X", response)]).await;
    let gateway = TestGateway::start(&[&one, &two]).await;
    let reply = gateway.chat(BODY).await;
    assert_eq!((reply.status, reply.text().as_str()), (422, response));
    assert_eq!(one.seen().requests.len() + two.seen().requests.len(), 1);
    let events = gateway.finish().await;
    assert_eq!(events.len(), 1);
    assert_eq!((events[0].status, events[0].refusal), (Some(422), None));
}

#[tokio::test]
async fn each_backend_is_tried_once_and_the_best_response_is_returned() {
    let limited = "{\"error\":\"slow down\"}";
    let one = Upstream::start([json_response("429 X", limited)]).await;
    let two = Upstream::start([json_response("503 X", "{}")]).await;
    let three = Upstream::start([vec![Step::Reset]]).await;
    let four = Upstream::start([json_response("200 OK", "{}")]).await;
    four.set_probe_status("500 X");
    let pool = [&one, &two, &three];
    let gateway = TestGateway::start(&pool).await;
    let reply = gateway.chat(BODY).await;
    assert_eq!((reply.status, reply.text().as_str()), (429, limited));
    for upstream in pool {
        assert_eq!(upstream.seen().requests.len(), 1);
    }
    let events = gateway.finish().await;
    assert_eq!(events.len(), 1);
    assert_eq!((events[0].status, events[0].refusal), (Some(429), None));
}

#[tokio::test]
async fn a_pool_of_one_gets_one_attempt_and_attempts_are_bounded() {
    let only = Upstream::start([json_response("500 X", "{\"a\":1}")]).await;
    let gateway = TestGateway::start(&[&only]).await;
    let reply = gateway.chat(BODY).await;
    assert_eq!((reply.status, reply.text().as_str()), (500, "{\"a\":1}"));
    assert_eq!(only.seen().requests.len(), 1);

    let bad = || Upstream::start([json_response("500 X", "{}")]);
    let (one, two, three) = (bad().await, bad().await, bad().await);
    let gateway =
        TestGateway::start_with(&[&one, &two, &three], Options::flags(&["--max-retries=1"])).await;
    assert_eq!(gateway.chat(BODY).await.status, 500);
    let tried = [&one, &two, &three].map(|upstream| upstream.seen().requests.len());
    assert_eq!(tried.iter().sum::<usize>(), 2);
}

#[tokio::test]
async fn an_unreachable_backend_is_502_without_its_address() {
    let gone = Upstream::start([]).await;
    let api_base = gone.api_base();
    let address = gone.address.to_string();
    drop(gone);
    let gateway =
        TestGateway::serving(&crate::support::content(&[api_base]), Options::default()).await;
    let reply = gateway.chat(BODY).await;
    assert_eq!(reply.error().0, 502);
    assert_eq!(reply.error().2, "upstream_unavailable");
    assert!(!reply.text().contains(&address) && !reply.text().contains("127.0.0.1"));
    let events = gateway.finish().await;
    assert_eq!(events.len(), 1);
    assert_eq!(events[0].refusal, Some(RefusalKind::NoBackend));
    assert_eq!(events[0].status, Some(502));
}

#[tokio::test]
async fn a_silent_upstream_is_504_within_the_timeout() {
    let silent = Upstream::start([vec![Step::UntilDisconnect]]).await;
    let gateway =
        TestGateway::start_with(&[&silent], Options::flags(&["--upstream-timeout=1"])).await;
    let reply = gateway.chat(BODY).await;
    assert_eq!(reply.error().0, 504);
    assert_eq!(reply.error().2, "upstream_timeout");
    silent
        .wait_for("the request to be aborted", |seen| seen.disconnects == 1)
        .await;
    let events = gateway.finish().await;
    assert_eq!((events.len(), events[0].status), (1, Some(504)));
}

#[tokio::test]
async fn a_closed_idle_connection_is_not_a_failure() {
    let response = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}".to_vec();
    let dying = vec![Step::Send(response.clone()), Step::Close];
    let upstream = Upstream::start([dying.clone(), dying.clone(), dying, raw(&response)]).await;
    let gateway = TestGateway::start(&[&upstream]).await;
    let mut client = gateway.client().await;
    for _ in 0..6 {
        assert_eq!(client.send(&chat(BODY)).await.status, 200);
    }
    assert_eq!(upstream.seen().requests.len(), 6);
    let name = format!(
        "fastllm_backend_errors_total{{api_base=\"{}\"}}",
        upstream.api_base()
    );
    assert!(gateway.metric(&name).await < 0.5);
}

#[tokio::test]
async fn an_unhealthy_backend_is_skipped_until_it_recovers() {
    let sick = Upstream::start([json_response("200 OK", "{\"by\":\"sick\"}")]).await;
    let well = Upstream::start([json_response("200 OK", "{\"by\":\"well\"}")]).await;
    sick.set_probe_status("503 X");
    let flags = Options::flags(&["--health-interval=1"]);
    let gateway = TestGateway::start_with(&[&sick, &well], flags).await;
    let health = format!(
        "fastllm_backend_healthy{{api_base=\"{}\"}}",
        sick.api_base()
    );
    gateway
        .until("the backend to be unhealthy", async || {
            gateway.metric(&health).await < 0.5
        })
        .await;
    for _ in 0..4 {
        assert_eq!(gateway.chat(BODY).await.text(), "{\"by\":\"well\"}");
    }
    // No other backend is left, so it is used.
    assert_eq!(gateway.chat("{\"model\":\"large\"}").await.status, 200);
    assert_eq!(gateway.get("/readyz").await.status, 200);

    sick.set_probe_status("200 OK");
    gateway
        .until("the backend to recover", async || {
            gateway.metric(&health).await > 0.5
        })
        .await;
    let mut by_sick = false;
    for _ in 0..2 {
        by_sick |= gateway.chat(BODY).await.text().contains("sick");
    }
    assert!(by_sick);
}
