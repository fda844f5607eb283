//! Resources that share a Secret.

use fastllm_crds::ConditionType;
use fastllm_operator::pacing::MAX_CONCURRENT;
use tokio::time::Instant;

use crate::cluster::{REACTION, TestCluster, poll};

const NAMES: [&str; 5] = ["a", "b", "c", "d", "e"];

/// The resources whose control plane was rolled, but is not complete.
async fn rolling(cluster: &TestCluster, done: &[&'static str]) -> Vec<&'static str> {
    let mut found = Vec::new();
    for name in NAMES {
        let generation = cluster.generation(&format!("{name}-control")).await;
        if generation == Some(2) && !done.contains(&name) {
            found.push(name);
        }
    }
    found
}

#[tokio::test]
async fn the_change_of_a_shared_secret_is_rolled_out_in_turns() {
    let cluster = TestCluster::new("pacing").await;
    let _operator = cluster.operator().await;
    for name in NAMES {
        cluster.install(name).await;
    }
    cluster
        .secret("db", "uri", "postgres://user:other@db/fastllm")
        .await;
    let mut done = Vec::new();
    while done.len() < NAMES.len() {
        let expected = MAX_CONCURRENT.min(NAMES.len() - done.len());
        let deadline = Instant::now() + REACTION;
        let started = loop {
            let started = rolling(&cluster, &done).await;
            assert!(started.len() <= MAX_CONCURRENT, "{started:?}");
            if started.len() == expected {
                break started;
            }
            assert!(Instant::now() < deadline, "{done:?} {started:?}");
            poll().await;
        };
        let waiting = NAMES
            .iter()
            .find(|n| !started.contains(n) && !done.contains(n));
        if let Some(waiting) = waiting {
            cluster
                .until(waiting, |s| {
                    let ready = s.condition(ConditionType::Ready).unwrap();
                    ready.message.contains("waiting for other resources")
                        && ready.message.contains("Secret \"db\"")
                })
                .await;
        }
        let first = started[0];
        cluster.finish(&format!("{first}-control")).await;
        cluster
            .until(first, |s| s.is_true(ConditionType::Ready))
            .await;
        done.push(first);
    }
}
