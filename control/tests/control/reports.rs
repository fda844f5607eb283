//! Reports have connections of their own, and end with their client.

use std::time::Duration;

use reqwest::{Method, StatusCode};
use serde_json::json;
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::harness::{PASSWORD, eventually, started, status_and_json};

/// Statements that wait for a lock in this test's database.
const WAITING: &str = "SELECT count(*) FROM pg_stat_activity \
    WHERE datname = current_database() AND wait_event_type = 'Lock'";

/// Much shorter than the timeout of a report.
const SOON: Duration = Duration::from_secs(10);

#[tokio::test]
async fn reports_take_no_connections_from_gateways_and_end_with_their_clients() {
    let (database, control) = started().await;
    let root = control.session("root", PASSWORD).await;
    // Reports of the audit log now take long.
    let mut lock = database.pool.begin().await.unwrap();
    sqlx::query("LOCK TABLE audit_events IN ACCESS EXCLUSIVE MODE")
        .execute(&mut *lock)
        .await
        .unwrap();
    let mut reports = JoinSet::new();
    for _ in 0..20 {
        reports.spawn(root.request(Method::GET, "/admin/audit").send());
    }
    eventually("all connections for reports are in use", async || {
        (database.number(WAITING).await == 2).then_some(())
    })
    .await;
    let busy = eventually("a report is rejected", async || {
        let reply = reports.try_join_next()?.unwrap().unwrap();
        Some((reply.status(), reply.headers()["retry-after"].clone()))
    });
    assert_eq!(
        busy.await,
        (StatusCode::SERVICE_UNAVAILABLE, "2".parse().unwrap())
    );

    let gateways = async {
        let usage = json!({ "replica": "r", "boot_id": "b", "sequence": 1, "events": [] });
        let usage = control.as_gateway(Method::POST, "/usage").json(&usage);
        let state = control.as_gateway(Method::GET, "/limits-state");
        let snapshot = control.as_gateway(Method::GET, "/snapshot");
        for request in [usage, state, snapshot, control.get("/readyz")] {
            assert_eq!(request.send().await.unwrap().status(), StatusCode::OK);
        }
        let models = root.request(Method::GET, "/admin/models");
        assert_eq!(status_and_json(models).await.0, 200);
    };
    timeout(SOON, gateways).await.unwrap();

    // The clients leave; their queries end although the lock is still held.
    reports.shutdown().await;
    eventually("the queries have ended", async || {
        (database.number(WAITING).await == 0).then_some(())
    })
    .await;
    lock.rollback().await.unwrap();
    let report = root.request(Method::GET, "/admin/audit");
    assert_eq!(status_and_json(report).await.0, 200);
}
