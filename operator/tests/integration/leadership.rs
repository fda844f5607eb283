//! Leader election with the operator's permissions.

use std::sync::Arc;

use fastllm_operator::lease::{Candidate, Config, RETRY};
use fastllm_operator::metrics::Metrics;
use tokio::time::{Instant, timeout};

use crate::cluster::TestCluster;

#[tokio::test]
async fn a_released_lease_is_acquired_immediately() {
    let cluster = TestCluster::new("lease").await;
    let client = cluster.operator_client().await;
    let candidate = |pod: &str| {
        let config = Config {
            namespace: "fastllm-system",
            pod,
        };
        let metrics = Arc::new(Metrics::new().unwrap());
        Candidate::new(config, client.clone(), metrics)
    };
    let (mut first, mut second) = (candidate("first"), candidate("second"));
    // An aborted test run may have left the Lease behind.
    timeout(RETRY * 12, first.acquire()).await.unwrap();
    assert!(
        timeout(RETRY * 2, second.acquire()).await.is_err(),
        "two lead at once"
    );
    first.release().await;
    let started = Instant::now();
    timeout(RETRY * 2, second.acquire()).await.unwrap();
    assert!(started.elapsed() <= RETRY, "{:?}", started.elapsed());
    // The first candidate detects that it lost the Lease.
    timeout(RETRY * 2, first.hold()).await.unwrap();
    second.release().await;
    cluster.assert_nothing_forbidden();
}
