//! Limits, budgets and teams in the admin API and the snapshot.

use fastllm_contract::{Budget, KeyEntry, Limits, Principal, Snapshot, Team, Tokens, WindowLength};
use reqwest::Method;
use serde_json::{Value, json};

use crate::harness::{Control, PASSWORD, Session, eventually, started, status_and_json};
use crate::snapshots::{fetch, whole};

async fn team(session: &Session<'_>, name: &str) -> i64 {
    let (status, made) = session.post("/admin/teams", json!({ "name": name })).await;
    assert_eq!(status, 201, "{made}");
    made["id"].as_i64().unwrap()
}

async fn principal(session: &Session<'_>, body: Value) -> i64 {
    let (status, made) = session.post("/admin/principals", body).await;
    assert_eq!(status, 201, "{made}");
    made["id"].as_i64().unwrap()
}

#[tokio::test]
async fn teams_can_be_created_changed_and_deleted() {
    let (_database, control) = started().await;
    let root = control.session("root", PASSWORD).await;
    let id = team(&root, "research").await;
    let path = format!("/admin/teams/{id}");
    let (status, body) = root
        .post("/admin/teams", json!({ "name": "research" }))
        .await;
    assert_eq!(
        (status, &body["code"], &body["field"]),
        (409, &json!("duplicate"), &json!("name"))
    );

    let member = principal(&root, json!({ "name": "a", "team_id": id })).await;
    let at = format!("/admin/principals/{member}");
    assert_eq!(root.get(&at).await["team_id"], id);
    assert_eq!(root.patch(&at, json!({ "disabled": false })).await.0, 204);
    assert_eq!(root.get(&at).await["team_id"], id);
    assert_eq!(root.get(&path).await["members"], 1);
    for (method, at, body) in [
        (Method::PATCH, at.as_str(), json!({ "team_id": 999 })),
        (
            Method::POST,
            "/admin/principals",
            json!({ "name": "b", "team_id": 999 }),
        ),
    ] {
        let (status, refused) = root.send(method, at, body).await;
        assert_eq!((status, &refused["field"]), (400, &json!("team_id")));
    }
    let (status, body) = root.delete(&path).await;
    assert_eq!((status, &body["code"]), (409, &json!("in_use")));

    assert_eq!(root.patch(&at, json!({ "team_id": null })).await.0, 204);
    assert_eq!(root.get(&at).await["team_id"], Value::Null);
    let change = json!({ "name": "lab", "description": "of the second floor" });
    assert_eq!(root.patch(&path, change).await.0, 204);
    let shown = root.get(&path).await;
    assert_eq!(
        (&shown["name"], &shown["description"], &shown["members"]),
        (&json!("lab"), &json!("of the second floor"), &json!(0))
    );
    assert_eq!(root.get("/admin/teams").await, json!([shown]));
    assert_eq!(root.delete(&path).await.0, 204);
    assert_eq!(root.delete(&path).await.0, 404);
}

/// The paths of a principal, its use of a model, a key and a team.
async fn subjects(root: &Session<'_>) -> [String; 4] {
    let model = root.model("m").await;
    let (key, _) = root.key("k", 1).await;
    let team = team(root, "t").await;
    [
        "/admin/principals/1".to_owned(),
        format!("/admin/principals/1/models/{model}"),
        format!("/admin/keys/{key}"),
        format!("/admin/teams/{team}"),
    ]
}

#[tokio::test]
async fn every_subject_has_its_own_limits() {
    let (_database, control) = started().await;
    let root = control.session("root", PASSWORD).await;
    let subjects = subjects(&root).await;
    for (most, subject) in (1..).zip(&subjects) {
        let path = format!("{subject}/limits");
        assert_eq!(
            status_and_json(root.request(Method::GET, &path)).await.0,
            404
        );
        let first = json!({ "requests_per_min": most, "tokens_per_min": 1000 });
        assert_eq!(root.put(&path, first).await.0, 204);
        // Absent limits are unlimited again.
        let second = json!({ "requests_per_min": most, "concurrency": 2 });
        assert_eq!(root.put(&path, second).await.0, 204);
        assert_eq!(
            root.get(&path).await,
            json!({ "requests_per_min": most, "tokens_per_min": null, "concurrency": 2 })
        );
    }
    let all = root.get("/admin/limits").await;
    let rows = all.as_array().unwrap();
    assert_eq!(
        rows[0],
        json!({
            "id": rows[0]["id"],
            "principal_id": 1,
            "principal": "bootstrap",
            "requests_per_min": 1,
            "tokens_per_min": null,
            "concurrency": 2,
        })
    );
    let names = [("model", "m"), ("key", "k"), ("team", "t")];
    for (row, (kind, name)) in rows[1..].iter().zip(names) {
        assert_eq!(row[kind], name);
        assert_eq!(row.get("principal").is_some(), kind == "model");
    }
    let page = format!("/admin/limits?limit=1&after={}", rows[2]["id"]);
    assert_eq!(root.get(&page).await, json!([rows[3]]));
    let own = root.get("/admin/limits?principal_id=1").await;
    assert_eq!(own, json!([rows[0], rows[1]]));

    for subject in &subjects {
        let path = format!("{subject}/limits");
        assert_eq!(root.delete(&path).await.0, 204);
        assert_eq!(root.delete(&path).await.0, 204);
    }
    assert_eq!(root.get("/admin/limits").await, json!([]));
    check_listed_limits(&root).await;
}

async fn check_listed_limits(root: &Session<'_>) {
    let log = root.get("/admin/audit?limit=100").await;
    let found: Vec<&str> = log
        .as_array()
        .unwrap()
        .iter()
        .filter_map(|row| row["detail"]["operation"].as_str())
        .filter(|operation| operation.ends_with("limits.set"))
        .collect();
    assert_eq!(found[0], "team.limits.set");
    assert_eq!(found[6], "principal.limits.set");
    assert_eq!(found[4], "principal.model.limits.set");
    let changed = log.as_array().unwrap().iter().find(|row| {
        row["detail"]["operation"] == "key.limits.set"
            && row["detail"]["changes"]["concurrency"]["after"] == 2
    });
    assert_eq!(
        changed.unwrap()["detail"]["changes"],
        json!({
            "tokens_per_min": { "before": 1000, "after": null },
            "concurrency": { "before": null, "after": 2 },
        })
    );
}

#[tokio::test]
async fn budget_changes_keep_spending() {
    let (database, control) = started().await;
    let root = control.session("root", PASSWORD).await;
    for subject in &subjects(&root).await {
        let path = format!("{subject}/budget");
        assert_eq!(
            status_and_json(root.request(Method::GET, &path)).await.0,
            404
        );
        let first = json!({ "tokens_total": 1000, "window": "monthly" });
        assert_eq!(root.put(&path, first).await.0, 204);
    }
    database
        .execute(
            "INSERT INTO budget_spending (budget_id, window_start, tokens_used, cost_used_micros) \
             SELECT id, window_start, 700, 9 FROM budgets; \
             INSERT INTO budget_spending (budget_id, window_start, tokens_used) \
             SELECT id, window_start - interval '30 days', 5000 FROM budgets; \
             INSERT INTO budget_shares (budget_id, window_start, replica, boot_id, tokens_stored, \
                    tokens_used, tokens_reserved, reported_at) \
             SELECT id, window_start, 'gateway-0', 'boot', 700, 720, 40, now() FROM budgets",
        )
        .await;
    let before = root.get("/admin/budgets").await;
    let row = &before[0];
    let found = [
        "tokens_total",
        "tokens_used",
        "tokens_reserved",
        "cost_used_micros",
    ];
    assert_eq!(
        found.map(|name| row[name].as_u64().unwrap()),
        [1000, 700, 60, 9]
    );
    assert_eq!(
        (&row["principal"], &row["window"], &row["cost_total_micros"]),
        (&json!("bootstrap"), &json!("monthly"), &Value::Null)
    );
    let time = |name: &str| {
        let text = row[name].as_str().unwrap();
        time::OffsetDateTime::parse(text, &time::format_description::well_known::Rfc3339).unwrap()
    };
    let (start, end) = (time("window_start"), time("window_end"));
    assert_eq!(end - start, time::Duration::days(30));

    let path = "/admin/principals/1/budget";
    let raised = json!({ "tokens_total": 2000, "cost_total_micros": 5, "window": "monthly" });
    assert_eq!(root.put(path, raised).await.0, 204);
    let after = root.get(path).await;
    assert_eq!(
        (&after["tokens_total"], &after["tokens_used"]),
        (&json!(2000), &json!(700))
    );
    assert_eq!(after["window_start"], row["window_start"]);
    assert_eq!(root.delete(path).await.0, 204);
    assert_eq!(root.delete(path).await.0, 204);
    let left = root.get("/admin/budgets").await;
    assert_eq!(left.as_array().unwrap().len(), 3);
    let windows = "SELECT count(*) FROM budget_spending";
    assert_eq!(database.number(windows).await, 6);
}

#[tokio::test]
async fn window_changes_carry_spending_over() {
    let (database, control) = started().await;
    let root = control.session("root", PASSWORD).await;
    let path = "/admin/principals/1/budget";
    let first = json!({ "tokens_total": 2000, "cost_total_micros": 5, "window": "monthly" });
    assert_eq!(root.put(path, first).await.0, 204);
    let id = "SELECT id FROM budgets";
    let before = database.number(id).await;
    let other = json!({ "tokens_total": 2000, "window": "weekly", "time_zone": "europe/berlin" });
    assert_eq!(root.put(path, other).await.0, 204);
    let after = root.get(path).await;
    assert_eq!(
        (&after["time_zone"], &after["cost_total_micros"]),
        (&json!("Europe/Berlin"), &Value::Null)
    );
    assert_eq!(database.number(id).await, before);

    // The spending of the week's days counts towards the week.
    let daily = json!({ "tokens_total": 2000, "window": "daily", "time_zone": "UTC" });
    assert_eq!(root.put(path, daily).await.0, 204);
    database
        .execute(
            "INSERT INTO budget_spending (budget_id, window_start, tokens_used) \
             SELECT id, date_trunc('week', now() AT TIME ZONE 'UTC') AT TIME ZONE 'UTC' + n * interval '1 hour', 10 \
               FROM budgets, generate_series(-1, 2) AS n",
        )
        .await;
    let weekly = json!({ "tokens_total": 2000, "window": "weekly", "time_zone": "UTC" });
    for _ in 0..2 {
        assert_eq!(root.put(path, weekly.clone()).await.0, 204);
        assert_eq!(root.get(path).await["tokens_used"], 30);
    }
}

/// Rejected requests: method, path, body, expected status, code and field.
const REFUSED: &str = r#"
/admin/principals/1/limits | {} | 400 invalid_value requests_per_min
/admin/principals/1/limits | {"requests_per_min": 0} | 400 invalid_value requests_per_min
/admin/principals/1/limits | {"tokens_per_min": -1} | 400 invalid_value tokens_per_min
/admin/principals/1/limits | {"concurrency": 1000001} | 400 invalid_value concurrency
/admin/principals/1/limits | {"requests_per_hour": 1} | 400 unknown_field requests_per_hour
/admin/principals/1/budget | {"window": "daily"} | 400 invalid_value tokens_total
/admin/principals/1/budget | {"tokens_total": 1} | 400 missing_field window
/admin/principals/1/budget | {"tokens_total": 1, "window": "yearly"} | 400 invalid_value window
/admin/principals/1/budget | {"tokens_total": -1, "window": "daily"} | 400 invalid_value tokens_total
/admin/principals/1/budget | {"cost_total_micros": -1, "window": "daily"} | 400 invalid_value cost_total_micros
/admin/principals/1/budget | {"tokens_total": 1, "window": "daily", "time_zone": "Mars"} | 400 invalid_value time_zone
/admin/principals/1/budget | {"tokens_total": 1, "window": "daily", "tokens_used": 0} | 400 unknown_field tokens_used
/admin/principals/9/limits | {"concurrency": 1} | 404 not_found null
/admin/principals/1/models/9/limits | {"concurrency": 1} | 404 not_found null
/admin/keys/9/budget | {"tokens_total": 1, "window": "daily"} | 404 not_found null
/admin/teams/9/budget | {"tokens_total": 1, "window": "daily"} | 404 not_found null
"#;

#[tokio::test]
async fn invalid_limits_and_budgets_are_rejected_by_field() {
    let (database, control) = started().await;
    let root = control.session("root", PASSWORD).await;
    let version = "SELECT config_version FROM config_state";
    let before = database.number(version).await;
    for line in REFUSED.lines().filter(|line| !line.is_empty()) {
        let parts: Vec<&str> = line.split(" | ").collect();
        let body: Value = serde_json::from_str(parts[1]).unwrap();
        let (status, response) = root.put(parts[0], body).await;
        let field = response
            .get("field")
            .and_then(Value::as_str)
            .unwrap_or("null");
        let found = format!("{status} {} {field}", response["code"].as_str().unwrap());
        assert_eq!(found, parts[2], "{line}: {response}");
    }
    assert_eq!(database.number(version).await, before);
    let reader = principal(&root, json!({ "name": "reader", "kind": "user" })).await;
    let path = format!("/admin/principals/{reader}");
    let (_, role) = root.post("/admin/roles", json!({ "name": "reader" })).await;
    assert_eq!(role["name"], "reader");
    let grant = json!({ "verb": "usage:read" });
    root.post("/admin/roles/reader/permissions", grant).await;
    root.post(&format!("{path}/roles"), json!({ "role": "reader" }))
        .await;
    root.put(&format!("{path}/password"), json!({ "password": PASSWORD }))
        .await;
    let reader = control.session("reader", PASSWORD).await;
    assert_eq!(reader.get("/admin/limits").await, json!([]));
    for (path, body) in [
        ("limits", json!({ "concurrency": 1 })),
        ("budget", json!({ "tokens_total": 1, "window": "daily" })),
    ] {
        let path = format!("/admin/principals/1/{path}");
        assert_eq!(reader.put(&path, body).await.0, 403);
        assert_eq!(reader.delete(&path).await.0, 403);
    }
}

fn only<T: Clone>(part: &fastllm_contract::Section<Vec<T>>) -> T {
    let items = part.items.as_ref().unwrap();
    assert_eq!(items.len(), 1);
    items[0].clone()
}

fn keys(snapshot: &Snapshot) -> Vec<KeyEntry> {
    let shards = snapshot.key_shards.iter();
    shards
        .flat_map(|shard| shard.keys.items.iter().flat_map(|keys| keys.0.values()))
        .cloned()
        .collect()
}

#[tokio::test]
async fn limits_and_budgets_of_every_subject_are_published() {
    let (database, control) = started().await;
    let second = Control::start(&database).await;
    let root = control.session("root", PASSWORD).await;
    let subjects = subjects(&root).await;
    let (key, _) = root.key("other", 1).await;
    root.patch("/admin/principals/1", json!({ "team_id": 1 }))
        .await;
    for (most, subject) in (1_u64..).zip(&subjects) {
        let limits = json!({ "requests_per_min": most });
        assert_eq!(root.put(&format!("{subject}/limits"), limits).await.0, 204);
        let budget = json!({ "tokens_total": 10 * most, "window": "daily", "time_zone": "UTC" });
        assert_eq!(root.put(&format!("{subject}/budget"), budget).await.0, 204);
    }
    let (snapshot, tag) = whole(&control).await;
    let most = |limits: &Limits| limits.requests_per_min.unwrap().get();
    let total = |budget: &Budget| {
        assert_eq!(budget.window, WindowLength::Daily);
        assert_eq!(budget.time_zone.as_deref(), Some("UTC"));
        budget.tokens_total.unwrap()
    };
    let principals = snapshot.principals.items.as_ref().unwrap();
    let bootstrap: &Principal = principals.iter().find(|row| row.id.0 == 1).unwrap();
    assert_eq!(most(&bootstrap.limits.unwrap()), 1);
    assert_eq!(total(bootstrap.budget.as_ref().unwrap()), Tokens(10));
    let model = &bootstrap.models[0];
    assert_eq!((model.model.as_str(), bootstrap.models.len()), ("m", 1));
    assert_eq!(most(&model.limits.unwrap()), 2);
    assert_eq!(total(model.budget.as_ref().unwrap()), Tokens(20));
    let entries = keys(&snapshot);
    let entry = entries
        .iter()
        .find(|entry| entry.id.0 != key.unsigned_abs());
    assert_eq!(most(entry.unwrap().limits.as_ref().unwrap()), 3);
    assert_eq!(total(entry.unwrap().budget.as_ref().unwrap()), Tokens(30));
    let team: Team = only(&snapshot.teams);
    assert_eq!((bootstrap.team, team.name.as_str()), (Some(team.id), "t"));
    assert_eq!(most(&team.limits.unwrap()), 4);
    assert_eq!(total(team.budget.as_ref().unwrap()), Tokens(40));
    let others = entries
        .iter()
        .filter(|entry| entry.id.0 == key.unsigned_abs());
    assert!(others.into_iter().all(|entry| entry.limits.is_none()));
    assert!(
        principals
            .iter()
            .all(|row| row.id.0 == 1 || row.limits.is_none())
    );

    same_everywhere(&second, &snapshot, &tag).await;
    for subject in &subjects {
        root.delete(&format!("{subject}/limits")).await;
        root.delete(&format!("{subject}/budget")).await;
    }
    let (snapshot, _) = whole(&control).await;
    assert!(keys(&snapshot).iter().all(|entry| entry.budget.is_none()));
    let principals = snapshot.principals.items.as_ref().unwrap();
    assert!(
        principals
            .iter()
            .all(|row| row.models.is_empty() && row.budget.is_none())
    );
}

/// Another replica publishes the same bytes, also after incremental builds.
async fn same_everywhere(second: &Control, snapshot: &Snapshot, tag: &str) {
    eventually("the other replica has it", async || {
        let response = fetch(second, None, "0s").await;
        let theirs = response.headers()["etag"].to_str().unwrap().to_owned();
        (theirs == tag).then_some(())
    })
    .await;
    assert_eq!(whole(second).await.0, *snapshot);
}

#[tokio::test]
async fn limits_of_a_key_change_one_shard() {
    let (database, control) = started().await;
    let root = control.session("root", PASSWORD).await;
    let (key, _) = root.key("k", 1).await;
    database
        .execute(
            "INSERT INTO api_keys (hash, prefix, name, principal_id) \
             SELECT sha256(n::text::bytea), 'sk-', n::text, 1 FROM generate_series(1, 2000) AS n",
        )
        .await;
    let (mut held, mut tag) = eventually("the keys are there", async || {
        Some(whole(&control).await).filter(|(held, _)| held.key_shards.len() > 200)
    })
    .await;
    for (what, body) in [
        ("limits", json!({ "concurrency": 1 })),
        ("budget", json!({ "tokens_total": 1, "window": "daily" })),
        ("budget", Value::Null),
    ] {
        let path = format!("/admin/keys/{key}/{what}");
        if body.is_null() {
            assert_eq!(root.delete(&path).await.0, 204);
        } else {
            assert_eq!(root.put(&path, body).await.0, 204);
        }
        let response = fetch(&control, Some(&tag), "30s").await;
        let difference: Snapshot = response.json().await.unwrap();
        let sent = difference.key_shards.iter();
        let sent = sent.filter(|shard| shard.keys.items.is_some());
        assert_eq!(sent.count(), 1);
        assert!(difference.models.items.is_none() && difference.principals.items.is_none());
        let merged = difference.merge(Some(&held)).unwrap();
        (held, tag) = whole(&control).await;
        assert_eq!(merged, held);
    }
}
