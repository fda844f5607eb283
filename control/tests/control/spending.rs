use futures_util::future::join_all;
use serde_json::{Value, json};
use time::{Duration, OffsetDateTime};

use crate::accounting::{reply, send};
use crate::harness::{Control, Database, PASSWORD, started};
use crate::prices::{micros, with};

/// The sums of the usage rows, computed with the database's calendar: per budget of
/// [`budgets`] and window, and per start of a gateway.
const EXPECTED: &str = "
    WITH spent AS (
        SELECT b.id AS budget_id,
               CASE b.budget_window
                   WHEN 'daily' THEN b.window_start
                       + floor(extract(epoch FROM u.at - b.window_start) / 86400) * interval '1 day'
                   WHEN 'weekly' THEN b.window_start
                       + floor(extract(epoch FROM u.at - b.window_start) / 604800) * interval '7 days'
                   ELSE date_trunc('month', u.at AT TIME ZONE b.time_zone) AT TIME ZONE b.time_zone
               END AS window_start,
               u.replica, u.prompt_tokens + u.completion_tokens AS tokens,
               coalesce(u.cost_micros, 0) AS cost
          FROM usage_events AS u
          JOIN budgets AS b
            ON b.key_id = u.key_id OR b.team_id = u.team_id
               OR b.principal_id = u.principal_id
                  AND (b.model_id IS NULL OR b.model_id = u.model_id)
         WHERE u.refusal IS NULL)";

/// The number of rows that differ between both.
async fn differences(database: &Database) -> i64 {
    let sql = format!(
        "{EXPECTED}, expected AS (SELECT budget_id, window_start, sum(tokens), sum(cost) \
             FROM spent GROUP BY 1, 2), \
         stored AS (SELECT budget_id, window_start, tokens_used::numeric, \
             cost_used_micros::numeric FROM budget_spending), \
         expected_shares AS (SELECT budget_id, window_start, replica, sum(tokens), sum(cost) \
             FROM spent GROUP BY 1, 2, 3), \
         stored_shares AS (SELECT budget_id, window_start, replica, \
             sum(tokens_stored), sum(cost_stored_micros) FROM budget_shares GROUP BY 1, 2, 3) \
         SELECT (SELECT count(*) FROM (TABLE expected EXCEPT TABLE stored) AS a) \
              + (SELECT count(*) FROM (TABLE stored EXCEPT TABLE expected) AS b) \
              + (SELECT count(*) FROM (TABLE expected_shares EXCEPT TABLE stored_shares) AS c) \
              + (SELECT count(*) FROM (TABLE stored_shares EXCEPT TABLE expected_shares) AS d)"
    );
    sqlx::query_scalar(sqlx::AssertSqlSafe(sql))
        .fetch_one(&database.pool)
        .await
        .unwrap()
}

fn batch(gateway: &str, boot: &str, sequence: u64, events: &[Value]) -> Value {
    json!({ "replica": gateway, "boot_id": boot, "sequence": sequence, "events": events })
}

/// Two models, two principals in a team, a key, and a budget of each kind.
/// Returns events of all kinds over several days.
async fn budgets(database: &Database, control: &Control) -> Vec<Value> {
    let root = control.session("root", PASSWORD).await;
    let prices = json!({ "name": "a", "input_price_per_mtok": 1_000_000, "output_price_per_mtok": 3_000_000 });
    root.post("/admin/models", prices).await;
    root.model("b").await;
    let (_, made) = root
        .post("/admin/principals", json!({ "name": "other" }))
        .await;
    let (key, _) = root.key("k", 1).await;
    database
        .execute(
            "INSERT INTO teams (id, name) VALUES (7, 't'); UPDATE principals SET team_id = 7; \
             UPDATE model_prices SET valid_from = now() - interval '90 days'; \
             INSERT INTO budgets (principal_id, cost_total_micros, budget_window, window_start) \
                 SELECT id, 1, 'daily', '2026-01-01 07:00+00' FROM principals WHERE name <> 'root'; \
             INSERT INTO budgets (principal_id, model_id, tokens_total, budget_window, time_zone) \
                 SELECT 1, id, 1, 'monthly', 'Europe/Berlin' FROM models; \
             INSERT INTO budgets (key_id, tokens_total, budget_window, window_start) \
                 SELECT id, 1, 'weekly', now() - interval '3 days' FROM api_keys; \
             INSERT INTO budgets (team_id, tokens_total, budget_window, window_start) \
                 VALUES (7, 1, 'daily', now() + interval '1 day')",
        )
        .await;
    let now = OffsetDateTime::now_utc();
    let kinds = [
        json!({}),
        json!({ "key_id": key }),
        json!({ "principal_id": made["id"] }),
        json!({ "refusal": "rate_limit", "key_id": key }),
        json!({ "cached": true }),
        json!({ "cost_micros": 11 }),
        json!({ "usage_reported": false }),
    ];
    let mut events = Vec::new();
    for hours in 0..60 {
        let at = micros(now - Duration::hours(hours * 23));
        for (n, kind) in kinds.iter().enumerate() {
            let mut more = kind.clone();
            more["at"] = json!(at);
            more["prompt_tokens"] = json!(hours + 1);
            let model = if (n + usize::try_from(hours).unwrap()).is_multiple_of(3) {
                "b"
            } else {
                "a"
            };
            events.push(with(model, more));
        }
    }
    events
}

#[tokio::test]
async fn stored_usage_is_added_to_budgets() {
    let (database, control) = started().await;
    let second = Control::start(&database).await;
    let events = budgets(&database, &control).await;
    let count = events.len() as u64 / 2;
    let (first_half, second_half) = events.split_at(events.len() / 2);
    let batches = [
        batch("gateway-0", "boot-1", 1, first_half),
        batch("gateway-1", "boot-1", 1, second_half),
        batch("gateway-0", "boot-2", 1, second_half),
    ];
    for (n, batch) in batches.iter().enumerate() {
        let control = if n % 2 == 0 { &control } else { &second };
        assert_eq!(send(control, batch).await, reply(count, 0, false));
        assert_eq!(differences(&database).await, 0);
    }
    // Every kind of budget has usage in more than one window.
    let budgets_with_usage = "SELECT count(*) FROM (SELECT budget_id FROM budget_spending \
                  GROUP BY 1 HAVING count(*) > 1) AS b";
    let budgets = "SELECT count(*) FROM budgets";
    assert_eq!(
        database.number(budgets_with_usage).await,
        database.number(budgets).await
    );
    let starts = "SELECT count(DISTINCT (replica, boot_id)) FROM budget_shares";
    assert_eq!(database.number(starts).await, 3);
    // Both sent the same events, and each start has its own share.
    let equal = "SELECT count(*) FROM budget_shares AS a JOIN budget_shares AS b \
                 USING (budget_id, window_start, tokens_stored, cost_stored_micros) \
                 WHERE a.replica = 'gateway-1' AND b.boot_id = 'boot-2'";
    let all = "SELECT count(*) FROM budget_shares WHERE boot_id = 'boot-2'";
    assert_eq!(database.number(equal).await, database.number(all).await);
    // The share of a gateway that has not reconciled yet.
    let reported = "SELECT count(*) FROM budget_shares WHERE reported_at IS NOT NULL";
    assert_eq!(database.number(reported).await, 0);
    // Sent again to both replicas concurrently: nothing changes.
    let again = batches
        .iter()
        .flat_map(|batch| [send(&control, batch), send(&second, batch)]);
    for received in join_all(again).await {
        assert_eq!(received, reply(0, 0, true));
    }
    assert_eq!(differences(&database).await, 0);
}

#[tokio::test]
async fn concurrent_batches_are_added_to_the_same_budgets() {
    let (database, control) = started().await;
    let second = Control::start(&database).await;
    let events = budgets(&database, &control).await;
    let count = events.len() as u64;
    let mut backwards = events.clone();
    backwards.reverse();
    let gateways = (0..8).map(|gateway| {
        let control = if gateway % 2 == 0 { &control } else { &second };
        let events = if gateway % 3 == 0 {
            &events
        } else {
            &backwards
        };
        async move {
            for sequence in 1..=6 {
                let batch = batch(&format!("gateway-{gateway}"), "boot", sequence, events);
                assert_eq!(send(control, &batch).await, reply(count, 0, false));
            }
        }
    });
    join_all(gateways).await;
    assert_eq!(differences(&database).await, 0);
    assert_eq!(
        database.number("SELECT count(*) FROM usage_events").await,
        i64::try_from(count * 8 * 6).unwrap()
    );
}

#[tokio::test]
async fn spending_saturates() {
    let (database, control) = started().await;
    let root = control.session("root", PASSWORD).await;
    root.model("m").await;
    database
        .execute("INSERT INTO budgets (principal_id, tokens_total, budget_window) VALUES (1, 1, 'daily')")
        .await;
    let most = json!({ "prompt_tokens": u64::MAX, "completion_tokens": u64::MAX, "cost_micros": u64::MAX });
    for sequence in 1..=2 {
        let batch = batch(
            "g",
            "b",
            sequence,
            &[with("m", most.clone()), with("m", most.clone())],
        );
        assert_eq!(send(&control, &batch).await, reply(2, 0, false));
    }
    for table in [
        "SELECT least(tokens_used, cost_used_micros) FROM budget_spending",
        "SELECT least(tokens_stored, cost_stored_micros) FROM budget_shares",
    ] {
        assert_eq!(database.number(table).await, i64::MAX);
    }
}

#[tokio::test]
async fn concurrently_deleted_budgets_do_not_affect_batches() {
    let (database, control) = started().await;
    let events = budgets(&database, &control).await;
    let count = events.len() as u64;
    let sends = async {
        for sequence in 1..=10 {
            let batch = batch("g", "b", sequence, &events);
            assert_eq!(send(&control, &batch).await, reply(count, 0, false));
        }
    };
    let deletes = async {
        for _ in 0..3 {
            database
                .execute("DELETE FROM budgets WHERE id = (SELECT min(id) FROM budgets)")
                .await;
        }
    };
    tokio::join!(sends, deletes);
    assert_eq!(
        database.number("SELECT count(*) FROM usage_events").await,
        i64::try_from(count * 10).unwrap()
    );
    assert_eq!(differences(&database).await, 0);
}
