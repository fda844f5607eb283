use serde_json::{Value, json};

use crate::accounting::{batch, event, reply, send};
use crate::harness::{Control, PASSWORD, eventually, started};
use crate::prices::with;

async fn metrics(control: &Control) -> String {
    control
        .get("/metrics")
        .send()
        .await
        .unwrap()
        .text()
        .await
        .unwrap()
}

#[tokio::test]
async fn a_bad_event_is_rejected_and_the_others_are_stored() {
    let (database, control) = started().await;
    let root = control.session("root", PASSWORD).await;
    root.model("m").await;
    database
        .execute(
            "ALTER TABLE usage_events ADD CONSTRAINT unlucky CHECK (prompt_tokens <> 13); \
             INSERT INTO budgets (principal_id, tokens_total, budget_window) VALUES (1, 9, 'daily')",
        )
        .await;
    let canary = json!({ "note": "canary-4711" });
    let events = [
        event("m"),
        // These cannot be read.
        with(
            "m",
            json!({ "prompt_tokens": "canary-4711", "metadata": canary }),
        ),
        json!("canary-4711"),
        // Readable, but not storable.
        with(
            "m",
            json!({ "prompt_tokens": 13, "request_id": "r-13", "metadata": canary }),
        ),
        // Stored without metadata.
        with("m", json!({ "metadata": { "nested": canary } })),
        // Dropped, not rejected: the model is unknown.
        event("never"),
        event("m"),
    ];
    assert_eq!(send(&control, &batch(1, &events)).await, reply(3, 4, false));
    assert_eq!(send(&control, &batch(1, &events)).await, reply(0, 0, true));
    let stored = database
        .number("SELECT count(*) FROM usage_events WHERE metadata IS NULL")
        .await;
    assert_eq!(stored, 3);
    let spent = "SELECT sum(tokens_used)::bigint FROM budget_spending";
    assert_eq!(database.number(spent).await, 3 * 1500);
    let rejected = "SELECT jsonb_agg(jsonb_build_array(reason, event -> 'request_id', \
                  jsonb_typeof(event)) ORDER BY id) FROM rejected_usage \
                  WHERE replica = 'gateway-0' AND boot_id = 'boot-1' AND sequence = 1";
    let rejected: Value = sqlx::query_scalar(rejected)
        .fetch_one(&database.pool)
        .await
        .unwrap();
    assert_eq!(
        rejected,
        json!([
            ["prompt_tokens cannot be read", null, "object"],
            ["the event is not an object", null, "null"],
            ["invalid value (unlucky)", "r-13", "object"],
        ])
    );
    let leaked = "SELECT count(*) FROM rejected_usage WHERE reason || event::text LIKE '%canary%'";
    assert_eq!(database.number(leaked).await, 0);
    assert!(!control.log().contains("canary-4711"));
    let metrics = metrics(&control).await;
    for line in [
        "fastllm_control_usage_events_total{outcome=\"accepted\"} 3\n",
        "fastllm_control_usage_events_total{outcome=\"dropped\"} 1\n",
        "fastllm_control_usage_events_total{outcome=\"rejected\"} 3\n",
        "fastllm_control_usage_metadata_dropped_total 1\n",
    ] {
        assert!(metrics.contains(line), "{line} {metrics}");
    }
}

#[tokio::test]
async fn rejected_events_are_bounded_and_expire() {
    let (database, control) = started().await;
    let root = control.session("root", PASSWORD).await;
    root.model("m").await;
    database
        .execute(
            "INSERT INTO rejected_usage (received_at, replica, boot_id, sequence, reason, event) \
             SELECT now() - interval '31 days' * (n % 2), 'r', 'b', 1, 'r', 'null' \
               FROM generate_series(1, 10000) AS n",
        )
        .await;
    let bad = batch(1, &[json!({}), event("m")]);
    assert_eq!(send(&control, &bad).await, reply(1, 1, false));
    let count = "SELECT count(*) FROM rejected_usage";
    assert_eq!(database.number(count).await, 10_000);
    // A control plane deletes expired rows at start.
    let _second = Control::start(&database).await;
    eventually("only a bounded number of recent events is left", async || {
        let old =
            "SELECT count(*) FROM rejected_usage WHERE received_at < now() - interval '30 days'";
        let left = (database.number(old).await, database.number(count).await);
        (left == (0, 500)).then_some(())
    })
    .await;
    assert_eq!(
        send(&control, &batch(2, &[json!({})])).await,
        reply(0, 1, false)
    );
    assert_eq!(database.number(count).await, 501);
}

#[tokio::test]
async fn a_batch_with_the_maximum_of_metadata_is_stored() {
    let (database, control) = started().await;
    let root = control.session("root", PASSWORD).await;
    root.model("m").await;
    // Six bytes for each character, as JSON escapes it.
    let text = "\u{1}".repeat(512);
    let metadata: serde_json::Map<String, Value> = (0..16)
        .map(|n| (format!("{n:0>64}"), json!(text)))
        .collect();
    let full = with("m", json!({ "metadata": metadata }));
    let largest = batch(1, &vec![full; 500]);
    assert!(largest.to_string().len() > 25_000_000);
    assert_eq!(send(&control, &largest).await, reply(500, 0, false));
    let kept = "SELECT count(*) FROM usage_events WHERE metadata IS NOT NULL";
    assert_eq!(database.number(kept).await, 500);
}
