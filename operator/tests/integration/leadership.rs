//! The Lease, with the operator's rights.

use std::sync::Arc;

use fastllm_operator::lease::{Candidate, Config, RETRY};
use fastllm_operator::metrics::Metrics;
use tokio::time::{Instant, timeout};

use crate::cluster::TestCluster;

// OP-50, the planned hand-over
#[tokio::test]
async fn a_lease_that_is_given_back_is_taken_at_once() {
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
    // A run that was killed may have left the Lease behind.
    timeout(RETRY * 12, first.acquire()).await.unwrap();
    assert!(
        timeout(RETRY * 2, second.acquire()).await.is_err(),
        "two lead at once"
    );
    first.release().await;
    let started = Instant::now();
    timeout(RETRY * 2, second.acquire()).await.unwrap();
    assert!(started.elapsed() <= RETRY, "{:?}", started.elapsed());
    // The first has lost it, and says so.
    timeout(RETRY * 2, first.hold()).await.unwrap();
    second.release().await;
    cluster.assert_nothing_forbidden();
}
