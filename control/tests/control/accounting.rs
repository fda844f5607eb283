use reqwest::Method;
use serde_json::{Value, json};

use crate::harness::{Control, PASSWORD, started, status_and_json};

pub(crate) async fn send(control: &Control, batch: &Value) -> (u16, Value) {
    status_and_json(control.as_gateway(Method::POST, "/usage").json(batch)).await
}

pub(crate) fn event(model: &str) -> Value {
    json!({
        "principal_id": 1,
        "model": model,
        "prompt_tokens": 1000,
        "completion_tokens": 500,
        "at": time::OffsetDateTime::now_utc().unix_timestamp() * 1_000_000,
        "duration_ms": 120,
        "status": 200,
    })
}

pub(crate) fn batch(sequence: u64, events: &[Value]) -> Value {
    json!({ "replica": "gateway-0", "boot_id": "boot-1", "sequence": sequence, "events": events })
}

pub(crate) fn reply(accepted: u64, dropped: u64, duplicate: bool) -> (u16, Value) {
    (
        200,
        json!({ "accepted": accepted, "dropped": dropped, "duplicate": duplicate }),
    )
}

#[tokio::test]
async fn a_repeated_batch_is_stored_once() {
    let (database, control) = started().await;
    let second = Control::start(&database).await;
    let root = control.session("root", PASSWORD).await;
    root.model("m").await;
    let first = batch(1, &[event("m"), event("m")]);
    assert_eq!(send(&control, &first).await, reply(2, 0, false));
    assert_eq!(send(&second, &first).await, reply(0, 0, true));
    // Concurrently, at both replicas.
    let next = batch(2, &[event("m")]);
    let sends = (0..8).map(|n| send(if n % 2 == 0 { &control } else { &second }, &next));
    let replies = futures_util::future::join_all(sends).await;
    assert_eq!(
        replies
            .iter()
            .filter(|received| **received == reply(1, 0, false))
            .count(),
        1
    );
    assert_eq!(
        replies
            .iter()
            .filter(|received| **received == reply(0, 0, true))
            .count(),
        7
    );
    // An older batch is a duplicate, too; another start has its own sequence.
    assert_eq!(send(&control, &first).await, reply(0, 0, true));
    let mut restarted = batch(1, &[event("m")]);
    restarted["boot_id"] = json!("boot-2");
    assert_eq!(send(&control, &restarted).await, reply(1, 0, false));
    assert_eq!(
        database.number("SELECT count(*) FROM usage_events").await,
        4
    );
}

#[tokio::test]
async fn cost_is_the_reported_one_or_computed_from_prices_or_unknown() {
    let (_database, control) = started().await;
    let root = control.session("root", PASSWORD).await;
    let prices = json!({ "name": "priced", "input_price_per_mtok": 3_000_000, "output_price_per_mtok": 15_000_001 });
    root.post("/admin/models", prices).await;
    root.model("unpriced").await;
    let with = |model: &str, more: Value| {
        let mut event = event(model);
        event
            .as_object_mut()
            .unwrap()
            .extend(more.as_object().unwrap().clone());
        event
    };
    let most = json!({ "prompt_tokens": u64::MAX, "completion_tokens": u64::MAX });
    let unknown = json!({ "usage_reported": false, "prompt_tokens": 0, "completion_tokens": 0 });
    let estimated = json!({ "usage_reported": false, "estimated": true });
    let refused = json!({ "refusal": "rate_limit", "status": 429, "requested_model": "alias" });
    let events = [
        with("priced", json!({})),
        with("priced", json!({ "cost_micros": 7 })),
        with("priced", unknown),
        with("unpriced", json!({})),
        with("unpriced", refused),
        with("priced", json!({ "refusal": "of_a_later_release" })),
        with("priced", most),
        with("priced", estimated.clone()),
        with("unpriced", estimated),
    ];
    assert_eq!(send(&control, &batch(1, &events)).await, reply(9, 0, false));
    let rows = root.get("/admin/usage/events").await;
    let costs: Vec<Value> = rows
        .as_array()
        .unwrap()
        .iter()
        .rev()
        .map(|row| row["cost_micros"].clone())
        .collect();
    // (1000 × 3 + 500 × 15.000001) micro-units, rounded.
    assert_eq!(
        costs,
        [
            json!(10_500),
            json!(7),
            Value::Null,
            Value::Null,
            json!(0),
            json!(0),
            json!(i64::MAX),
            json!(10_500),
            Value::Null,
        ]
    );
    let refused = &rows[4];
    let names = ["refusal", "requested_model", "principal", "replica"];
    let values = names.map(|name| refused[name].as_str().unwrap());
    assert_eq!(values, ["rate_limit", "alias", "bootstrap", "gateway-0"]);
    let only = "/admin/usage/events?model=unpriced&principal_id=1&limit=1";
    assert_eq!(root.get(only).await, json!([rows[0]]));
    let nobody = "/admin/usage/events?principal_id=2";
    assert_eq!(root.get(nobody).await, json!([]));
}

#[tokio::test]
async fn a_row_has_exactly_the_reported_values() {
    let (_database, control) = started().await;
    let root = control.session("root", PASSWORD).await;
    root.model("m").await;
    let details = json!({
        "endpoint": "/chat/completions",
        "request_id": "boot-1-7f",
        "attempts": 3,
        "cached_tokens": 640,
        "reasoning_tokens": 120,
        "estimated": true,
        "usage_reported": false,
    });
    let mut full = event("m");
    let members = full.as_object_mut().unwrap();
    members.extend(details.as_object().unwrap().clone());
    // Values that cannot be stored as text do not affect the batch.
    let mut odd = event("m");
    odd["request_id"] = json!("a\u{0}b");
    odd["endpoint"] = json!("");
    // The first event is of the previous release.
    let events = [event("m"), odd, full];
    assert_eq!(send(&control, &batch(1, &events)).await, reply(3, 0, false));
    let rows = root.get("/admin/usage/events").await;
    for (name, value) in details.as_object().unwrap() {
        assert_eq!(rows[0][name], *value, "{name}");
    }
    for row in [&rows[1], &rows[2]] {
        for name in [
            "endpoint",
            "request_id",
            "attempts",
            "cached_tokens",
            "reasoning_tokens",
        ] {
            assert_eq!(row[name], Value::Null, "{name}");
        }
        assert_eq!(
            (&row["estimated"], &row["usage_reported"]),
            (&json!(false), &json!(true))
        );
    }
}

#[tokio::test]
async fn usage_of_deleted_objects_is_stored() {
    let (database, control) = started().await;
    let root = control.session("root", PASSWORD).await;
    let model = root.model("m").await;
    let (_, made) = root
        .post("/admin/principals", json!({ "name": "gone" }))
        .await;
    let mut theirs = event("m");
    theirs["principal_id"] = made["id"].clone();
    assert_eq!(
        send(&control, &batch(1, &[theirs.clone()])).await,
        reply(1, 0, false)
    );
    assert_eq!(
        root.delete(&format!("/admin/principals/{}", made["id"]))
            .await
            .0,
        204
    );
    assert_eq!(root.delete(&format!("/admin/models/{model}")).await.0, 204);
    // Late usage is stored; objects that never existed are dropped.
    let mut stranger = event("m");
    stranger["principal_id"] = json!(999);
    let events = vec![theirs, stranger, event("never")];
    assert_eq!(send(&control, &batch(2, &events)).await, reply(1, 2, false));
    let rows = root.get("/admin/usage/events").await;
    assert_eq!(rows.as_array().unwrap().len(), 2);
    for row in rows.as_array().unwrap() {
        assert_eq!(
            (&row["principal"], &row["model"]),
            (&json!("gone"), &json!("m"))
        );
    }
    assert_eq!(
        database
            .number("SELECT count(*) FROM audit_events WHERE actor_name = 'root'")
            .await,
        4
    );
}

#[tokio::test]
async fn keys_show_the_time_of_their_last_use() {
    let (_database, control) = started().await;
    let root = control.session("root", PASSWORD).await;
    root.model("m").await;
    let (id, _) = root.key("k", 1).await;
    let path = format!("/admin/keys/{id}");
    assert_eq!(root.get(&path).await["last_used_at"], Value::Null);
    let version = root.get("/admin/config").await["snapshot_version"].clone();
    let mut used = event("m");
    used["key_id"] = json!(id);
    send(&control, &batch(1, &[used])).await;
    assert!(root.get(&path).await["last_used_at"].is_string());
    // Use does not change the configuration.
    assert_eq!(root.get("/admin/config").await["snapshot_version"], version);
}

#[tokio::test]
async fn invalid_batches_are_permanently_rejected() {
    let (_database, control) = started().await;
    let root = control.session("root", PASSWORD).await;
    root.model("m").await;
    let too_many = batch(1, &vec![event("m"); 501]);
    assert_eq!(send(&control, &too_many).await.0, 413);
    assert_eq!(send(&control, &json!({ "events": [] })).await.0, 400);
    assert_eq!(send(&control, &batch(0, &[])).await.0, 400);
    let mut nameless = batch(1, &[]);
    nameless["replica"] = json!("");
    assert_eq!(send(&control, &nameless).await.0, 400);
    // A newer gateway sends additional members.
    let mut newer = event("m");
    newer["of_a_later_release"] = json!(5);
    let mut newer = batch(1, &[newer]);
    newer["compression"] = json!("none");
    assert_eq!(send(&control, &newer).await, reply(1, 0, false));
    // The largest allowed batch.
    assert_eq!(
        send(&control, &batch(2, &vec![event("m"); 500])).await,
        reply(500, 0, false)
    );
}

#[tokio::test]
async fn every_replica_lists_all_gateways() {
    let (database, first) = started().await;
    let second = Control::start(&database).await;
    let report = |replica: &str, uptime: u64| {
        json!({
            "replica": replica,
            "boot_id": "b",
            "version": "0.1.0",
            "snapshot_version": 4,
            "uptime_seconds": uptime,
            "backends": [{
                "id": 1, "api_base": "http://h/v1", "model": "m", "healthy": true,
                "inflight": 2, "requests_total": 30, "errors_total": 1,
            }],
            "process": { "requests_ok": 29 },
            "of_a_later_release": true,
        })
    };
    let send_report = async |control: &Control, report: &Value| {
        status_and_json(
            control
                .as_gateway(Method::POST, "/health-report")
                .json(report),
        )
        .await
        .0
    };
    assert_eq!(send_report(&first, &report("gateway-0", 1)).await, 204);
    assert_eq!(send_report(&second, &report("gateway-1", 1)).await, 204);
    assert_eq!(send_report(&second, &report("gateway-0", 11)).await, 204);
    assert_eq!(send_report(&second, &json!({ "replica": "x" })).await, 400);
    let root = first.session("root", PASSWORD).await;
    let fleet = root.get("/admin/fleet").await;
    assert_eq!(fleet.as_array().unwrap().len(), 2);
    assert_eq!(
        (&fleet[0]["replica"], &fleet[0]["uptime_seconds"]),
        (&json!("gateway-0"), &json!(11))
    );
    assert_eq!(fleet[1]["backends"][0]["requests_total"], 30);
    assert_eq!(fleet[1]["process"]["requests_ok"], 29);
    database
        .execute("UPDATE gateway_reports SET received_at = now() - interval '31 s' WHERE replica = 'gateway-0'")
        .await;
    let fleet = root.get("/admin/fleet").await;
    assert_eq!(fleet.as_array().unwrap().len(), 1);
    assert_eq!(fleet[0]["replica"], "gateway-1");
}
