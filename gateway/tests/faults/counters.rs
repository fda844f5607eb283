//! The counters of `/metrics`.

use std::collections::BTreeMap;

use tokio::time::timeout;

use crate::support::{DEADLINE, Rig};

/// Counters of requests by their whole name, without those that are 0.
pub(crate) type Counters = BTreeMap<String, u64>;

/// Families that are not of requests as a whole.
const BESIDE: [&str; 3] = ["fastllm_backend_", "fastllm_snapshot_", "fastllm_usage_"];

/// Every line of the metrics.
async fn lines(rig: &Rig) -> Vec<(String, String)> {
    let text = rig.get("/metrics").await.text();
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    let pairs = lines.map(|line| line.rsplit_once(' ').unwrap());
    pairs
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .collect()
}

fn counters_among(lines: Vec<(String, String)>) -> Counters {
    let mut counters = Counters::new();
    for (name, value) in lines {
        let family = name.split('{').next().unwrap();
        let beside = BESIDE.iter().any(|beside| family.starts_with(beside));
        if family.ends_with("_total") && !beside {
            add(&mut counters, &name, value.parse().unwrap());
        }
    }
    counters
}

/// What was counted until now.
pub(crate) async fn counters(rig: &Rig) -> Counters {
    counters_among(lines(rig).await)
}

/// Waits until exactly these were counted since `before`, and nothing is under
/// way at any backend.
pub(crate) async fn until_counted(rig: &Rig, before: &Counters, expected: &Counters) {
    let mut last = Counters::new();
    let wait = async {
        loop {
            let lines = lines(rig).await;
            let under_way = |(name, value): &(String, String)| {
                name.starts_with("fastllm_backend_inflight{") && value != "0"
            };
            let idle = !lines.iter().any(under_way);
            last = since(before, &counters_among(lines));
            if idle && last == *expected {
                return;
            }
            tokio::task::yield_now().await;
        }
    };
    if timeout(DEADLINE / 3, wait).await.is_err() {
        assert_eq!(last, *expected);
        panic!("something is still under way at a backend");
    }
}

fn since(before: &Counters, now: &Counters) -> Counters {
    let mut since = Counters::new();
    for (name, value) in now {
        let was = before.get(name).copied().unwrap_or(0);
        add(&mut since, name, value - was);
    }
    since
}

/// One finished request with this outcome.
pub(crate) fn finished(outcome: &str) -> Counters {
    let mut counters = Counters::new();
    add(&mut counters, "fastllm_requests_total", 1);
    let name = format!("fastllm_request_outcomes_total{{outcome=\"{outcome}\"}}");
    add(&mut counters, &name, 1);
    if !matches!(outcome, "ok" | "client_gone") {
        add(&mut counters, "fastllm_requests_failed_total", 1);
    }
    counters
}

/// Counts more of something.
pub(crate) fn add(counters: &mut Counters, name: &str, count: u64) {
    if count > 0 {
        *counters.entry(name.to_owned()).or_default() += count;
    }
}
