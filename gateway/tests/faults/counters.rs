//! The counters of `/metrics`.

use std::collections::BTreeMap;

use tokio::time::timeout;

use crate::support::{DEADLINE, TestGateway};

/// Request counters by full name; counters that are 0 are omitted.
pub(crate) type MetricCounters = BTreeMap<String, u64>;

/// Metric families that do not count whole requests.
const BESIDE: [&str; 3] = ["fastllm_backend_", "fastllm_snapshot_", "fastllm_usage_"];

/// Every line of the metrics.
async fn lines(gateway: &TestGateway) -> Vec<(String, String)> {
    let text = gateway.get("/metrics").await.text();
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    let pairs = lines.map(|line| line.rsplit_once(' ').unwrap());
    pairs
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .collect()
}

fn counters_among(lines: Vec<(String, String)>) -> MetricCounters {
    let mut counters = MetricCounters::new();
    for (name, value) in lines {
        let family = name.split('{').next().unwrap();
        let beside = BESIDE.iter().any(|beside| family.starts_with(beside));
        if family.ends_with("_total") && !beside {
            add(&mut counters, &name, value.parse().unwrap());
        }
    }
    counters
}

/// The current values of the counters.
pub(crate) async fn counters(gateway: &TestGateway) -> MetricCounters {
    counters_among(lines(gateway).await)
}

/// Waits until exactly these were counted since `before`, and no request is in
/// flight at any backend.
pub(crate) async fn until_counted(
    gateway: &TestGateway,
    before: &MetricCounters,
    expected: &MetricCounters,
) {
    let mut last = MetricCounters::new();
    let wait = async {
        loop {
            let lines = lines(gateway).await;
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
        panic!("a request is still in flight at a backend");
    }
}

fn since(before: &MetricCounters, now: &MetricCounters) -> MetricCounters {
    let mut since = MetricCounters::new();
    for (name, value) in now {
        let was = before.get(name).copied().unwrap_or(0);
        add(&mut since, name, value - was);
    }
    since
}

/// One finished request with this outcome.
pub(crate) fn finished(outcome: &str) -> MetricCounters {
    let mut counters = MetricCounters::new();
    add(&mut counters, "fastllm_requests_total", 1);
    let name = format!("fastllm_request_outcomes_total{{outcome=\"{outcome}\"}}");
    add(&mut counters, &name, 1);
    if !matches!(outcome, "ok" | "client_gone") {
        add(&mut counters, "fastllm_requests_failed_total", 1);
    }
    counters
}

/// Adds to a counter.
pub(crate) fn add(counters: &mut MetricCounters, name: &str, count: u64) {
    if count > 0 {
        *counters.entry(name.to_owned()).or_default() += count;
    }
}
