use std::path::Path;
use std::sync::Arc;

use fastllm_contract::{ModelName, UsageBatch, UsageEvent};

use tokio::time::{Instant, timeout};

use super::{
    BATCHES_PER_SYNC, Backlog, FLUSH_EVERY, HIGH_MARK, MARK, NextBatch, SealedBatch, UNREADABLE,
};
use crate::control_plane::usage::BatchIdentity;
use crate::control_plane::usage::SpillConfig;
use crate::control_plane::usage::fixture::event;
use crate::control_plane::usage::queue::{BILLABLE, FLUSH_SIZE};
use crate::control_plane::{UsageQueue, usage_queue};
use crate::telemetry::Metrics;

const LIMIT: u64 = 1 << 30;

struct BacklogFixture {
    queue: UsageQueue,
    backlog: Backlog,
    metrics: Arc<Metrics>,
    pushed: u32,
}

fn rig(path: &Path, limit: u64) -> BacklogFixture {
    let metrics = Arc::new(Metrics::new().unwrap());
    let (queue, receiver) = usage_queue(&metrics);
    let identity = BatchIdentity::new("pod-1".to_owned(), Arc::from("this-boot"));
    let spill = Some(SpillConfig {
        path: path.to_owned(),
        max_bytes: limit,
    });
    BacklogFixture {
        queue,
        backlog: Backlog::new(receiver, identity, spill, Arc::clone(&metrics)),
        metrics,
        pushed: 0,
    }
}

impl BacklogFixture {
    /// This many numbered events.
    fn push(&mut self, count: usize) {
        for _ in 0..count {
            self.queue.push(UsageEvent {
                duration_ms: Some(self.pushed),
                ..event(None)
            });
            self.pushed += 1;
        }
    }

    /// The next batch to send.
    async fn oldest(&mut self) -> Option<SealedBatch> {
        match self.backlog.next().await {
            NextBatch::Send(batch) => Some(batch),
            NextBatch::Gather => None,
            NextBatch::Wait(_) => panic!("the file is unreadable"),
        }
    }

    /// All batches, as they are sent.
    async fn sent(&mut self) -> Vec<UsageBatch> {
        let mut batches = Vec::new();
        loop {
            while let Some(batch) = self.oldest().await {
                batches.push(serde_json::from_slice(&batch.body).unwrap());
                self.backlog.done().await;
            }
            if !self.backlog.seal(Vec::new()) {
                return batches;
            }
        }
    }

    fn lost(&self, reason: &str) -> String {
        let text = String::from_utf8(self.metrics.render(None)).unwrap();
        let name = format!("fastllm_usage_reports_dropped_total{{reason=\"{reason}\"}} ");
        let line = text.lines().find_map(|line| line.strip_prefix(&name));
        line.unwrap().to_owned()
    }
}

/// Asserts that each event is sent once, in order, under increasing numbers.
fn assert_all(batches: &[UsageBatch], events: std::ops::Range<u32>) {
    let numbers = batches.iter().flat_map(|batch| &batch.events);
    let numbers: Vec<_> = numbers.filter_map(|event| event.duration_ms).collect();
    assert_eq!(numbers, events.collect::<Vec<_>>());
    assert!(batches.is_sorted_by(|one, next| one.sequence < next.sequence));
}

#[tokio::test]
async fn events_on_disk_keep_their_order() {
    let folder = tempfile::tempdir().unwrap();
    let mut rig = rig(&folder.path().join("spill"), LIMIT);
    rig.push(300);
    // A batch is in flight when the others have to be spilled.
    assert!(rig.backlog.seal(Vec::new()));
    let first = rig.oldest().await.unwrap();
    rig.push(MARK + 700);
    rig.backlog.spill().await;
    assert_eq!(rig.oldest().await, Some(first));
    assert_eq!(rig.backlog.receiver.len(), 200);
    rig.push(MARK);
    rig.backlog.spill_if_needed().await;
    assert!(rig.backlog.receiver.len() < UsageBatch::MAX_EVENTS);
    rig.push(5);
    assert_all(&rig.sent().await, 0..rig.pushed);
    assert_eq!(rig.metrics.process().usage_dropped, 0);
}

#[tokio::test]
async fn a_slow_control_plane_loses_no_events() {
    let folder = tempfile::tempdir().unwrap();
    let mut rig = rig(&folder.path().join("spill"), LIMIT);
    // As before each batch: usage of an earlier start comes first.
    assert!(rig.oldest().await.is_none());
    rig.push(MARK);
    rig.backlog.spill_if_needed().await;
    assert_eq!(rig.backlog.receiver.len(), MARK);
    rig.push(HIGH_MARK - MARK);
    rig.backlog.spill_if_needed().await;
    assert!(rig.backlog.receiver.len() < UsageBatch::MAX_EVENTS);
    rig.push(10_000);
    rig.backlog.spill_if_needed().await;
    assert_all(&rig.sent().await, 0..rig.pushed);
}

#[tokio::test]
async fn a_full_file_loses_no_events_until_the_queue_is_full() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("spill");
    // The file has room for two batches.
    let mut rig = rig(&path, 250_000);
    rig.push(10_000);
    rig.backlog.spill().await;
    assert!(std::fs::metadata(&path).unwrap().len() <= 250_000);
    let held = rig.backlog.spill.as_ref().unwrap().contents.events;
    assert!(held >= 500, "{held}");
    rig.push(BILLABLE + FLUSH_SIZE - rig.backlog.receiver.len());
    assert_eq!(rig.metrics.process().usage_dropped, 0);
    let kept = rig.pushed;
    rig.push(7);
    assert_eq!(rig.lost("spill_full"), "7");
    assert_eq!(rig.lost("queue_full"), "0");
    // Retrying without success takes no more memory.
    for _ in 0..3 {
        rig.backlog.spill().await;
        assert!(rig.backlog.sealed.len() <= BATCHES_PER_SYNC);
    }
    assert_all(&rig.sent().await, 0..kept);
    // The file is empty now, and is no longer the reason for losses.
    rig.push(BILLABLE + FLUSH_SIZE + 3);
    assert_eq!(
        (
            rig.lost("queue_full").as_str(),
            rig.lost("spill_full").as_str()
        ),
        ("3", "7")
    );
}

#[tokio::test]
async fn an_unwritable_file_is_the_drop_reason_until_it_recovers() {
    let folder = tempfile::tempdir().unwrap();
    let mut rig = rig(&folder.path().join("none/spill"), LIMIT);
    rig.push(10_000);
    assert_eq!(rig.oldest().await, None);
    rig.backlog.spill().await;
    rig.push(BILLABLE + FLUSH_SIZE - rig.backlog.receiver.len());
    let kept = rig.pushed;
    rig.push(2);
    assert_eq!(rig.lost("spill_failed"), "2");
    std::fs::create_dir(folder.path().join("none")).unwrap();
    rig.backlog.spill().await;
    assert!(rig.backlog.receiver.len() < UsageBatch::MAX_EVENTS);
    assert_all(&rig.sent().await, 0..kept);
}

/// A file with two batches, a third one in memory, and queued events.
async fn half_spilled(path: &Path) -> BacklogFixture {
    let mut rig = rig(path, LIMIT);
    rig.push(1_000);
    rig.backlog.spill().await;
    assert!(rig.backlog.has_spilled());
    rig.push(300);
    assert!(rig.backlog.seal(Vec::new()));
    rig.push(20);
    rig
}

impl BacklogFixture {
    /// Closes the file and replaces its content, as after a failed read.
    async fn swap(&mut self, path: &Path, with: impl FnOnce()) {
        std::fs::rename(path, path.with_extension("away")).unwrap();
        with();
        let closed = self.backlog.with_file(|spill| {
            spill.fail_next_read();
            spill.oldest()
        });
        assert!(closed.await.unwrap().is_err());
        assert!(!self.backlog.spill.as_ref().unwrap().is_open);
    }

    async fn waits(&mut self) -> bool {
        matches!(self.backlog.next().await, NextBatch::Wait(_))
    }
}

#[tokio::test]
async fn a_temporarily_unreadable_file_is_kept_and_not_overtaken() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("spill");
    let mut rig = half_spilled(&path).await;
    let whole = std::fs::metadata(&path).unwrap().len();
    // The file cannot be opened.
    rig.swap(&path, || std::fs::create_dir(&path).unwrap())
        .await;
    assert!(rig.waits().await);
    rig.push(BILLABLE + FLUSH_SIZE - rig.backlog.receiver.len() + 3);
    assert_eq!(rig.lost("spill_failed"), "3");
    assert!(rig.waits().await, "the file was abandoned too soon");
    std::fs::remove_dir(&path).unwrap();
    std::fs::rename(path.with_extension("away"), &path).unwrap();
    assert_eq!(std::fs::metadata(&path).unwrap().len(), whole);
    rig.backlog.retry_read_now();
    assert_all(&rig.sent().await, 0..rig.pushed - 3);
    assert_eq!(rig.lost("spill_damaged"), "0");
    rig.push(BILLABLE + FLUSH_SIZE + 1);
    assert_eq!(rig.lost("queue_full"), "1");
}

#[tokio::test]
async fn an_unreadable_file_is_abandoned_once_newer_usage_is_dropped() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("spill");
    let mut rig = half_spilled(&path).await;
    rig.swap(&path, || std::fs::create_dir(&path).unwrap())
        .await;
    assert!(rig.waits().await);
    let spill = rig.backlog.spill.as_mut().unwrap();
    spill.unread_since = Instant::now().checked_sub(UNREADABLE);
    assert!(rig.waits().await, "there is room for newer usage");
    rig.push(BILLABLE);
    let newer = rig.oldest().await.unwrap();
    let newer: UsageBatch = serde_json::from_slice(&newer.body).unwrap();
    assert_eq!(newer.events[0].duration_ms, Some(1_000));
    assert_eq!(rig.lost("spill_failed"), "1000");
    assert!(path.with_extension("away").exists());
    let batches = rig.sent().await;
    assert_all(&batches, 1_000..rig.pushed);
}

#[tokio::test]
async fn a_batch_sent_while_the_file_failed_is_repeated_unchanged() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("spill");
    let mut rig = half_spilled(&path).await;
    let first = rig.oldest().await.unwrap();
    let file = Arc::clone(&rig.backlog.spill.as_ref().unwrap().file);
    file.lock().fail_next_read();
    rig.backlog.done().await;
    assert!(rig.waits().await);
    rig.backlog.retry_read_now();
    // Resent unchanged: control recognizes it by its number.
    assert_eq!(rig.oldest().await, Some(first));
    assert_all(&rig.sent().await, 0..rig.pushed);
}

#[tokio::test]
async fn events_queued_during_a_post_do_not_wait_a_full_interval_again() {
    let folder = tempfile::tempdir().unwrap();
    let mut rig = rig(&folder.path().join("spill"), LIMIT);
    rig.push(1);
    rig.backlog.receiver.emptied = Instant::now().checked_sub(FLUSH_EVERY).unwrap();
    let mut batch = Vec::new();
    let gathered = rig.backlog.gather(&mut batch);
    timeout(FLUSH_EVERY / 2, gathered).await.unwrap();
    assert_eq!(batch.len(), 1);
}

#[tokio::test]
async fn usage_left_at_shutdown_is_sent_after_the_next_start() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("spill");
    let mut first = rig(&path, LIMIT);
    first.push(300);
    assert!(first.backlog.seal(Vec::new()));
    first.push(1234);
    first.backlog.flush_remaining().await;
    assert_eq!(first.lost("shutdown"), "0");
    drop(first);

    let mut second = rig(&path, LIMIT);
    second.backlog.identity = BatchIdentity::new("pod-2".to_owned(), Arc::from("another-boot"));
    second.push(10);
    let batches = second.sent().await;
    let (left, new) = batches.split_at(batches.len() - 1);
    assert_all(left, 0..1534);
    let of = |batch: &UsageBatch| (batch.replica.clone(), batch.boot_id.clone());
    let earlier = ("pod-1".to_owned(), "this-boot".to_owned());
    assert!(left.iter().all(|batch| of(batch) == earlier));
    assert_eq!(of(&new[0]), ("pod-2".to_owned(), "another-boot".to_owned()));
    assert_all(new, 0..10);
}

#[tokio::test]
async fn usage_left_at_shutdown_is_dropped_and_counted_without_a_file() {
    let folder = tempfile::tempdir().unwrap();
    let mut rig = rig(&folder.path().join("none/spill"), LIMIT);
    rig.push(700);
    rig.backlog.flush_remaining().await;
    assert_eq!(rig.lost("shutdown"), "700");
}

#[test]
fn an_hour_at_a_hundred_requests_a_second_fits_the_default_file() {
    let full = UsageEvent {
        requested_model: Some(ModelName::new("the-name-that-was-asked-for").unwrap()),
        endpoint: Some("/chat/completions".into()),
        request_id: Some("0123456789abcdef-fffffff".to_owned()),
        attempts: Some(1),
        cached_tokens: Some(fastllm_contract::Tokens(100_000)),
        reasoning_tokens: Some(fastllm_contract::Tokens(100_000)),
        duration_ms: Some(100_000),
        ttft_ms: Some(100_000),
        status: Some(200),
        at: fastllm_contract::Timestamp(1_767_225_600_000_000),
        ..event(None)
    };
    let length = serde_json::to_vec(&full).unwrap().len() as u64;
    assert!(3600 * 100 * length < 256 << 20, "{length}");
}
