//! Reports to the control plane.

use fastllm_contract::UsageBatch;

use crate::support::{Options, TestGateway, Upstream, json_response};

const BODY: &str = "{\"model\":\"small\"}";
const RESPONSE: &str =
    "{\"usage\":{\"prompt_tokens\":1,\"completion_tokens\":2,\"cost\":0.000125}}";

#[tokio::test]
async fn a_batch_is_retried_unchanged_until_it_is_acknowledged() {
    let upstream = Upstream::start([json_response("200 OK", RESPONSE)]).await;
    let gateway = TestGateway::start(&[&upstream]).await;
    gateway.control.set_usage_statuses(&[503, 401, 500]);
    assert_eq!(gateway.chat(BODY).await.status, 200);
    gateway
        .control
        .wait_for("the batch to be stored", |received| {
            received.usage.iter().any(|(status, _)| *status == 200)
        })
        .await;
    // The usage of later requests has the next batch number.
    assert_eq!(gateway.chat(BODY).await.status, 200);
    let received = gateway.control.received();
    let first = &received.usage[0].1;
    assert_eq!(received.usage.len(), 4);
    assert!(received.usage.iter().all(|(_, body)| body == first));
    let batch: UsageBatch = serde_json::from_slice(first).unwrap();
    assert_eq!((batch.sequence, batch.events.len()), (1, 1));
    assert_eq!(batch.events[0].cost_micros.map(|cost| cost.0), Some(125));
    assert_eq!(batch.boot_id.len(), 16);

    let mut gateway = gateway;
    gateway.stop();
    gateway.ended().await;
    let batches = gateway.control.batches();
    assert_eq!(batches.len(), 2);
    assert_eq!(
        (batches[1].sequence, &batches[1].boot_id),
        (2, &batch.boot_id)
    );
}

#[tokio::test]
async fn shutdown_retries_usage_within_the_grace_period() {
    let upstream = Upstream::start([json_response("200 OK", RESPONSE)]).await;
    let gateway = TestGateway::start(&[&upstream]).await;
    assert_eq!(gateway.chat(BODY).await.status, 200);
    // Control becomes available only after some seconds, and then with another token.
    gateway
        .control
        .set_usage_statuses(&[503, 503, 503, 401, 401, 401, 401]);
    assert_eq!(gateway.finish().await.len(), 1);
}

#[tokio::test]
async fn unsent_usage_does_not_delay_shutdown() {
    let upstream = Upstream::start([json_response("200 OK", RESPONSE)]).await;
    let gateway =
        TestGateway::start_with(&[&upstream], Options::flags(&["--shutdown-grace=1"])).await;
    assert_eq!(gateway.chat(BODY).await.status, 200);
    gateway.control.set_usage_statuses(&[503; 100]);
    assert!(gateway.finish().await.is_empty());
    assert!(
        crate::support::logged()
            .contains("usage could not be sent before shutdown and was dropped")
    );
}

#[tokio::test]
async fn a_permanently_rejected_batch_is_counted_and_dropped() {
    let upstream = Upstream::start([json_response("200 OK", RESPONSE)]).await;
    let gateway = TestGateway::start(&[&upstream]).await;
    gateway.control.set_usage_statuses(&[400]);
    assert_eq!(gateway.chat(BODY).await.status, 200);
    let lost = "fastllm_usage_reports_dropped_total{reason=\"batch_refused\"}";
    gateway
        .until("the loss to be counted", async || {
            gateway.metric(lost).await > 0.5
        })
        .await;
    assert_eq!(gateway.control.received().usage.len(), 1);
    assert_eq!(gateway.chat(BODY).await.status, 200);
    assert_eq!(gateway.finish().await.len(), 1);
}

#[tokio::test]
async fn a_full_batch_is_sent_at_once_and_no_event_is_lost() {
    let upstream = Upstream::start([json_response("200 OK", RESPONSE)]).await;
    let gateway = TestGateway::start(&[&upstream]).await;
    let mut client = gateway.client().await;
    for _ in 0..UsageBatch::MAX_EVENTS + 20 {
        client.send(&crate::support::chat(BODY)).await;
    }
    let events = gateway.finish().await;
    assert_eq!(events.len(), UsageBatch::MAX_EVENTS + 20);
}

#[tokio::test]
async fn health_reports_contain_backends_and_counters() {
    let upstream = Upstream::start([json_response("200 OK", RESPONSE)]).await;
    let flags = Options::flags(&["--health-report-interval=1", "--replica=pod-7"]);
    let gateway = TestGateway::start_with(&[&upstream], flags).await;
    assert_eq!(gateway.chat(BODY).await.status, 200);
    assert_eq!(gateway.chat("{\"model\":\"nobodys\"}").await.status, 404);
    gateway
        .control
        .wait_for("a report that includes it", |received| {
            received.health.iter().any(|report| {
                let backend = report.backends.iter().find(|backend| backend.id.0 == 1);
                report.replica == "pod-7"
                    && report.snapshot_version == 1
                    && report.process.requests_ok == 1
                    && report.process.rejected_model_not_found == 1
                    && backend.is_some_and(|backend| {
                        backend.healthy && backend.requests_total == 1 && backend.inflight == 0
                    })
            })
        })
        .await;
    assert_eq!(gateway.control.received().health[0].snapshot_version, 1);
}
