use fastllm_contract::{Snapshot, VirtualModel};
use reqwest::Method;
use serde_json::{Value, json};

use crate::harness::{Control, PASSWORD, Session, started, status_and_json};

async fn snapshot(control: &Control) -> Value {
    status_and_json(control.as_gateway(Method::GET, "/snapshot"))
        .await
        .1
}

/// As gateways parse them.
async fn published(control: &Control) -> Vec<VirtualModel> {
    let snapshot: Snapshot = serde_json::from_value(snapshot(control).await).unwrap();
    snapshot.virtual_models.items.unwrap().to_vec()
}

async fn virtual_model(root: &Session<'_>, name: &str) -> i64 {
    let (status, made) = root
        .post("/admin/virtual-models", json!({ "name": name }))
        .await;
    assert_eq!(status, 201, "{made}");
    made["id"].as_i64().unwrap()
}

async fn rule(root: &Session<'_>, virtual_model: i64, mut body: Value, target: i64) -> i64 {
    body["targets"] = json!([{ "model_id": target }]);
    let path = format!("/admin/virtual-models/{virtual_model}/rules");
    let (status, made) = root.post(&path, body).await;
    assert_eq!(status, 201, "{made}");
    made["id"].as_i64().unwrap()
}

/// IDs and positions in the order of evaluation.
async fn order(root: &Session<'_>, virtual_model: i64) -> Vec<(i64, i64)> {
    let path = format!("/admin/virtual-models/{virtual_model}");
    let view = root.get(&path).await;
    let rules = view["rules"].as_array().unwrap().iter();
    let number = |value: &Value| value.as_i64().unwrap();
    rules
        .map(|rule| (number(&rule["id"]), number(&rule["position"])))
        .collect()
}

fn every_condition() -> Value {
    json!({
        "principals": [1],
        "roles": ["inference", "admin"],
        "min_prompt_tokens": 10,
        "max_max_tokens": 500,
        "stream": true,
        "headers": { "X-Tier": "batch" },
        "min_budget_used_percent": 80,
        "max_inflight_per_backend": 2,
        "after": "22:00",
        "before": "06:00",
        "days": [5, 1],
        "utc_offset_minutes": 120,
    })
}

#[tokio::test]
async fn virtual_models_are_published_completely() {
    let (database, control) = started().await;
    let root = control.session("root", PASSWORD).await;
    assert!(
        snapshot(&control).await.get("virtual_models").is_none(),
        "without any, the snapshot is that of a release without them"
    );
    let (local, hosted) = (root.model("local").await, root.model("hosted").await);
    let body = json!({
        "name": "auto",
        "split_by": "caller",
        "default_targets": [{ "model_id": local }, { "model_id": hosted, "weight": 1 }],
    });
    let (status, made) = root.post("/admin/virtual-models", body).await;
    assert_eq!(status, 201, "{made}");
    let id = made["id"].as_i64().unwrap();
    let first = rule(&root, id, every_condition(), hosted).await;
    let expected = json!([{
        "name": "auto",
        "split_by": "caller",
        "rules": [{
            "caller": { "principals": [1], "roles": ["admin", "inference"] },
            "shape": { "min_prompt_tokens": 10, "max_max_tokens": 500, "stream": true },
            "headers": { "x-tier": "batch" },
            "min_budget_used_percent": 80,
            "max_inflight_per_backend": 2,
            "after_minute": 22 * 60,
            "before_minute": 6 * 60,
            "days": [1, 5],
            "utc_offset_minutes": 120,
            "targets": [{ "model": "hosted", "weight": 100 }],
        }],
        "default_targets": [
            { "model": "local", "weight": 100 },
            { "model": "hosted", "weight": 1 },
        ],
    }]);
    assert_eq!(
        snapshot(&control).await["virtual_models"]["items"],
        expected
    );
    let view = root.get(&format!("/admin/rules/{first}")).await;
    assert_eq!(
        (&view["after"], &view["roles"], &view["targets"][0]["model"]),
        (
            &json!("22:00"),
            &json!(["admin", "inference"]),
            &json!("hosted")
        )
    );
    let list = root.get("/admin/virtual-models").await;
    assert_eq!(list[0]["rules"][0], view);

    // Another replica publishes the same for the same rows.
    let second = Control::start(&database).await;
    assert_eq!(snapshot(&second).await, snapshot(&control).await);
}

#[tokio::test]
async fn virtual_models_can_be_changed_and_deleted() {
    let (_database, control) = started().await;
    let root = control.session("root", PASSWORD).await;
    let target = root.model("local").await;
    let id = virtual_model(&root, "a").await;
    rule(&root, id, json!({}), target).await;
    let path = format!("/admin/virtual-models/{id}");
    let change = json!({ "name": "b", "description": "d", "split_by": "prompt" });
    assert_eq!(root.patch(&path, change).await.0, 204);
    assert_eq!(published(&control).await[0].name.as_str(), "b");
    assert_eq!(root.delete(&path).await.0, 204);
    assert!(published(&control).await.is_empty());
    assert_eq!(root.delete(&path).await.0, 404);
    assert_eq!(root.get("/admin/models").await[0]["name"], "local");
}

#[tokio::test]
async fn virtual_models_and_models_share_one_name_space() {
    let (_database, control) = started().await;
    let root = control.session("root", PASSWORD).await;
    root.model("m").await;
    let id = virtual_model(&root, "v").await;
    for (path, name) in [
        ("/admin/virtual-models", "m"),
        ("/admin/virtual-models", "v"),
        ("/admin/models", "v"),
    ] {
        let (status, body) = root.post(path, json!({ "name": name })).await;
        assert_eq!((status, &body["field"]), (409, &json!("name")), "{name}");
    }
    let path = format!("/admin/virtual-models/{id}");
    assert_eq!(root.patch(&path, json!({ "name": "m" })).await.0, 409);
    assert_eq!(root.patch(&path, json!({ "name": "v" })).await.0, 204);
    // Released names can be reused.
    assert_eq!(root.patch(&path, json!({ "name": "w" })).await.0, 204);
    root.model("v").await;
}

#[tokio::test]
async fn rules_can_be_edited_and_reordered() {
    let (_database, control) = started().await;
    let root = control.session("root", PASSWORD).await;
    let target = root.model("m").await;
    let id = virtual_model(&root, "v").await;
    let condition = json!({ "stream": true });
    let mut rules = Vec::new();
    for _ in 0..3 {
        rules.push(rule(&root, id, condition.clone(), target).await);
    }
    let [a, b, c] = rules[..] else { unreachable!() };
    assert_eq!(order(&root, id).await, [(a, 0), (b, 1), (c, 2)]);
    let taken = json!({ "position": 1, "stream": true, "targets": [{ "model_id": target }] });
    let path = format!("/admin/virtual-models/{id}/rules");
    let (status, body) = root.post(&path, taken).await;
    assert_eq!((status, &body["field"]), (409, &json!("position")));

    // To the front: the others move.
    let at = |rule: i64| format!("/admin/rules/{rule}");
    assert_eq!(root.patch(&at(c), json!({ "position": 0 })).await.0, 204);
    assert_eq!(order(&root, id).await, [(c, 0), (a, 1), (b, 2)]);
    // To a free position.
    assert_eq!(root.patch(&at(c), json!({ "position": 9 })).await.0, 204);
    assert_eq!(order(&root, id).await, [(a, 1), (b, 2), (c, 9)]);
    // New rules are placed after the last one, even after deletions.
    assert_eq!(root.delete(&at(b)).await.0, 204);
    let d = rule(&root, id, condition, target).await;
    assert_eq!(order(&root, id).await, [(a, 1), (c, 9), (d, 10)]);

    let path = format!("{path}/order");
    let new_order = json!({ "rules": [d, a, c] });
    assert_eq!(root.send(Method::PUT, &path, new_order).await.0, 204);
    assert_eq!(order(&root, id).await, [(d, 0), (a, 1), (c, 2)]);
    for wrong in [json!([d, a]), json!([d, a, a]), json!([d, a, b])] {
        let body = json!({ "rules": wrong });
        let (status, body) = root.send(Method::PUT, &path, body).await;
        assert_eq!((status, &body["field"]), (400, &json!("rules")));
    }

    let other = root.model("n").await;
    let change =
        json!({ "stream": null, "min_prompt_tokens": 5, "targets": [{ "model_id": other }] });
    assert_eq!(root.patch(&at(d), change).await.0, 204);
    let view = root.get(&at(d)).await;
    assert_eq!(
        (
            &view["stream"],
            &view["min_prompt_tokens"],
            &view["targets"][0]["model"]
        ),
        (&Value::Null, &json!(5), &json!("n"))
    );
    // Checked together with the stored conditions.
    let (status, body) = root.patch(&at(d), json!({ "max_prompt_tokens": 4 })).await;
    assert_eq!((status, &body["field"]), (400, &json!("min_prompt_tokens")));
    let log = root.get("/admin/audit?limit=1").await;
    assert_eq!(log[0]["detail"]["operation"], "rule.update");
    assert_eq!(
        log[0]["detail"]["changes"]["min_prompt_tokens"],
        json!({ "before": null, "after": 5 })
    );
}

#[tokio::test]
async fn unreachable_rules_are_rejected() {
    let (_database, control) = started().await;
    let root = control.session("root", PASSWORD).await;
    let target = root.model("m").await;
    let id = virtual_model(&root, "v").await;
    let some = rule(&root, id, json!({ "stream": true }), target).await;
    let all = rule(&root, id, json!({ "utc_offset_minutes": 60 }), target).await;
    let after = json!({ "stream": false, "targets": [{ "model_id": target }] });
    let path = format!("/admin/virtual-models/{id}/rules");
    let (status, body) = root.post(&path, after.clone()).await;
    assert_eq!(
        (status, &body["field"]),
        (400, &json!("position")),
        "{body}"
    );
    let at = format!("/admin/rules/{some}");
    assert_eq!(root.patch(&at, json!({ "stream": null })).await.0, 400);
    let swapped = json!({ "rules": [all, some] });
    let (status, body) = root
        .send(Method::PUT, &format!("{path}/order"), swapped)
        .await;
    assert_eq!((status, &body["field"]), (400, &json!("rules")));
    assert_eq!(order(&root, id).await, [(some, 0), (all, 1)]);
    // Inserting one between them works.
    let last = format!("/admin/rules/{all}");
    assert_eq!(root.patch(&last, json!({ "position": 2 })).await.0, 204);
    let mut between = after;
    between["position"] = json!(1);
    assert_eq!(root.post(&path, between).await.0, 201);
}

#[tokio::test]
async fn rules_need_at_least_one_target() {
    let (_database, control) = started().await;
    let root = control.session("root", PASSWORD).await;
    let (a, b) = (root.model("a").await, root.model("b").await);
    let id = virtual_model(&root, "v").await;
    let path = format!("/admin/virtual-models/{id}/rules");
    let (status, body) = root.post(&path, json!({ "stream": true })).await;
    assert_eq!(
        (status, &body["code"], &body["field"]),
        (400, &json!("missing_field"), &json!("targets"))
    );
    let (status, _) = root.post(&path, json!({ "targets": [] })).await;
    assert_eq!((status, published(&control).await[0].rules.len()), (400, 0));

    let rule = rule(&root, id, json!({}), a).await;
    let targets = format!("/admin/rules/{rule}/targets");
    let (status, added) = root
        .post(&targets, json!({ "model_id": b, "weight": 7 }))
        .await;
    assert_eq!(
        (
            status,
            &added["position"],
            &added["model"],
            &added["weight"]
        ),
        (201, &json!(1), &json!("b"), &json!(7))
    );
    let (status, body) = root.post(&targets, json!({ "model_id": b })).await;
    assert_eq!((status, &body["field"]), (409, &json!("model_id")));
    let c = root.model("c").await;
    let body = json!({ "model_id": c, "position": 1 });
    let (status, body) = root.post(&targets, body).await;
    assert_eq!((status, &body["field"]), (409, &json!("position")));

    let swapped = json!([{ "model_id": b }, { "model_id": a, "weight": 3 }]);
    assert_eq!(root.send(Method::PUT, &targets, swapped).await.0, 204);
    let view = root.get(&format!("/admin/rules/{rule}")).await;
    assert_eq!(
        (&view["targets"][0]["model"], &view["targets"][1]["weight"]),
        (&json!("b"), &json!(3))
    );
    let at = |index: usize| format!("/admin/rule-targets/{}", view["targets"][index]["id"]);
    assert_eq!(root.delete(&at(0)).await.0, 204);
    let (status, body) = root.delete(&at(1)).await;
    assert_eq!((status, &body["code"]), (409, &json!("last_target")));
    assert_eq!(root.delete(&at(0)).await.0, 404);
    assert_eq!(root.send(Method::PUT, &targets, json!([])).await.0, 400);

    // Default targets may be empty.
    let defaults = format!("/admin/virtual-models/{id}/defaults");
    let (_, added) = root.post(&defaults, json!({ "model_id": a })).await;
    let at = format!("/admin/virtual-model-defaults/{}", added["id"]);
    assert_eq!(published(&control).await[0].default_targets.len(), 1);
    assert_eq!(root.delete(&at).await.0, 204);
    assert_eq!(root.delete(&at).await.0, 404);
    let both = json!([{ "model_id": a }, { "model_id": b }]);
    assert_eq!(root.send(Method::PUT, &defaults, both).await.0, 204);
    assert_eq!(published(&control).await[0].default_targets.len(), 2);
    assert_eq!(root.send(Method::PUT, &defaults, json!([])).await.0, 204);
    assert!(published(&control).await[0].default_targets.is_empty());
}

/// Rejected requests: path, body, expected field. Model 1, virtual model 1 and rule 1
/// exist.
const REFUSED: &str = r#"
/admin/virtual-models | {"name": ""} | name
/admin/virtual-models | {"name": "a*"} | name
/admin/virtual-models | {"name": "a", "split_by": "day"} | split_by
/admin/virtual-models | {"name": "a", "default_targets": [{"model_id": 99}]} | default_targets
/admin/virtual-models | {"name": "a", "rules": []} | rules
/admin/virtual-models/1/defaults | {"model_id": 99} | model_id
/admin/virtual-models/1/defaults | {"model_id": 1, "weight": 0} | weight
/admin/virtual-models/1/defaults | {"model_id": 1, "position": -1} | position
/admin/virtual-models/1/rules | {"targets": [{"model_id": 99}]} | targets
/admin/virtual-models/1/rules | {"targets": [{"model_id": 1, "weight": 0}]} | targets
/admin/virtual-models/1/rules | {"targets": [{"model_id": 1}, {"model_id": 1}]} | targets
/admin/virtual-models/1/rules | {"targets": [{"model_id": 1}], "principals": [99]} | principals
/admin/virtual-models/1/rules | {"targets": [{"model_id": 1}], "roles": ["nobody"]} | roles
/admin/virtual-models/1/rules | {"targets": [{"model_id": 1}], "class": "code"} | class
/admin/virtual-models/1/rules | {"targets": [{"model_id": 1}], "days": [8]} | days
/admin/virtual-models/1/rules | {"targets": [{"model_id": 1}], "after": "25:00"} | after
/admin/virtual-models/1/rules | {"targets": [{"model_id": 1}], "headers": {"a b": "c"}} | headers
/admin/virtual-models/1/rules | {"targets": [{"model_id": 1}], "min_prompt_tokens": -1} | min_prompt_tokens
/admin/virtual-models/1/rules | {"targets": [{"model_id": 1}], "moon": "full"} | moon
/admin/models/1/backends | {"api_base": "http://h", "weight": 0} | weight
/admin/models/1/backends | {"api_base": "http://h", "weight": 1001} | weight
"#;

#[tokio::test]
async fn invalid_routing_is_rejected_by_field() {
    let (_database, control) = started().await;
    let root = control.session("root", PASSWORD).await;
    assert_eq!(root.model("m").await, 1);
    assert_eq!(virtual_model(&root, "v").await, 1);
    for case in REFUSED.lines().filter(|line| !line.is_empty()) {
        let parts: Vec<&str> = case.split(" | ").collect();
        let body = serde_json::from_str(parts[1]).unwrap();
        let (status, response) = root.post(parts[0], body).await;
        assert_eq!(
            (status, response["field"].as_str()),
            (400, Some(parts[2])),
            "{case}: {response}"
        );
    }
    let rule = json!({ "targets": [{ "model_id": 1 }] });
    let missing = "/admin/virtual-models/99/rules";
    assert_eq!(root.post(missing, rule).await.0, 404);
    assert!(published(&control).await[0].rules.is_empty());
    assert_eq!(
        root.get("/admin/virtual-models")
            .await
            .as_array()
            .unwrap()
            .len(),
        1
    );
}

#[tokio::test]
async fn objects_named_by_rules_cannot_be_deleted() {
    let (_database, control) = started().await;
    let root = control.session("root", PASSWORD).await;
    let (a, b) = (root.model("a").await, root.model("b").await);
    let id = virtual_model(&root, "v").await;
    root.post("/admin/roles", json!({ "name": "team" })).await;
    let body = json!({ "principals": [1], "roles": ["team"] });
    let rule = rule(&root, id, body, a).await;
    let defaults = format!("/admin/virtual-models/{id}/defaults");
    root.post(&defaults, json!({ "model_id": b })).await;
    let named = [
        (
            format!("/admin/models/{a}"),
            format!("rule {rule} (position 0) of v"),
        ),
        (format!("/admin/models/{b}"), "the defaults of v".to_owned()),
        ("/admin/principals/1".to_owned(), "rule".to_owned()),
        ("/admin/roles/team".to_owned(), "rule".to_owned()),
    ];
    for (path, found) in &named {
        let (status, body) = root.delete(path).await;
        assert_eq!((status, &body["code"]), (409, &json!("in_use")), "{path}");
        assert!(body["error"].as_str().unwrap().contains(found), "{body}");
    }
    root.delete(&format!("/admin/virtual-models/{id}")).await;
    for (path, _) in &named {
        assert_eq!(root.delete(path).await.0, 204, "{path}");
    }
}

#[tokio::test]
async fn at_most_one_model_is_the_fallback() {
    let (_database, control) = started().await;
    let root = control.session("root", PASSWORD).await;
    let (a, b) = (root.model("a").await, root.model("b").await);
    let path = "/admin/fallback-model";
    assert_eq!(root.get(path).await, json!({ "id": null, "name": null }));
    assert!(snapshot(&control).await.get("fallback_model").is_none());
    for (id, name) in [(a, "a"), (b, "b")] {
        let (status, body) = root
            .send(Method::PUT, path, json!({ "model_id": id }))
            .await;
        assert_eq!(
            (status, body),
            (200, json!({ "model_id": id, "name": name }))
        );
        assert_eq!(snapshot(&control).await["fallback_model"], name);
    }
    assert_eq!(root.get(path).await, json!({ "id": b, "name": "b" }));
    let (status, body) = root
        .send(Method::PUT, path, json!({ "model_id": 99 }))
        .await;
    assert_eq!((status, &body["field"]), (400, &json!("model_id")));
    // An absent field is not `null`.
    assert_eq!(root.send(Method::PUT, path, json!({})).await.0, 400);
    let (status, body) = root.delete(&format!("/admin/models/{b}")).await;
    assert_eq!((status, &body["code"]), (409, &json!("in_use")));
    let (status, _) = root
        .send(Method::PUT, path, json!({ "model_id": null }))
        .await;
    assert_eq!(status, 200);
    assert!(snapshot(&control).await.get("fallback_model").is_none());
    assert_eq!(root.delete(&format!("/admin/models/{b}")).await.0, 204);
}

#[tokio::test]
async fn timeouts_and_retries_are_published() {
    let (_database, control) = started().await;
    let root = control.session("root", PASSWORD).await;
    let settings = json!({ "timeout_ms": 30_000, "stream_timeout_ms": 2_500, "max_retries": 0 });
    let mut body = settings.clone();
    body["name"] = json!("m");
    let (_, made) = root.post("/admin/models", body).await;
    let path = format!("/admin/models/{}", made["id"]);
    let failover = async || snapshot(&control).await["models"]["items"][0]["failover"].clone();
    assert_eq!(failover().await, settings);
    let shown = root.get(&path).await;
    assert_eq!(shown["stream_timeout_ms"], 2_500);
    let change = json!({ "stream_timeout_ms": null, "timeout_ms": null });
    assert_eq!(root.patch(&path, change).await.0, 204);
    assert_eq!(failover().await, json!({ "max_retries": 0 }));
    for (field, wrong) in [
        ("timeout_ms", 0),
        ("stream_timeout_ms", 3_600_001),
        ("max_retries", 17),
    ] {
        let (status, refused) = root.patch(&path, json!({ field: wrong })).await;
        assert_eq!(
            (status, &refused["field"]),
            (400, &json!(field)),
            "{refused}"
        );
    }
}

#[tokio::test]
async fn balancing_settings_are_published() {
    let (_database, control) = started().await;
    let root = control.session("root", PASSWORD).await;
    let body = json!({ "name": "m", "policy": "least-loaded", "context_length": 8192 });
    let (_, made) = root.post("/admin/models", body).await;
    let path = format!("/admin/models/{}/backends", made["id"]);
    let body = json!({ "api_base": "http://a/v1", "weight": 5 });
    let (_, first) = root.post(&path, body).await;
    let body = json!({ "api_base": "http://b/v1", "enabled": false });
    let (_, second) = root.post(&path, body).await;
    assert_eq!(
        (&first["weight"], &first["enabled"]),
        (&json!(5), &json!(true))
    );
    assert_eq!(
        (&second["weight"], &second["enabled"]),
        (&json!(1), &json!(false))
    );
    let model = async || snapshot(&control).await["models"]["items"][0].clone();
    let published = model().await;
    assert_eq!(
        (&published["policy"], &published["context_length"]),
        (&json!("least-loaded"), &json!(8192))
    );
    let pool = published["backends"].as_array().unwrap();
    assert_eq!((pool.len(), &pool[0]["weight"]), (1, &json!(5)));
    let at = format!("/admin/backends/{}", second["id"]);
    assert_eq!(root.patch(&at, json!({ "enabled": true })).await.0, 204);
    assert_eq!(model().await["backends"].as_array().unwrap().len(), 2);
    for wrong in [
        json!({ "weight": 0 }),
        json!({ "weight": null }),
        json!({ "enabled": null }),
    ] {
        assert_eq!(root.patch(&at, wrong.clone()).await.0, 400, "{wrong}");
    }
    let first = format!("/admin/backends/{}", first["id"]);
    assert_eq!(root.patch(&first, json!({ "weight": 1000 })).await.0, 204);
    assert_eq!(model().await["backends"][0]["weight"], 1000);
}

#[tokio::test]
async fn rules_of_a_later_release_are_not_published() {
    let (database, control) = started().await;
    let root = control.session("root", PASSWORD).await;
    let target = root.model("m").await;
    let id = virtual_model(&root, "v").await;
    let strange = rule(&root, id, json!({ "stream": true }), target).await;
    rule(&root, id, json!({ "stream": false }), target).await;
    database
        .execute("UPDATE routing_rules SET match_json = '{\"moon\": \"full\"}' WHERE position = 0")
        .await;
    // The next change publishes both.
    root.model("n").await;
    let rules = published(&control).await[0].rules.clone();
    assert_eq!((rules.len(), rules[0].shape.stream), (1, Some(false)));
    assert!(control.log().contains("omitting a rule of a later release"));
    let at = format!("/admin/rules/{strange}");
    assert_eq!(root.get(&at).await["unreadable"], true);
    let (status, body) = root.patch(&at, json!({ "stream": null })).await;
    assert_eq!((status, &body["code"]), (409, &json!("unreadable")));
    assert_eq!(root.delete(&at).await.0, 204);
}
