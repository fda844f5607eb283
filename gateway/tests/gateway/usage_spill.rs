//! Usage during a long outage of control, and across a restart.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use fastllm_contract::UsageBatch;

use crate::support::{
    Control, Options, TestGateway, Upstream, chat, content, json_response, snapshot,
};

const BODY: &str = "{\"model\":\"small\"}";
const RESPONSE: &str = "{\"usage\":{\"prompt_tokens\":1,\"completion_tokens\":2}}";
const SPILLED: &str = "fastllm_usage_spill_events";
const DAMAGED: &str = "fastllm_usage_reports_dropped_total{reason=\"spill_damaged\"}";

/// A gateway whose control plane accepts usage, or does not.
async fn start(upstream: &Upstream, spill: &Path, away: bool) -> TestGateway {
    let control = Control::start(snapshot(&content(&[upstream.api_base()]))).await;
    control.set_unavailable(away);
    let spill = format!("--usage-spill={}", spill.display());
    let grace = format!("--shutdown-grace={}", if away { 0 } else { 10 });
    let gateway = TestGateway::with_control(control, Options::flags(&[&spill, &grace]));
    gateway.until_ready().await;
    gateway
}

async fn send(gateway: &TestGateway, count: usize) {
    let mut client = gateway.client().await;
    for _ in 0..count {
        assert_eq!(client.send(&chat(BODY)).await.status, 200);
    }
}

/// Checks that the batches of each process arrived in order and were retried
/// unchanged, and returns those that were stored.
fn stored(gateway: &TestGateway) -> Vec<UsageBatch> {
    let mut first = BTreeMap::new();
    for (_, body) in gateway.control.received().usage {
        let batch: UsageBatch = serde_json::from_slice(&body).unwrap();
        let as_sent = first
            .entry((batch.boot_id, batch.sequence))
            .or_insert(body.clone());
        assert_eq!(*as_sent, body);
    }
    let batches = gateway.control.batches();
    assert!(
        batches.is_sorted_by(|one, next| {
            one.boot_id != next.boot_id || one.sequence < next.sequence
        })
    );
    batches
}

/// Checks that each event is present once, in the order of the requests.
fn assert_events(batches: &[UsageBatch], count: usize) {
    let events: Vec<_> = batches.iter().flat_map(|batch| &batch.events).collect();
    assert_eq!(events.len(), count);
    let number = |id: &str| u64::from_str_radix(id.rsplit('-').next().unwrap(), 16).unwrap();
    let numbers = events
        .iter()
        .map(|event| number(event.request_id.as_deref().unwrap()));
    assert!(
        numbers
            .collect::<Vec<_>>()
            .is_sorted_by(|one, next| one < next)
    );
}

#[tokio::test]
async fn an_outage_neither_loses_nor_duplicates_usage() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("usage.spill");
    let upstream = Upstream::start([json_response("200 OK", RESPONSE)]).await;
    let mut gateway = start(&upstream, &path, false).await;
    send(&gateway, 10).await;
    gateway
        .control
        .wait_for("the first batch", |received| !received.usage.is_empty())
        .await;
    gateway.control.set_unavailable(true);
    send(&gateway, 2500).await;
    gateway
        .until("batches on disk", async || {
            gateway.metric(SPILLED).await > 1999.5
        })
        .await;
    // New usage is queued behind them.
    send(&gateway, 100).await;
    gateway.control.set_unavailable(false);
    gateway.stop();
    gateway.ended().await;
    assert_events(&stored(&gateway), 2610);
    assert_eq!(fs::metadata(&path).unwrap().len(), 0);
}

/// Runs a gateway that exits without having sent its usage.
async fn ended_without_control(upstream: &Upstream, path: &Path, count: usize) {
    let mut gateway = start(upstream, path, true).await;
    send(&gateway, count).await;
    gateway.stop();
    gateway.ended().await;
    assert!(gateway.control.batches().is_empty());
    assert!(fs::metadata(path).unwrap().len() > 0);
}

#[tokio::test]
async fn unsent_usage_is_sent_after_a_restart() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("usage.spill");
    let upstream = Upstream::start([json_response("200 OK", RESPONSE)]).await;
    ended_without_control(&upstream, &path, 1100).await;
    // This process cannot send it either.
    ended_without_control(&upstream, &path, 5).await;

    let mut gateway = start(&upstream, &path, false).await;
    send(&gateway, 3).await;
    gateway.stop();
    gateway.ended().await;
    let batches = stored(&gateway);
    let (_, own) = batches.split_at(batches.len() - 1);
    assert_events(own, 3);
    let mut starts: Vec<_> = batches.iter().map(|batch| &batch.boot_id).collect();
    starts.dedup();
    assert_eq!(starts.len(), 3);
    for (start, count) in starts.into_iter().zip([1100, 5, 3]) {
        let of_start = batches.iter().filter(|batch| batch.boot_id == *start);
        assert_events(&of_start.cloned().collect::<Vec<_>>(), count);
    }
    assert_eq!(fs::metadata(&path).unwrap().len(), 0);
}

#[tokio::test]
async fn a_torn_record_is_counted_and_the_rest_is_sent() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("usage.spill");
    let upstream = Upstream::start([json_response("200 OK", RESPONSE)]).await;
    ended_without_control(&upstream, &path, 600).await;
    ended_without_control(&upstream, &path, 50).await;
    let whole = fs::read(&path).unwrap();
    fs::write(&path, &whole[..whole.len() - 9]).unwrap();

    let mut gateway = start(&upstream, &path, false).await;
    gateway
        .until("the loss to be counted", async || {
            gateway.metric(DAMAGED).await > 49.5
        })
        .await;
    gateway.stop();
    gateway.ended().await;
    assert_events(&stored(&gateway), 600);
}

#[tokio::test]
async fn an_unwritable_spill_file_fails_no_request() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("none/usage.spill");
    let upstream = Upstream::start([json_response("200 OK", RESPONSE)]).await;
    let gateway = start(&upstream, &path, false).await;
    send(&gateway, 1200).await;
    assert_eq!(gateway.finish().await.len(), 1200);
    assert!(crate::support::logged().contains("cannot use the usage spill file"));
}
