//! Backends with a concurrency limit, and backends that are draining.

use fastllm_contract::{Concurrency, ModelName, RefusalKind};
use tokio::task::JoinSet;

use crate::support::{
    Barrier, Client, Options, Reply, SnapshotContent, Step, TestGateway, Upstream, backend, chat,
    content, json_response, soon,
};

const BODY: &str = "{\"model\":\"small\"}";

/// Sets the concurrency limit of one backend of `small` to 1.
fn one_at_a_time(
    content: &mut SnapshotContent,
    index: usize,
    max_queue: u32,
    queue_timeout_ms: u64,
) {
    content.models[2].backends[index].concurrency = Concurrency {
        max: Some(1),
        max_queue,
        queue_timeout_ms,
    };
}

/// Responds when the barrier is opened.
fn blocked_response(barrier: &Barrier, body: &str) -> Vec<Step> {
    let mut script = vec![Step::Wait(barrier.clone())];
    script.extend(json_response("200 OK", body));
    script
}

/// Sends a request in the background.
fn send(gateway: &TestGateway, replies: &mut JoinSet<Reply>, body: &str) {
    let (address, request) = (gateway.address, chat(body));
    replies.spawn(async move { Client::connect(address).await.send(&request).await });
}

async fn next(replies: &mut JoinSet<Reply>) -> Reply {
    soon("a response", replies.join_next())
        .await
        .unwrap()
        .unwrap()
}

/// Waits until the health report shows this many requests queued for the first backend.
async fn until_waiting(gateway: &TestGateway, count: u64) {
    let seen = gateway.control.received().health.len();
    let waiting = |report: &fastllm_contract::HealthReport| {
        let mut backends = report.backends.iter();
        backends.any(|backend| backend.id.0 == 1 && backend.waiting == count)
    };
    gateway
        .control
        .wait_for("queued requests", |received| {
            received.health.iter().skip(seen).any(waiting)
        })
        .await;
}

fn reporting() -> Options {
    Options::flags(&["--health-report-interval=1"])
}

#[tokio::test]
async fn the_concurrency_limit_holds_and_the_queue_is_served_in_order() {
    let gates = [(); 3].map(|()| Barrier::new());
    let scripts = ["1", "2", "3"];
    let scripts = gates
        .iter()
        .zip(scripts)
        .map(|(barrier, body)| blocked_response(barrier, body));
    let upstream = Upstream::start(scripts).await;
    let mut content = content(&[upstream.api_base()]);
    one_at_a_time(&mut content, 0, 2, 60_000);
    let gateway = TestGateway::serving(&content, reporting()).await;
    let mut replies = JoinSet::new();
    send(&gateway, &mut replies, "{\"model\":\"small\",\"n\":1}");
    upstream
        .wait_for("the first request", |seen| seen.requests.len() == 1)
        .await;
    for waiting in [1, 2] {
        let body = format!("{{\"model\":\"small\",\"n\":{}}}", waiting + 1);
        send(&gateway, &mut replies, &body);
        until_waiting(&gateway, waiting).await;
    }
    // The queue is full.
    let refused = gateway.chat(BODY).await;
    let (status, _, code, _) = refused.error();
    assert_eq!((status, code.as_str()), (503, "overloaded"));
    assert_eq!(refused.header("retry-after"), Some("1"));

    for (barrier, count) in gates.iter().zip(1..) {
        upstream
            .wait_for("the next request", |seen| seen.requests.len() == count)
            .await;
        barrier.cancel();
        assert_eq!(next(&mut replies).await.status, 200);
    }
    let bodies: Vec<_> = upstream.seen().requests;
    let bodies: Vec<_> = bodies
        .iter()
        .map(|request| String::from_utf8_lossy(&request.body).into_owned())
        .collect();
    let expected = [1, 2, 3].map(|n| format!("{{\"model\":\"small\",\"n\":{n}}}"));
    assert_eq!(bodies, expected);
    let events = gateway.finish().await;
    let shed = events
        .iter()
        .filter(|event| event.refusal == Some(RefusalKind::Overload));
    assert_eq!(shed.count(), 1);
    assert_eq!(events.len(), 4);
}

#[tokio::test]
async fn queued_requests_time_out() {
    let barrier = Barrier::new();
    let upstream = Upstream::start([blocked_response(&barrier, "{}")]).await;
    let mut content = content(&[upstream.api_base()]);
    one_at_a_time(&mut content, 0, 5, 20);
    let gateway = TestGateway::serving(&content, Options::default()).await;
    let mut replies = JoinSet::new();
    send(&gateway, &mut replies, BODY);
    upstream
        .wait_for("the first request", |seen| seen.requests.len() == 1)
        .await;
    let (status, _, code, _) = gateway.chat(BODY).await.error();
    assert_eq!((status, code.as_str()), (503, "overloaded"));
    barrier.cancel();
    assert_eq!(next(&mut replies).await.status, 200);
    assert_eq!(gateway.chat(BODY).await.status, 200);
}

#[tokio::test]
async fn a_client_that_leaves_frees_its_slot_for_the_next() {
    let barrier = Barrier::new();
    let upstream = Upstream::start([
        blocked_response(&barrier, "{}"),
        json_response("200 OK", "{}"),
    ])
    .await;
    let mut content = content(&[upstream.api_base()]);
    one_at_a_time(&mut content, 0, 5, 60_000);
    let gateway = TestGateway::serving(&content, reporting()).await;
    let mut replies = JoinSet::new();
    send(&gateway, &mut replies, BODY);
    upstream
        .wait_for("the first request", |seen| seen.requests.len() == 1)
        .await;
    let mut impatient = JoinSet::new();
    send(&gateway, &mut impatient, BODY);
    until_waiting(&gateway, 1).await;
    drop(impatient);
    until_waiting(&gateway, 0).await;
    barrier.cancel();
    assert_eq!(next(&mut replies).await.status, 200);
    assert_eq!(gateway.chat(BODY).await.status, 200);
    assert_eq!(upstream.seen().requests.len(), 2);
}

#[tokio::test]
async fn a_response_retained_during_retries_occupies_no_slot() {
    for status in ["429 X", "503 X"] {
        let script = [json_response(status, "{}"), json_response("200 OK", "good")];
        let upstream = Upstream::start(script).await;
        let mut content = content(&[upstream.api_base()]);
        one_at_a_time(&mut content, 0, 5, 600_000);
        let gateway = TestGateway::serving(&content, Options::default()).await;
        let reply = soon("a response", gateway.chat(BODY)).await;
        assert_eq!((reply.status, reply.text().as_str()), (200, "good"));
    }
}

#[tokio::test]
async fn free_capacity_on_another_backend_is_preferred_to_queueing() {
    let barrier = Barrier::new();
    let (one, two) = (
        Upstream::start([
            blocked_response(&barrier, "1"),
            json_response("200 OK", "1"),
        ])
        .await,
        Upstream::start([
            blocked_response(&barrier, "2"),
            json_response("200 OK", "2"),
        ])
        .await,
    );
    let spare = Upstream::start([json_response("200 OK", "spare")]).await;
    let mut content = content(&[one.api_base(), two.api_base()]);
    for index in [0, 1] {
        one_at_a_time(&mut content, index, 5, 60_000);
    }
    content.models[1].backends = vec![backend(9, &spare.api_base())];
    content.fallback = Some(ModelName::new("large").unwrap());
    let gateway = TestGateway::serving(&content, Options::default()).await;
    let mut replies = JoinSet::new();
    for _ in 0..2 {
        send(&gateway, &mut replies, BODY);
    }
    for upstream in [&one, &two] {
        upstream
            .wait_for("one request per backend", |seen| seen.requests.len() == 1)
            .await;
    }
    assert_eq!(gateway.chat(BODY).await.text(), "spare");
    barrier.cancel();
    for _ in 0..2 {
        assert_eq!(next(&mut replies).await.status, 200);
    }
}

#[tokio::test]
async fn a_draining_backend_receives_no_new_request() {
    let (old, new) = (
        Upstream::start([json_response("200 OK", "old")]).await,
        Upstream::start([json_response("200 OK", "new")]).await,
    );
    let mut content = content(&[old.api_base(), new.api_base()]);
    content.models[2].backends[0].draining = true;
    let gateway = TestGateway::serving(&content, Options::default()).await;
    for _ in 0..5 {
        assert_eq!(gateway.chat(BODY).await.text(), "new");
    }
    assert!(old.seen().requests.is_empty());
    content.models[2].backends[1].draining = true;
    content.version += 1;
    gateway.control.publish(crate::support::snapshot(&content));
    gateway
        .until("no client is left", async || {
            gateway.chat(BODY).await.status == 502
        })
        .await;
    assert!(old.seen().requests.is_empty());
}
