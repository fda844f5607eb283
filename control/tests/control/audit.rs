use reqwest::Method;
use serde_json::{Value, json};

use crate::harness::{Database, KEY, PASSWORD, TOKEN, started, status_and_json};

#[tokio::test]
async fn audit_records_contain_actor_change_and_source() {
    let (_database, control) = started().await;
    let root = control.session("root", PASSWORD).await;
    let id = root.model("m").await;
    let path = format!("/admin/models/{id}");
    root.patch(&path, json!({ "policy": "least-loaded" })).await;
    root.patch(&path, json!({ "policy": null })).await;
    let log = root.get("/admin/audit?limit=2").await;
    let row = &log[0];
    assert_eq!(row["actor_name"], "root");
    assert_eq!(
        (&row["action"], &row["target"]),
        (&json!("PATCH"), &json!(path))
    );
    assert_eq!(row["source"], "127.0.0.1");
    assert_eq!(
        row["detail"],
        json!({
            "operation": "model.update",
            "id": id,
            "changes": { "policy": { "before": "least-loaded", "after": null } },
        })
    );
    let by_root = format!("/admin/audit?actor_id={}&target=/models", row["actor_id"]);
    assert_eq!(root.get(&by_root).await.as_array().unwrap().len(), 3);
    assert_eq!(
        root.get("/admin/audit?since=2999-01-01T00:00:00Z").await,
        json!([])
    );
    // Rejected changes are not recorded.
    root.patch(&path, json!({ "policy": "x" })).await;
    assert_eq!(root.get("/admin/audit?limit=2").await, log);
}

#[tokio::test]
async fn changes_without_audit_record_are_rolled_back() {
    let (database, control) = started().await;
    let root = control.session("root", PASSWORD).await;
    let id = root.model("m").await;
    let version = database
        .number("SELECT config_version FROM config_state")
        .await;
    database
        .execute(
            "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS \
             $$ BEGIN RAISE EXCEPTION 'no audit today'; END $$; \
             CREATE TRIGGER refuse BEFORE INSERT ON audit_events \
             FOR EACH ROW EXECUTE FUNCTION refuse()",
        )
        .await;
    let (status, body) = root.post("/admin/models", json!({ "name": "n" })).await;
    assert_eq!((status, &body["code"]), (500, &json!("database_failed")));
    assert_eq!(root.delete(&format!("/admin/models/{id}")).await.0, 500);
    let key = json!({ "name": "k", "principal_id": 1 });
    assert_eq!(root.post("/admin/keys", key).await.0, 500);
    assert_eq!(database.number("SELECT count(*) FROM models").await, 1);
    assert_eq!(database.number("SELECT count(*) FROM api_keys").await, 0);
    assert_eq!(
        database
            .number("SELECT config_version FROM config_state")
            .await,
        version
    );
}

/// All rows that could contain a secret.
async fn dump(database: &Database) -> Vec<Value> {
    let rows: Vec<String> = sqlx::query_scalar(
        "SELECT to_jsonb(t)::text FROM audit_events AS t \
         UNION ALL SELECT to_jsonb(b)::text FROM model_backends AS b \
         UNION ALL SELECT to_jsonb(k)::text FROM api_keys AS k \
         UNION ALL SELECT to_jsonb(s)::text FROM sessions AS s \
         UNION ALL SELECT to_jsonb(p)::text FROM principals AS p",
    )
    .fetch_all(&database.pool)
    .await
    .unwrap();
    rows.into_iter().map(Value::from).collect()
}

/// Submits secrets wherever a request accepts one, then searches all outputs for them.
#[tokio::test]
async fn secrets_are_never_returned_or_logged() {
    let (database, control) = started().await;
    let root = control.session("root", PASSWORD).await;
    let model = root.model("m").await;
    let backends = format!("/admin/models/{model}/backends");
    let mut outputs = Vec::new();
    let secret = json!({ "api_base": "http://h/v1", "upstream_api_key": "canary-upstream-1" });
    let (_, made) = root.post(&backends, secret).await;
    let at = format!("/admin/backends/{}", made["id"]);
    outputs.push(made);
    outputs.push(
        root.patch(&at, json!({ "upstream_api_key": "canary-upstream-2" }))
            .await
            .1,
    );
    // Also in wrong places.
    for wrong in [
        json!({ "api_base": "http://user:canary-upstream-3@h/v1" }),
        json!({ "api_base": "http://h/v1", "upstream_api_key": "canary-upstream-4\n" }),
        json!({ "api_base": "http://h/v1", "upstream_api_key": ["canary-upstream-5"] }),
        json!({ "api_base": "http://h/v1", "protocol": "canary-upstream-6" }),
        json!("canary-upstream-7"),
    ] {
        outputs.push(root.post(&backends, wrong).await.1);
    }
    let (_, key) = root.key("k", 1).await;
    let password = json!({ "password": "canary-new-password" });
    let path = "/admin/principals/1/password";
    outputs.push(root.send(Method::PUT, path, password).await.1);
    let session = root.cookie.split_once('=').unwrap().1.to_owned();
    for resource in "models keys principals audit config roles".split(' ') {
        outputs.push(root.get(&format!("/admin/{resource}")).await);
    }
    outputs.push(root.get(&at).await);
    let metrics = control.get("/metrics").send().await.unwrap();
    outputs.push(Value::from(metrics.text().await.unwrap()));
    outputs.push(Value::from(control.log()));
    outputs.extend(dump(&database).await);
    for output in outputs {
        let text = output.to_string();
        for canary in [
            "canary-upstream",
            "canary-new-password",
            PASSWORD,
            TOKEN,
            KEY,
            &key,
            &session,
        ] {
            assert!(!text.contains(canary), "{canary} is in {text}");
        }
    }
    // Only gateways receive the credential.
    let (_, snapshot) = status_and_json(control.as_gateway(Method::GET, "/snapshot")).await;
    assert_eq!(
        snapshot["models"]["items"][0]["backends"][0]["api_key"],
        "canary-upstream-2"
    );
}
