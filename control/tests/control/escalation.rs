//! Nobody can give, or obtain, permissions that they do not have.

use reqwest::Method;
use serde_json::{Value, json};

use crate::harness::{Control, PASSWORD, Session, started};

/// Creates a principal with a password and a role of these permissions, each
/// `verb on resource`, and returns its ID.
async fn principal(root: &Session<'_>, name: &str, permissions: &[&str]) -> i64 {
    let (status, made) = root
        .post("/admin/principals", json!({ "name": name }))
        .await;
    assert_eq!(status, 201, "{made}");
    let id = made["id"].as_i64().unwrap();
    let (status, made) = root.post("/admin/roles", json!({ "name": name })).await;
    assert_eq!(status, 201, "{made}");
    for permission in permissions {
        let (verb, resource) = permission.split_once(" on ").unwrap();
        let body = json!({ "verb": verb, "resource": resource });
        let path = format!("/admin/roles/{name}/permissions");
        assert_eq!(root.post(&path, body).await.0, 204, "{permission}");
    }
    let path = format!("/admin/principals/{id}");
    let role = json!({ "role": name });
    assert_eq!(root.post(&format!("{path}/roles"), role).await.0, 204);
    let password = json!({ "password": PASSWORD });
    assert_eq!(root.put(&format!("{path}/password"), password).await.0, 204);
    id
}

/// A request and the status that it must have.
type Attempt = (Method, String, Value, u16);

async fn attempt(control: &Control, caller: &str, attempts: Vec<Attempt>) {
    let session = control.session(caller, PASSWORD).await;
    for (method, path, body, expected) in attempts {
        let (status, reply) = session.send(method.clone(), &path, body.clone()).await;
        assert_eq!(
            status, expected,
            "{caller}: {method} {path} {body}: {reply}"
        );
        if expected == 403 {
            assert_eq!(reply["code"], "permission_denied", "{reply}");
        }
    }
}

fn grant(verb: &str, resource: &str) -> Value {
    json!({ "verb": verb, "resource": resource })
}

fn role(name: &str) -> Value {
    json!({ "role": name })
}

fn password() -> Value {
    json!({ "password": PASSWORD })
}

fn key_of(id: i64) -> Value {
    json!({ "name": "k", "principal_id": id })
}

fn of(id: i64, what: &str) -> String {
    format!("/admin/principals/{id}/{what}")
}

/// The ID of the administrator who made the others.
async fn root_id(root: &Session<'_>) -> i64 {
    let all = root.get("/admin/principals").await;
    let mut all = all.as_array().unwrap().iter();
    let found = all.find(|one| one["name"] == "root").unwrap();
    found["id"].as_i64().unwrap()
}

#[tokio::test]
async fn config_write_gives_no_other_permission() {
    let (_database, control) = started().await;
    let root = control.session("root", PASSWORD).await;
    let none = principal(&root, "none", &[]).await;
    principal(&root, "user", &["model:invoke on model/ab"]).await;
    let caller = principal(&root, "writer", &["config:write on *"]).await;
    let permissions = "/admin/roles/writer/permissions".to_owned();
    let attempts = vec![
        (Method::POST, of(caller, "roles"), role("admin"), 403),
        (Method::POST, of(caller, "roles"), role("user"), 403),
        (Method::POST, of(none, "roles"), role("writer"), 204),
        (
            Method::POST,
            permissions.clone(),
            grant("key:create", "*"),
            403,
        ),
        (
            Method::POST,
            permissions.clone(),
            grant("password:set", "*"),
            403,
        ),
        (
            Method::POST,
            permissions.clone(),
            grant("model:invoke", "model/a"),
            403,
        ),
        (Method::POST, permissions, grant("config:write", "*"), 204),
        (
            Method::PUT,
            of(root_id(&root).await, "password"),
            password(),
            403,
        ),
        (Method::PUT, of(none, "password"), password(), 403),
        // Its own password, which ends its session.
        (Method::PUT, of(caller, "password"), password(), 204),
    ];
    attempt(&control, "writer", attempts).await;
}

#[tokio::test]
async fn config_write_brings_no_access_of_others_back() {
    let (_database, control) = started().await;
    let root = control.session("root", PASSWORD).await;
    let user = principal(&root, "user", &["model:invoke on model/ab"]).await;
    let (key, _) = root.key("of user", user).await;
    let key = format!("/admin/keys/{key}");
    assert_eq!(root.delete(&key).await.0, 204);
    let former = principal(&root, "former", &["password:set on *"]).await;
    let former = format!("/admin/principals/{former}");
    let disabled = json!({ "disabled": true });
    assert_eq!(root.patch(&former, disabled).await.0, 204);
    principal(&root, "writer", &["config:write on *"]).await;
    let enable = || json!({ "disabled": false });
    let attempts = vec![
        (Method::PATCH, former.clone(), enable(), 403),
        (
            Method::PATCH,
            former,
            json!({ "email": "a@example.com" }),
            204,
        ),
        (Method::PATCH, key.clone(), enable(), 403),
        (
            Method::PATCH,
            key.clone(),
            json!({ "expires_at": null }),
            403,
        ),
        (
            Method::PATCH,
            key.clone(),
            json!({ "name": "renamed" }),
            204,
        ),
    ];
    attempt(&control, "writer", attempts).await;
    let permissions = ["config:write on *", "model:invoke on model/a*"];
    principal(&root, "owner", &permissions).await;
    attempt(&control, "owner", vec![(Method::PATCH, key, enable(), 204)]).await;
}

#[tokio::test]
async fn keys_are_made_by_those_who_have_what_the_keys_permit() {
    let (_database, control) = started().await;
    let root = control.session("root", PASSWORD).await;
    let none = principal(&root, "none", &[]).await;
    let user = principal(&root, "user", &["model:invoke on model/ab"]).await;
    let clerk = principal(&root, "clerk", &["key:create on *"]).await;
    let permissions = [
        "config:write on *",
        "key:create on *",
        "model:invoke on model/a*",
    ];
    principal(&root, "owner", &permissions).await;
    let keys = "/admin/keys".to_owned();
    let attempts = vec![
        (
            Method::POST,
            keys.clone(),
            key_of(root_id(&root).await),
            403,
        ),
        (Method::POST, keys.clone(), key_of(user), 403),
        (Method::POST, keys.clone(), key_of(none), 200),
        (Method::POST, keys.clone(), key_of(clerk), 200),
    ];
    attempt(&control, "clerk", attempts).await;
    let permissions = "/admin/roles/owner/permissions".to_owned();
    let attempts = vec![
        (
            Method::POST,
            permissions.clone(),
            grant("model:invoke", "model/ab*"),
            204,
        ),
        (
            Method::POST,
            permissions.clone(),
            grant("model:invoke", "model/*"),
            403,
        ),
        (Method::POST, permissions, grant("mcp:invoke", "mcp/a"), 403),
        (Method::POST, keys, key_of(user), 200),
    ];
    attempt(&control, "owner", attempts).await;
}

#[tokio::test]
async fn passwords_of_others_need_a_permission_and_theirs() {
    let (_database, control) = started().await;
    let root = control.session("root", PASSWORD).await;
    let user = principal(&root, "user", &["model:invoke on model/ab"]).await;
    let writer = principal(&root, "writer", &["config:write on *"]).await;
    let permissions = ["config:write on *", "password:set on *"];
    principal(&root, "keeper", &permissions).await;
    let attempts = vec![
        (
            Method::PUT,
            of(root_id(&root).await, "password"),
            password(),
            403,
        ),
        (Method::PUT, of(user, "password"), password(), 403),
        (Method::PUT, of(writer, "password"), password(), 204),
    ];
    attempt(&control, "keeper", attempts).await;
}
