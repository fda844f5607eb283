use fastllm_contract::Snapshot;
use reqwest::Method;
use serde_json::{Value, json};
use time::{Duration, OffsetDateTime};

use crate::accounting::{batch, event, reply, send};
use crate::harness::{Control, PASSWORD, Session, started};

const PRICES: [&str; 10] = [
    "input_price_per_mtok",
    "output_price_per_mtok",
    "cached_input_price_per_mtok",
    "cache_write_price_per_mtok",
    "reasoning_price_per_mtok",
    "audio_input_price_per_mtok",
    "audio_output_price_per_mtok",
    "image_price",
    "input_price_per_mchar",
    "audio_price_per_minute",
];

/// An event with additional members.
pub(crate) fn with(model: &str, more: Value) -> Value {
    let mut event = event(model);
    let Value::Object(more) = more else {
        panic!("{more} has no members");
    };
    event.as_object_mut().unwrap().extend(more);
    event
}

/// An event without token counts.
fn uncounted(more: Value) -> Value {
    let mut event = with("m", more);
    event["usage_reported"] = json!(false);
    event["prompt_tokens"] = json!(0);
    event["completion_tokens"] = json!(0);
    event
}

/// A time in the format of gateways.
pub(crate) fn micros(at: OffsetDateTime) -> i64 {
    i64::try_from(at.unix_timestamp_nanos() / 1000).unwrap()
}

fn hours_ago(hours: i64) -> i64 {
    micros(OffsetDateTime::now_utc() - Duration::hours(hours))
}

/// One member of every stored event, in the order of the batches.
async fn stored_values(root: &Session<'_>, member: &str) -> Vec<Value> {
    let rows = root.get("/admin/usage/events").await;
    let rows = rows.as_array().unwrap().iter().rev();
    rows.map(|row| row[member].clone()).collect()
}

async fn priced(root: &Session<'_>, prices: Value) -> i64 {
    let mut body = prices;
    body["name"] = json!("m");
    let (status, made) = root.post("/admin/models", body).await;
    assert_eq!(status, 201, "{made}");
    made["id"].as_i64().unwrap()
}

#[tokio::test]
async fn models_have_a_price_for_each_class() {
    let (_database, control) = started().await;
    let root = control.session("root", PASSWORD).await;
    let mut body = json!({ "name": "m" });
    for (n, name) in PRICES.iter().enumerate() {
        body[name] = json!(n);
    }
    let id = priced(&root, body.clone()).await;
    let path = format!("/admin/models/{id}");
    let shown = root.get(&path).await;
    for name in PRICES {
        assert_eq!(shown[name], body[name], "{name}");
    }
    for name in PRICES {
        // `null` clears; absent fields are kept.
        assert_eq!(root.patch(&path, json!({ name: null })).await.0, 204);
        body[name] = Value::Null;
        let shown = root.get(&path).await;
        for other in PRICES {
            assert_eq!(shown[other], body[other], "{name}: {other}");
        }
        let (status, refused) = root.patch(&path, json!({ name: -1 })).await;
        assert_eq!((status, &refused["field"]), (400, &json!(name)));
        let wrong = json!({ "name": "other", name: -1 });
        assert_eq!(root.post("/admin/models", wrong).await.0, 400);
    }
}

#[tokio::test]
async fn cache_ttl_is_published() {
    let (_database, control) = started().await;
    let root = control.session("root", PASSWORD).await;
    let published = async |control: &Control| {
        let response = control.as_gateway(Method::GET, "/snapshot").send();
        let snapshot: Snapshot = response.await.unwrap().json().await.unwrap();
        snapshot.models.items.unwrap()[0].cache_ttl_seconds
    };
    let id = priced(&root, json!({ "cache_ttl_seconds": 60 })).await;
    assert_eq!(published(&control).await, Some(60));
    for (change, seen) in [(json!(0), None), (json!(5), Some(5)), (Value::Null, None)] {
        let change = json!({ "cache_ttl_seconds": change });
        assert_eq!(
            root.patch(&format!("/admin/models/{id}"), change).await.0,
            204
        );
        assert_eq!(published(&control).await, seen);
    }
}

const BY_CLASS: &str = r#"{
    "input_price_per_mtok": 1000000, "output_price_per_mtok": 4000000,
    "cached_input_price_per_mtok": 100000, "reasoning_price_per_mtok": 8000000,
    "image_price": 40000, "audio_price_per_minute": 6000
}"#;

#[tokio::test]
async fn each_class_is_charged_at_its_price() {
    let (_database, control) = started().await;
    let root = control.session("root", PASSWORD).await;
    priced(&root, serde_json::from_str(BY_CLASS).unwrap()).await;
    let events = [
        with(
            "m",
            json!({ "cached_tokens": 600, "reasoning_tokens": 100 }),
        ),
        uncounted(json!({ "images": 2 })),
        uncounted(json!({ "audio_ms": 90_000 })),
        uncounted(json!({ "input_characters": 5 })),
    ];
    assert_eq!(send(&control, &batch(1, &events)).await, reply(4, 0, false));
    let costs = [
        // 400 × 1 + 600 × 0.1 + 400 × 4 + 100 × 8
        json!(2860),
        json!(80_000),
        json!(9000),
        Value::Null,
    ];
    assert_eq!(stored_values(&root, "cost_micros").await, costs);
}

#[tokio::test]
async fn cached_responses_save_and_rejected_requests_cost_nothing() {
    let (_database, control) = started().await;
    let root = control.session("root", PASSWORD).await;
    priced(&root, serde_json::from_str(BY_CLASS).unwrap()).await;
    root.model("unpriced").await;
    let events = [
        with("m", json!({ "cached": true })),
        with("m", json!({ "cached": true, "cost_micros": 9 })),
        with("unpriced", json!({ "cached": true })),
        with("m", json!({ "cached": true, "refusal": "budget" })),
        with("unpriced", json!({ "refusal": "budget" })),
        with("unpriced", json!({})),
        uncounted(json!({})),
    ];
    assert_eq!(send(&control, &batch(1, &events)).await, reply(7, 0, false));
    let mut costs = vec![json!(0); 7];
    (costs[5], costs[6]) = (Value::Null, Value::Null);
    assert_eq!(stored_values(&root, "cost_micros").await, costs);
    let mut saved = vec![Value::Null; 7];
    (saved[0], saved[1]) = (json!(3000), json!(9));
    assert_eq!(stored_values(&root, "saved_cost_micros").await, saved);
    let metrics = control.get("/metrics").send().await.unwrap();
    let metrics = metrics.text().await.unwrap();
    let unpriced = "fastllm_control_usage_unpriced_total 2\n";
    assert!(metrics.contains(unpriced), "{metrics}");
}

#[tokio::test]
async fn late_batches_are_charged_at_the_prices_of_their_time() {
    let (database, control) = started().await;
    let root = control.session("root", PASSWORD).await;
    let id = priced(
        &root,
        json!({ "input_price_per_mtok": 1_000_000, "output_price_per_mtok": 0 }),
    )
    .await;
    database
        .execute("UPDATE model_prices SET valid_from = now() - interval '4 h'")
        .await;
    let path = format!("/admin/models/{id}");
    let higher = json!({ "input_price_per_mtok": 2_000_000 });
    assert_eq!(root.patch(&path, higher).await.0, 204);
    database
        .execute(
            "UPDATE model_prices SET valid_from = now() - interval '2 h' \
              WHERE valid_from > now() - interval '1 h'",
        )
        .await;
    assert_eq!(
        root.patch(&path, json!({ "input_price_per_mtok": null }))
            .await
            .0,
        204
    );
    database
        .execute(
            "UPDATE model_prices SET valid_from = now() - interval '30 min' \
              WHERE valid_from > now() - interval '1 h'",
        )
        .await;
    // Other changes do not affect prices.
    assert_eq!(
        root.patch(&path, json!({ "description": "d" })).await.0,
        204
    );
    let ages = database.number("SELECT count(*) FROM model_prices").await;
    assert_eq!(ages, 3);
    let at = |hours| with("m", json!({ "at": hours_ago(hours) }));
    // Before the model's creation, by the clock of a gateway that is behind.
    let events = [at(5), at(3), at(1), at(0)];
    let stored = send(&control, &batch(1, &events)).await;
    assert_eq!(stored, reply(4, 0, false));
    let costs = [json!(1000), json!(1000), json!(2000), Value::Null];
    assert_eq!(stored_values(&root, "cost_micros").await, costs);
    // New prices and the model's deletion do not affect stored events.
    assert_eq!(root.delete(&path).await.0, 204);
    assert_eq!(stored_values(&root, "cost_micros").await, costs);
    // Even later events are charged at their price.
    let late = send(&control, &batch(2, &[at(1)])).await;
    assert_eq!(late, reply(1, 0, false));
    assert_eq!(stored_values(&root, "cost_micros").await[4], json!(2000));
}

#[tokio::test]
async fn reused_names_are_charged_as_the_model_of_that_time() {
    let (database, control) = started().await;
    let root = control.session("root", PASSWORD).await;
    let first = priced(
        &root,
        json!({ "input_price_per_mtok": 1_000_000, "output_price_per_mtok": 0 }),
    )
    .await;
    assert_eq!(root.delete(&format!("/admin/models/{first}")).await.0, 204);
    database
        .execute(
            "UPDATE model_prices SET valid_from = now() - interval '9 h'; \
             UPDATE former_models SET deleted_at = now() - interval '2 h'",
        )
        .await;
    let second = priced(
        &root,
        json!({ "input_price_per_mtok": 7_000_000, "output_price_per_mtok": 0 }),
    )
    .await;
    let at = |hours| with("m", json!({ "at": hours_ago(hours) }));
    let stored = send(&control, &batch(1, &[at(3), at(0)])).await;
    assert_eq!(stored, reply(2, 0, false));
    assert_eq!(
        stored_values(&root, "cost_micros").await,
        [json!(1000), json!(7000)]
    );
    let of_first = database
        .number("SELECT model_id FROM usage_events ORDER BY id LIMIT 1")
        .await;
    let of_second = database
        .number("SELECT model_id FROM usage_events ORDER BY id DESC LIMIT 1")
        .await;
    assert_eq!((of_first, of_second), (first, second));
}
