use std::path::Path;
use std::sync::Arc;

use fastllm_contract::{ModelName, UsageBatch, UsageEvent};

use super::{Backlog, HIGH_MARK, MARK};
use crate::report::fixture::event;
use crate::report::{Identity, UsageQueue, queue};
use crate::telemetry::Metrics;

const LIMIT: u64 = 1 << 30;

struct Rig {
    queue: UsageQueue,
    backlog: Backlog,
    metrics: Arc<Metrics>,
    pushed: u32,
}

fn rig(path: &Path, limit: u64) -> Rig {
    let metrics = Arc::new(Metrics::new().unwrap());
    let (queue, waiting) = queue(&metrics);
    let identity = Identity::new("pod-1".to_owned(), Arc::from("this-boot"));
    let spill = Some((path.to_owned(), limit));
    Rig {
        queue,
        backlog: Backlog::new(waiting, identity, spill, Arc::clone(&metrics)),
        metrics,
        pushed: 0,
    }
}

impl Rig {
    /// So many events, each with its number.
    fn push(&mut self, count: usize) {
        for _ in 0..count {
            self.queue.push(UsageEvent {
                duration_ms: Some(self.pushed),
                ..event(None)
            });
            self.pushed += 1;
        }
    }

    /// Everything, as it is sent.
    async fn sent(&mut self) -> Vec<UsageBatch> {
        let mut batches = Vec::new();
        loop {
            while let Some(batch) = self.backlog.oldest().await {
                batches.push(serde_json::from_slice(&batch.body).unwrap());
                self.backlog.done().await;
            }
            if !self.backlog.freeze(Vec::new()) {
                return batches;
            }
        }
    }

    fn lost(&self, reason: &str) -> String {
        let text = String::from_utf8(self.metrics.render(None, 0)).unwrap();
        let name = format!("fastllm_usage_reports_dropped_total{{reason=\"{reason}\"}} ");
        let line = text.lines().find_map(|line| line.strip_prefix(&name));
        line.unwrap().to_owned()
    }
}

/// Each event once, in its order, under numbers that grow.
fn assert_all(batches: &[UsageBatch], events: std::ops::Range<u32>) {
    let numbers = batches.iter().flat_map(|batch| &batch.events);
    let numbers: Vec<_> = numbers.filter_map(|event| event.duration_ms).collect();
    assert_eq!(numbers, events.collect::<Vec<_>>());
    assert!(batches.is_sorted_by(|one, next| one.sequence < next.sequence));
}

#[tokio::test]
async fn what_goes_over_the_disk_keeps_its_order() {
    let folder = tempfile::tempdir().unwrap();
    let mut rig = rig(&folder.path().join("spill"), LIMIT);
    rig.push(300);
    // A batch that is being sent when the others have to go to the disk.
    assert!(rig.backlog.freeze(Vec::new()));
    let first = rig.backlog.oldest().await.unwrap();
    rig.push(MARK + 700);
    rig.backlog.relieve().await;
    assert_eq!(rig.backlog.oldest().await, Some(first));
    assert_eq!(rig.backlog.waiting.len(), 200);
    rig.push(MARK);
    rig.backlog.queue_up().await;
    assert!(rig.backlog.waiting.len() < UsageBatch::MAX_EVENTS);
    rig.push(5);
    assert_all(&rig.sent().await, 0..rig.pushed);
    assert_eq!(rig.metrics.process(0).usage_dropped, 0);
}

#[tokio::test]
async fn a_control_plane_that_is_only_slow_loses_nothing_either() {
    let folder = tempfile::tempdir().unwrap();
    let mut rig = rig(&folder.path().join("spill"), LIMIT);
    // As before each batch: whatever an earlier start left comes first.
    assert!(rig.backlog.oldest().await.is_none());
    rig.push(MARK);
    rig.backlog.queue_up().await;
    assert_eq!(rig.backlog.waiting.len(), MARK);
    rig.push(HIGH_MARK - MARK);
    rig.backlog.queue_up().await;
    assert!(rig.backlog.waiting.len() < UsageBatch::MAX_EVENTS);
    rig.push(10_000);
    rig.backlog.queue_up().await;
    assert_all(&rig.sent().await, 0..rig.pushed);
}

#[tokio::test]
async fn a_full_file_loses_nothing_before_the_queue_is_full_too() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("spill");
    // Room for two batches.
    let mut rig = rig(&path, 250_000);
    rig.push(10_000);
    rig.backlog.relieve().await;
    assert!(std::fs::metadata(&path).unwrap().len() <= 250_000);
    let held = u32::try_from(rig.backlog.spill.as_ref().unwrap().stock.events).unwrap();
    assert!(held >= 500, "{held}");
    // One batch was frozen, and found no room.
    let room = held as usize + 500;
    rig.push(room);
    assert_eq!(rig.metrics.process(0).usage_dropped, 0);
    let kept = rig.pushed;
    rig.push(7);
    assert_eq!(rig.lost("spill_full"), "7");
    assert_eq!(rig.lost("queue_full"), "0");
    // Trying again in vain takes no more memory.
    for _ in 0..3 {
        rig.backlog.relieve().await;
        assert_eq!(rig.backlog.frozen.len(), 1);
    }
    assert_all(&rig.sent().await, 0..kept);
    // It is empty by now, and not to blame any more.
    rig.push(10_003);
    assert_eq!(
        (
            rig.lost("queue_full").as_str(),
            rig.lost("spill_full").as_str()
        ),
        ("3", "7")
    );
}

#[tokio::test]
async fn a_file_that_cannot_be_written_is_to_blame_until_it_can() {
    let folder = tempfile::tempdir().unwrap();
    let mut rig = rig(&folder.path().join("none/spill"), LIMIT);
    rig.push(10_000);
    assert_eq!(rig.backlog.oldest().await, None);
    rig.backlog.relieve().await;
    rig.push(2);
    assert_eq!(rig.lost("spill_failed"), "2");
    std::fs::create_dir(folder.path().join("none")).unwrap();
    rig.backlog.relieve().await;
    assert!(rig.backlog.waiting.len() < UsageBatch::MAX_EVENTS);
    assert_all(&rig.sent().await, 0..10_000);
}

#[tokio::test]
async fn what_is_left_at_the_end_is_sent_by_the_next_start() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("spill");
    let mut first = rig(&path, LIMIT);
    first.push(300);
    assert!(first.backlog.freeze(Vec::new()));
    first.push(1234);
    first.backlog.end().await;
    assert_eq!(first.lost("shutdown"), "0");
    drop(first);

    let mut second = rig(&path, LIMIT);
    second.backlog.identity = Identity::new("pod-2".to_owned(), Arc::from("another-boot"));
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
async fn without_a_file_what_is_left_at_the_end_is_lost_and_counted() {
    let folder = tempfile::tempdir().unwrap();
    let mut rig = rig(&folder.path().join("none/spill"), LIMIT);
    rig.push(700);
    rig.backlog.end().await;
    assert_eq!(rig.lost("shutdown"), "700");
}

#[test]
fn an_hour_at_a_hundred_requests_a_second_fits_the_usual_file() {
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
