use reqwest::{Method, header};
use serde_json::{Value, json};

use crate::harness::{PASSWORD, Session, eventually, started, status_and_json};

/// A backend created with only an address and a credential.
fn first_backend(id: &Value) -> Value {
    json!({
        "id": id,
        "api_base": "http://vllm:8000/v1",
        "upstream_model": "Qwen/Qwen3-1.7B",
        "has_upstream_api_key": true,
        "protocol": "openai",
        "auth_header": "authorization",
        "auth_scheme": "Bearer",
        "default_max_tokens": null,
        "weight": 1,
        "enabled": true,
        "draining": false,
        "max_concurrency": null,
        "max_queue": 100,
        "queue_timeout_ms": 10_000,
        "extra_header_names": [],
        "extra_query": {},
        "path_template": null,
        "health_check": true,
        "health_path": "/models",
        "health_method": "GET",
        "health_expect": "2xx",
    })
}

#[tokio::test]
async fn models_and_backends_can_be_created_changed_and_deleted() {
    let (_database, control) = started().await;
    let root = control.session("root", PASSWORD).await;
    let body = json!({ "name": "Qwen/Qwen3-1.7B", "input_price_per_mtok": 3_000_000, "policy": "round-robin" });
    let (status, made) = root.post("/admin/models", body).await;
    assert_eq!(status, 201);
    let path = format!("/admin/models/{}", made["id"]);

    let body = json!({ "api_base": "http://vllm:8000/v1/", "upstream_api_key": "sk-upstream" });
    let (status, backend) = root.post(&format!("{path}/backends"), body).await;
    assert_eq!(status, 201);
    assert_eq!(backend, first_backend(&backend["id"]));
    let native = json!({ "api_base": "https://api.example.org", "protocol": "anthropic" });
    let (_, native) = root.post(&format!("{path}/backends"), native).await;
    assert_eq!(
        (&native["auth_header"], &native["auth_scheme"]),
        (&json!("x-api-key"), &Value::Null)
    );

    let change = json!({ "policy": null, "context_length": 4096 });
    assert_eq!(root.patch(&path, change).await.0, 204);
    let model = root.get(&path).await;
    assert_eq!(model["policy"], Value::Null);
    assert_eq!(model["context_length"], 4096);
    assert_eq!(model["input_price_per_mtok"], 3_000_000);
    assert_eq!(root.get("/admin/models").await, json!([model]));

    let at = format!("/admin/backends/{}", backend["id"]);
    assert_eq!(
        root.patch(&at, json!({ "upstream_model": "other" }))
            .await
            .0,
        204
    );
    assert_eq!(root.get(&at).await["has_upstream_api_key"], true);
    assert_eq!(
        root.patch(&at, json!({ "upstream_api_key": null })).await.0,
        204
    );
    let changed = root.get(&at).await;
    assert_eq!(
        (&changed["has_upstream_api_key"], &changed["upstream_model"]),
        (&json!(false), &json!("other"))
    );

    assert_eq!(root.delete(&at).await.0, 204);
    assert_eq!(root.delete(&at).await.0, 404);
    assert_eq!(root.delete(&path).await.0, 204);
    assert_eq!(root.patch(&path, json!({})).await.0, 404);
    assert_eq!(root.get("/admin/models").await, json!([]));
}

#[tokio::test]
async fn model_names_are_unique() {
    let (database, control) = started().await;
    let root = control.session("root", PASSWORD).await;
    root.model("taken").await;
    let (status, body) = root.post("/admin/models", json!({ "name": "taken" })).await;
    assert_eq!(
        (status, &body["code"], &body["field"]),
        (409, &json!("duplicate"), &json!("name"))
    );
    // The database enforces uniqueness, also for kinds of a later release.
    database
        .execute("INSERT INTO model_names (name, kind) VALUES ('virtual', 'virtual_model')")
        .await;
    assert_eq!(
        root.post("/admin/models", json!({ "name": "virtual" }))
            .await
            .0,
        409
    );
}

/// Rejected requests: path, body, expected code and field. Model 1 exists.
const REFUSED: &str = r#"
/admin/models | {"name": ""} | invalid_value name
/admin/models | {"name": " a"} | invalid_value name
/admin/models | {"name": "a\nb"} | invalid_value name
/admin/models | {"name": "a*"} | invalid_value name
/admin/models | {"name": "a", "description": "\u0000"} | invalid_value description
/admin/models | {"nme": "a"} | unknown_field nme
/admin/models | {} | missing_field name
/admin/models | {"name": 7} | invalid_value name
/admin/models | {"name": "a", "policy": "fastest"} | invalid_value policy
/admin/models | {"name": "a", "input_price_per_mtok": -1} | invalid_value input_price_per_mtok
/admin/models | {"name": "a", "context_length": 0} | invalid_value context_length
/admin/models/1/backends | {"api_base": "h/v1"} | invalid_value api_base
/admin/models/1/backends | {"api_base": "http://u:p@h/v1"} | invalid_value api_base
/admin/models/1/backends | {"api_base": "http://h:0/v1"} | invalid_value api_base
/admin/models/1/backends | {"api_base": "http://169.254.169.254/"} | invalid_value api_base
/admin/models/1/backends | {"api_base": "http://h", "auth_header": "Host"} | invalid_value auth_header
/admin/models/1/backends | {"api_base": "http://h", "auth_header": "Proxy-Authorization"} | invalid_value auth_header
/admin/models/1/backends | {"api_base": "http://h", "auth_scheme": ""} | invalid_value auth_scheme
/admin/models/1/backends | {"api_base": "http://h", "protocol": "grpc"} | invalid_value protocol
/admin/models/1/backends | {"api_base": "http://h", "upstream_api_key": "a\r\nb"} | invalid_value upstream_api_key
/admin/models/1/backends | {"api_base": "http://h", "default_max_tokens": 0} | invalid_value default_max_tokens
/admin/models/1/backends | {"api_base": "http://h", "max_concurrency": 0} | invalid_value max_concurrency
/admin/models/1/backends | {"api_base": "http://h", "max_queue": -1} | invalid_value max_queue
/admin/models/1/backends | {"api_base": "http://h", "max_queue": null} | invalid_value max_queue
/admin/models/1/backends | {"api_base": "http://h", "queue_timeout_ms": 0} | invalid_value queue_timeout_ms
/admin/models/1/backends | {"api_base": "http://h", "extra_headers": {"Host": "x"}} | invalid_value extra_headers
/admin/models/1/backends | {"api_base": "http://h", "extra_headers": {"Content-Length": "1"}} | invalid_value extra_headers
/admin/models/1/backends | {"api_base": "http://h", "extra_headers": {"authorization": "x"}} | invalid_value extra_headers
/admin/models/1/backends | {"api_base": "http://h", "extra_headers": {"a b": "x"}} | invalid_value extra_headers
/admin/models/1/backends | {"api_base": "http://h", "extra_headers": {"x": "a\r\nb"}} | invalid_value extra_headers
/admin/models/1/backends | {"api_base": "http://h", "extra_headers": {"x": "1", "X": "2"}} | invalid_value extra_headers
/admin/models/1/backends | {"api_base": "http://h", "extra_headers": {"x": 1}} | invalid_value extra_headers.x
/admin/models/1/backends | {"api_base": "http://h", "extra_query": {"": "x"}} | invalid_value extra_query
/admin/models/1/backends | {"api_base": "http://h", "path_template": "/x"} | invalid_value path_template
/admin/models/1/backends | {"api_base": "http://h", "path_template": "/{a}{sub_path}"} | invalid_value path_template
/admin/models/1/backends | {"api_base": "http://h", "health_path": "models"} | invalid_value health_path
/admin/models/1/backends | {"api_base": "http://h", "health_method": "DELETE"} | invalid_value health_method
/admin/models/1/backends | {"api_base": "http://h", "health_expect": "fine"} | invalid_value health_expect
/admin/keys | {"name": "k", "principal_id": 99} | invalid_value principal_id
/admin/keys | {"name": "k", "principal_id": 1, "expires_at": "2020-01-01T00:00:00Z"} | invalid_value expires_at
/admin/keys | {"name": "k", "principal_id": 1, "expires_at": "soon"} | invalid_value expires_at
/admin/keys | {"name": "k", "principal_id": 1, "expires_at": "9999-12-31T23:59:59-23:00"} | invalid_value expires_at
/admin/keys | {"name": "k", "principal_id": -9223372036854775808} | invalid_value principal_id
/admin/principals | {"name": "p", "kind": "robot"} | invalid_value kind
/admin/principals | {"name": ""} | invalid_value name
/admin/principals | {"name": "p "} | invalid_value name
/admin/principals | {"name": "p\u200b"} | invalid_value name
/admin/principals | {"name": "p\u202eq"} | invalid_value name
/admin/principals | {"name": "p", "email": ""} | invalid_value email
/admin/principals | {"name": "p", "email": "p"} | invalid_value email
/admin/principals | {"name": "p", "email": "@example.com"} | invalid_value email
/admin/principals | {"name": "p", "email": "p@"} | invalid_value email
/admin/principals | {"name": "p", "email": "p@a..b"} | invalid_value email
/admin/principals | {"name": "p", "email": "p q@example.com"} | invalid_value email
/admin/principals | {"name": "p", "email": "p@q@example.com"} | invalid_value email
/admin/principals | {"name": "p", "email": "p@example.com\n"} | invalid_value email
/admin/teams | {"name": "\u2066t"} | invalid_value name
/admin/keys | {"name": "", "principal_id": 1} | invalid_value name
/admin/roles | {"name": "."} | invalid_value name
/admin/roles | {"name": ".."} | invalid_value name
/admin/roles | {"name": "a\\b"} | invalid_value name
/admin/roles | {"name": "a/b"} | invalid_value name
/admin/roles/admin/permissions | {"verb": "all"} | invalid_value verb
/admin/roles/admin/permissions | {"verb": "model:invoke"} | invalid_value resource
"#;

#[tokio::test]
async fn invalid_values_are_rejected_by_field() {
    let (_database, control) = started().await;
    let root = control.session("root", PASSWORD).await;
    assert_eq!(root.model("m").await, 1);
    for case in REFUSED.lines().filter(|line| !line.is_empty()) {
        let parts: Vec<&str> = case.split(" | ").collect();
        let (code, field) = parts[2].split_once(' ').unwrap();
        let (status, response) = root
            .post(parts[0], serde_json::from_str(parts[1]).unwrap())
            .await;
        assert_eq!(status, 400, "{case}: {response}");
        let found = (
            response["code"].as_str().unwrap(),
            response["field"].as_str().unwrap(),
        );
        assert_eq!(found, (code, field), "{case}");
    }
    let long = "ä".repeat(1000);
    let query = json!({ "a": long, "b": long, "c": long });
    let backend = json!({ "api_base": "http://h", "extra_query": query });
    let (status, body) = root.post("/admin/models/1/backends", backend).await;
    assert_eq!((status, &body["field"]), (400, &json!("extra_query")));
    let short = json!({ "password": "short" });
    let path = "/admin/principals/1/password";
    let (status, body) = root.send(Method::PUT, path, short).await;
    assert_eq!((status, &body["field"]), (400, &json!("password")));
    let backend = json!({ "api_base": "http://h" });
    assert_eq!(root.post("/admin/models/99/backends", backend).await.0, 404);
    assert_eq!(root.get("/admin/models").await.as_array().unwrap().len(), 1);
}

/// `null` clears nullable fields; for other fields it is an error.
#[tokio::test]
async fn null_is_rejected_for_fields_that_cannot_be_cleared() {
    let (_database, control) = started().await;
    let root = control.session("root", PASSWORD).await;
    let id = root.model("m").await;
    let backend = json!({ "api_base": "http://h/v1" });
    let (_, backend) = root
        .post(&format!("/admin/models/{id}/backends"), backend)
        .await;
    let (key, _) = root.key("k", 1).await;
    let backend = format!("/admin/backends/{}", backend["id"]);
    let key = format!("/admin/keys/{key}");
    for (path, field) in [
        (backend.as_str(), "api_base"),
        (&backend, "upstream_model"),
        (&backend, "protocol"),
        (&backend, "auth_header"),
        (&backend, "draining"),
        (&backend, "queue_timeout_ms"),
        (&backend, "health_path"),
        (&key, "name"),
        (&key, "disabled"),
        ("/admin/principals/1", "disabled"),
    ] {
        let (status, body) = root.patch(path, json!({ field: null })).await;
        assert_eq!((status, &body["field"]), (400, &json!(field)), "{path}");
    }
}

/// Changing a backend's address must not send its stored credential to another host.
#[tokio::test]
async fn credentials_are_not_sent_to_another_host() {
    let (_database, control) = started().await;
    let root = control.session("root", PASSWORD).await;
    let id = root.model("m").await;
    let body = json!({ "api_base": "https://h/v1", "upstream_api_key": "secret" });
    let (_, made) = root
        .post(&format!("/admin/models/{id}/backends"), body)
        .await;
    let at = format!("/admin/backends/{}", made["id"]);
    for elsewhere in ["https://other/v1", "http://h/v1", "https://h:8443/v1"] {
        let (status, body) = root.patch(&at, json!({ "api_base": elsewhere })).await;
        assert_eq!(
            (status, &body["field"]),
            (400, &json!("upstream_api_key")),
            "{elsewhere}"
        );
    }
    for allowed in [
        json!({ "api_base": "https://h:443/v2" }),
        json!({ "api_base": "https://other/v1", "upstream_api_key": "secret" }),
        json!({ "api_base": "https://h/v1", "upstream_api_key": null }),
        json!({ "api_base": "https://other/v1" }),
    ] {
        assert_eq!(root.patch(&at, allowed.clone()).await.0, 204, "{allowed}");
    }
}

/// Extra headers may contain credentials: their values are never returned, nor sent to
/// another host.
#[tokio::test]
async fn extra_header_values_are_never_returned_or_sent_elsewhere() {
    let (database, control) = started().await;
    let root = control.session("root", PASSWORD).await;
    let id = root.model("m").await;
    let body = json!({
        "api_base": "https://h/v1",
        "extra_headers": { "Api-Key": "canary-extra-91c3", "x-team": "blue" },
    });
    let (status, made) = root
        .post(&format!("/admin/models/{id}/backends"), body)
        .await;
    assert_eq!(status, 201, "{made}");
    assert_eq!(made["extra_header_names"], json!(["api-key", "x-team"]));
    let at = format!("/admin/backends/{}", made["id"]);
    // The credential's header must not be one of the extra headers.
    let (status, body) = root.patch(&at, json!({ "auth_header": "api-key" })).await;
    assert_eq!((status, &body["field"]), (400, &json!("extra_headers")));
    let (status, body) = root
        .patch(&at, json!({ "api_base": "https://other/v1" }))
        .await;
    assert_eq!((status, &body["field"]), (400, &json!("extra_headers")));

    let everything = [
        root.get(&at).await.to_string(),
        root.get("/admin/models").await.to_string(),
        root.get("/admin/audit").await.to_string(),
        control.log(),
    ];
    assert!(everything.iter().all(|text| !text.contains("canary-extra")));
    let plain = "SELECT count(*) FROM model_backends \
                  WHERE position('canary'::bytea IN extra_headers) > 0";
    assert_eq!(database.number(plain).await, 0);

    for none in [json!(null), json!({})] {
        let given = json!({ "extra_headers": { "x-team": "blue" } });
        assert_eq!(root.patch(&at, given).await.0, 204);
        assert_eq!(root.get(&at).await["extra_header_names"], json!(["x-team"]));
        let change = json!({ "api_base": "https://other/v1", "extra_headers": none });
        assert_eq!(root.patch(&at, change).await.0, 204);
        assert_eq!(root.get(&at).await["extra_header_names"], json!([]));
    }
}

/// Rows that were imported with their IDs.
#[tokio::test]
async fn a_new_backend_never_overwrites_another() {
    let (database, control) = started().await;
    let root = control.session("root", PASSWORD).await;
    let id = root.model("m").await;
    database
        .execute(
            "INSERT INTO model_backends (id, model_id, api_base, upstream_model) \
             SELECT 1, id, 'http://first/v1', 'm' FROM models",
        )
        .await;
    let body = json!({ "api_base": "http://second/v1" });
    let path = format!("/admin/models/{id}/backends");
    assert_eq!(root.post(&path, body).await.0, 409);
    let kept = root.get("/admin/backends/1").await;
    assert_eq!(kept["api_base"], "http://first/v1");
}

#[tokio::test]
async fn every_error_response_is_json() {
    let (_database, control) = started().await;
    let root = control.session("root", PASSWORD).await;
    for (method, path, status, code) in [
        (Method::GET, "/nothing", 404, "not_found"),
        (Method::PUT, "/admin/models", 405, "method_not_allowed"),
        (Method::DELETE, "/healthz", 405, "method_not_allowed"),
        (Method::GET, "/admin/models/x", 400, "invalid_parameter"),
        (
            Method::GET,
            "/admin/models?limit=x",
            400,
            "invalid_parameter",
        ),
        (
            Method::GET,
            "/admin/models?limt=1",
            400,
            "invalid_parameter",
        ),
        (Method::GET, "/admin/models?limit=0", 400, "invalid_value"),
        (Method::GET, "/admin/audit?since=x", 400, "invalid_value"),
        (
            Method::GET,
            "/admin/audit?since=9999-12-31T23:59:59-23:00",
            400,
            "invalid_value",
        ),
        (
            Method::GET,
            "/admin/models/-9223372036854775808",
            404,
            "not_found",
        ),
        (Method::GET, "/admin/roles/%00", 400, "invalid_value"),
        (
            Method::GET,
            "/admin/usage/events?model=%00",
            400,
            "invalid_value",
        ),
    ] {
        let (got, body) = status_and_json(root.request(method, path)).await;
        assert_eq!(
            (got, &body["code"]),
            (status, &json!(code)),
            "{path}: {body}"
        );
        assert!(body["error"].is_string());
    }
    let json_type = "application/json; charset=utf-8";
    for (media, body, status, code) in [
        (json_type, "{".to_owned(), 400, "malformed_body"),
        ("text/plain", "{}".to_owned(), 415, "unsupported_media_type"),
        (json_type, " ".repeat(1 << 21), 413, "body_too_large"),
    ] {
        let post = root.request(Method::POST, "/admin/models");
        let (got, body) =
            status_and_json(post.header(header::CONTENT_TYPE, media).body(body)).await;
        assert_eq!((got, &body["code"]), (status, &json!(code)), "{body}");
    }
}

#[tokio::test]
async fn lists_link_to_the_next_page() {
    let (_database, control) = started().await;
    let root = control.session("root", PASSWORD).await;
    for number in 0..5 {
        root.key(&format!("k{number}"), 1).await;
    }
    let whole = root.get("/admin/keys").await;
    assert_eq!(whole.as_array().unwrap().len(), 5);
    let mut path = "/admin/keys?limit=2&principal_id=1".to_owned();
    let mut pages = Vec::new();
    loop {
        let response = root.request(Method::GET, &path).send().await.unwrap();
        let link = response
            .headers()
            .get(header::LINK)
            .map(|link| link.to_str().unwrap().to_owned());
        pages.extend(response.json::<Vec<Value>>().await.unwrap());
        let Some(link) = link else { break };
        let (next, relation) = link.split_once("; ").unwrap();
        assert_eq!(relation, "rel=\"next\"");
        path = next.trim_matches(['<', '>']).to_owned();
    }
    assert_eq!(Value::from(pages), whole);
    // Newest first; `before` continues the list.
    let newest = root.get("/admin/audit?limit=2").await;
    let older = root
        .get(&format!("/admin/audit?limit=2&before={}", newest[1]["id"]))
        .await;
    assert!(older[0]["id"].as_i64().unwrap() < newest[1]["id"].as_i64().unwrap());
}

#[tokio::test]
async fn keys_expire_by_default() {
    let (_database, control) = started().await;
    let root = control.session("root", PASSWORD).await;
    let (id, key) = root.key("default", 1).await;
    assert!(key.starts_with("sk-") && key.len() == 67);
    let view = root.get(&format!("/admin/keys/{id}")).await;
    assert_eq!(view["prefix"], key[..11]);
    assert_eq!(view["principal"], "bootstrap");
    let days = |view: &Value, field: &str| {
        let format = &time::format_description::well_known::Rfc3339;
        time::OffsetDateTime::parse(view[field].as_str().unwrap(), format).unwrap()
    };
    let lifetime = days(&view, "expires_at") - days(&view, "created_at");
    assert!((lifetime - time::Duration::days(90)).abs() < time::Duration::minutes(1));

    let body = json!({ "name": "for ever", "principal_id": 1, "expires_at": null });
    let (_, made) = root.post("/admin/keys", body).await;
    assert_eq!(made["expires_at"], Value::Null);
    let path = format!("/admin/keys/{id}");
    assert_eq!(
        root.patch(&path, json!({ "expires_at": null, "name": "renamed" }))
            .await
            .0,
        204
    );
    assert_eq!(root.delete(&path).await.0, 204);
    let view = root.get(&path).await;
    assert_eq!(
        (&view["expires_at"], &view["name"], &view["disabled"]),
        (&Value::Null, &json!("renamed"), &json!(true))
    );
    assert_eq!(root.patch(&path, json!({ "disabled": false })).await.0, 204);
    assert_eq!(root.get(&path).await["disabled"], false);
    assert_eq!(root.delete("/admin/keys/999").await.0, 404);
}

#[tokio::test]
async fn roles_in_use_cannot_be_deleted() {
    let (_database, control) = started().await;
    let root = control.session("root", PASSWORD).await;
    let (status, _) = root
        .post(
            "/admin/roles",
            json!({ "name": "team", "description": "d" }),
        )
        .await;
    assert_eq!(status, 201);
    assert_eq!(
        root.post("/admin/roles", json!({ "name": "team" })).await.0,
        409
    );
    let grant = json!({ "verb": "model:invoke", "resource": "model/Qwen/*" });
    for _ in 0..2 {
        assert_eq!(
            root.post("/admin/roles/team/permissions", grant.clone())
                .await
                .0,
            204
        );
    }
    assert_eq!(
        root.get("/admin/roles/team").await["permissions"],
        json!([grant])
    );
    assert_eq!(
        root.post("/admin/principals/1/roles", json!({ "role": "team" }))
            .await
            .0,
        204
    );
    let (status, body) = root.delete("/admin/roles/team").await;
    assert_eq!((status, &body["code"]), (409, &json!("in_use")));
    assert_eq!(root.delete("/admin/principals/1/roles/team").await.0, 204);
    assert_eq!(root.delete("/admin/principals/1/roles/team").await.0, 404);
    for _ in 0..2 {
        let revoked = root
            .send(
                Method::DELETE,
                "/admin/roles/team/permissions",
                grant.clone(),
            )
            .await;
        assert_eq!(revoked.0, 204);
    }
    assert_eq!(root.delete("/admin/roles/team").await.0, 204);
    assert_eq!(
        root.post("/admin/roles/team/permissions", grant).await.0,
        404
    );
}

#[tokio::test]
async fn seeded_roles_and_settings() {
    let (_database, control) = started().await;
    let root = control.session("root", PASSWORD).await;
    let principals = root.get("/admin/principals").await;
    assert_eq!(principals[0]["id"], 1);
    assert_eq!(principals[0]["name"], "bootstrap");
    assert_eq!(principals[0]["roles"], json!(["inference"]));
    assert_eq!(principals[0]["has_password"], false);
    assert_eq!(principals[1]["name"], "root");
    assert_eq!(principals[1]["kind"], "user");
    assert_eq!(principals[1]["roles"], json!(["admin"]));
    let names = async |root: &Session<'_>| {
        let roles = root.get("/admin/roles").await;
        roles
            .as_array()
            .unwrap()
            .iter()
            .map(|role| role["name"].clone())
            .collect::<Vec<_>>()
    };
    assert_eq!(names(&root).await, ["admin", "operator", "inference"]);
    let config = root.get("/admin/config").await;
    assert_eq!(
        (&config["you"], &config["role"]),
        (&json!("root"), &json!("control"))
    );
}

#[tokio::test]
async fn openapi_document_is_up_to_date() {
    let document = fastllm_control::openapi_document().unwrap();
    let checked_in = include_str!("../../../docs/reference/openapi.json");
    assert!(
        document == checked_in,
        "the API has changed: fastllm-control openapi > docs/reference/openapi.json"
    );
    let mut names: Vec<&str> = document
        .lines()
        .filter_map(|line| line.trim().strip_prefix("\"operationId\": "))
        .collect();
    let operations = names.len();
    names.sort_unstable();
    names.dedup();
    assert!(operations > 30 && names.len() == operations, "{names:?}");
    let (_database, control) = started().await;
    let (_, served) = status_and_json(control.get("/openapi.json")).await;
    assert_eq!(served, serde_json::from_str::<Value>(&document).unwrap());
}

#[tokio::test]
async fn metrics_count_logins_requests_and_notifications() {
    let (_database, control) = started().await;
    control.login("root", "wrong-password").await;
    let root = control.session("root", PASSWORD).await;
    root.model("m").await;
    let text = eventually("the listener is there", async || {
        let text = control
            .get("/metrics")
            .send()
            .await
            .unwrap()
            .text()
            .await
            .unwrap();
        text.contains("fastllm_control_database_notifications 1")
            .then_some(text)
    })
    .await;
    for line in [
        "fastllm_control_logins_total{outcome=\"failed\"} 1",
        "fastllm_control_logins_total{outcome=\"succeeded\"} 1",
        "fastllm_control_http_requests_total{class=\"2xx\",method=\"POST\",route=\"/admin/models\"} 1",
        "fastllm_control_database_up 1",
        "fastllm_control_snapshot_build_failures_total 0",
    ] {
        assert!(text.contains(line), "{line} is not in\n{text}");
    }
}
