use reqwest::{Method, StatusCode, header};
use serde_json::json;

use crate::harness::{
    PASSWORD, Session, TOKEN, eventually, set_password, started, status_and_json,
};

#[tokio::test]
async fn login_sets_a_strict_cookie_and_logout_clears_it() {
    let (_database, control) = started().await;
    let response = control.login("root", PASSWORD).await;
    let cookie = response.headers()[header::SET_COOKIE]
        .to_str()
        .unwrap()
        .to_owned();
    let (pair, attributes) = cookie.split_once("; ").unwrap();
    assert_eq!(
        attributes,
        "HttpOnly; SameSite=Strict; Path=/; Max-Age=43200"
    );
    let token = pair.strip_prefix("fastllm_session=sess-").unwrap();
    assert!(token.len() == 64 && token.bytes().all(|byte| byte.is_ascii_hexdigit()));
    assert_eq!(
        response.json::<serde_json::Value>().await.unwrap(),
        json!({ "name": "root" })
    );

    let root = control.session("root", PASSWORD).await;
    root.get("/admin/models").await;
    let (status, _) = status_and_json(root.request(Method::POST, "/logout")).await;
    assert_eq!(status, 204);
    let (status, body) = status_and_json(root.request(Method::GET, "/admin/models")).await;
    assert_eq!((status, &body["code"]), (401, &json!("unauthenticated")));
}

#[tokio::test]
async fn wrong_names_and_passwords_are_indistinguishable_and_throttled() {
    let (_database, control) = started().await;
    let unknown = control.login("nobody", "wrong-password").await;
    let wrong = control.login("root", "wrong-password").await;
    assert_eq!(unknown.status(), StatusCode::UNAUTHORIZED);
    assert_eq!(wrong.status(), StatusCode::UNAUTHORIZED);
    assert_eq!(unknown.text().await.unwrap(), wrong.text().await.unwrap());
    // The seeded principal has no password.
    assert_eq!(
        control.login("bootstrap", "").await.status(),
        StatusCode::UNAUTHORIZED
    );
    for _ in 0..4 {
        control.login("root", "wrong-password").await;
    }
    let throttled = control.login("root", PASSWORD).await;
    assert_eq!(throttled.status(), StatusCode::TOO_MANY_REQUESTS);
    let wait: u64 = throttled.headers()[header::RETRY_AFTER]
        .to_str()
        .unwrap()
        .parse()
        .unwrap();
    assert!((1..=60).contains(&wait));
    eventually("the wait is over", async || {
        (control.login("root", PASSWORD).await.status() == StatusCode::OK).then_some(())
    })
    .await;
}

/// Unauthenticated clients cannot send large bodies.
#[tokio::test]
async fn login_bodies_are_small() {
    let (_database, control) = started().await;
    let long = control.login("root", &"x".repeat(100_000)).await;
    assert_eq!(long.status(), StatusCode::PAYLOAD_TOO_LARGE);
    assert_eq!(long.headers()[header::CONNECTION], "close");
    let odd = control.login("ro\0ot", PASSWORD).await;
    assert_eq!(odd.status(), StatusCode::BAD_REQUEST);
}

/// Pages of another port of the same host belong to the same site, so their requests
/// carry the cookie.
#[tokio::test]
async fn changes_from_pages_of_other_origins_are_rejected() {
    let (_database, control) = started().await;
    let root = control.session("root", PASSWORD).await;
    for (site, path, status) in [
        ("cross-site", "/admin/sessions/revoke-all", 403),
        ("same-site", "/admin/sessions/revoke-all", 403),
        ("same-site", "/logout", 403),
        ("same-site", "/login", 403),
        ("same-origin", "/admin/snapshot/rebuild", 200),
    ] {
        let request = root.request(Method::POST, path);
        let (got, body) = status_and_json(request.header("sec-fetch-site", site)).await;
        assert_eq!(got, status, "{site} {path}: {body}");
    }
    // Browsers without that header send the origin.
    for (origin, status) in [
        ("http://elsewhere", 403),
        ("null", 403),
        (&*control.base, 200),
    ] {
        let request = root.request(Method::POST, "/admin/snapshot/rebuild");
        let (got, body) = status_and_json(request.header("origin", origin)).await;
        assert_eq!(got, status, "{origin}: {body}");
    }
    let read = root.request(Method::GET, "/admin/models");
    assert_eq!(
        status_and_json(read.header("sec-fetch-site", "same-site"))
            .await
            .0,
        200
    );
}

/// Every documented route with a permission rejects callers without a session, and
/// callers whose roles lack the permission.
#[tokio::test]
async fn every_route_checks_its_documented_permission() {
    let (_database, control) = started().await;
    let root = control.session("root", PASSWORD).await;
    let (_, made) = root
        .post("/admin/principals", json!({ "name": "weak" }))
        .await;
    let path = format!("/admin/principals/{}/password", made["id"]);
    let password = json!({ "password": PASSWORD });
    assert_eq!(root.send(Method::PUT, &path, password).await.0, 204);
    let weak = control.session("weak", PASSWORD).await;

    let (_, document) = status_and_json(control.get("/openapi.json")).await;
    let mut guarded = 0;
    for (path, operations) in document["paths"].as_object().unwrap() {
        for (method, operation) in operations.as_object().unwrap() {
            let open = path == "/login" || path == "/logout";
            assert_eq!(operation.get("security").is_none(), open, "{method} {path}");
            if open {
                continue;
            }
            guarded += 1;
            let verb = operation["security"][0]["session"][0].as_str().unwrap();
            let method: Method = method.to_uppercase().parse().unwrap();
            let url = path
                .replace("{id}", "1")
                .replace("{role}", "x")
                .replace("{name}", "x");
            let anonymous = control
                .client
                .request(method.clone(), format!("{}{url}", control.base));
            assert_eq!(status_and_json(anonymous).await.0, 401, "{method} {path}");
            let (status, body) = status_and_json(weak.request(method.clone(), &url)).await;
            assert_eq!(status, 403, "{method} {path}: {body}");
            assert!(
                body["error"].as_str().unwrap().contains(verb),
                "{method} {path}: {body}"
            );
        }
    }
    assert!(guarded > 30, "only {guarded}");
}

#[tokio::test]
async fn each_permission_grants_only_its_routes() {
    let (_database, control) = started().await;
    let root = control.session("root", PASSWORD).await;
    let (_, made) = root
        .post("/admin/principals", json!({ "name": "clerk" }))
        .await;
    let clerk_id = made["id"].as_i64().unwrap();
    let (status, _) = root.post("/admin/roles", json!({ "name": "clerks" })).await;
    assert_eq!(status, 201);
    for verb in ["key:create", "usage:read"] {
        let (status, _) = root
            .post("/admin/roles/clerks/permissions", json!({ "verb": verb }))
            .await;
        assert_eq!(status, 204);
    }
    let path = format!("/admin/principals/{clerk_id}");
    assert_eq!(
        root.post(&format!("{path}/roles"), json!({ "role": "clerks" }))
            .await
            .0,
        204
    );
    let body = json!({ "password": PASSWORD });
    assert_eq!(
        root.send(Method::PUT, &format!("{path}/password"), body)
            .await
            .0,
        204
    );

    let clerk = control.session("clerk", PASSWORD).await;
    let (key, _) = clerk.key("made by a clerk", clerk_id).await;
    assert_eq!(clerk.delete(&format!("/admin/keys/{key}")).await.0, 403);
    assert_eq!(
        clerk.post("/admin/models", json!({ "name": "m" })).await.0,
        403
    );
    clerk.get("/admin/audit").await;
    // Revoking the permission takes effect within the session.
    assert_eq!(root.delete(&format!("{path}/roles/clerks")).await.0, 204);
    assert_eq!(
        status_and_json(clerk.request(Method::GET, "/admin/audit"))
            .await
            .0,
        403
    );
}

#[tokio::test]
async fn sessions_end_on_password_change_disabling_and_demand() {
    let (_database, control) = started().await;
    let root = control.session("root", PASSWORD).await;
    let (_, made) = root
        .post("/admin/principals", json!({ "name": "other" }))
        .await;
    let path = format!("/admin/principals/{}", made["id"]);
    assert_eq!(
        root.post(&format!("{path}/roles"), json!({ "role": "operator" }))
            .await
            .0,
        204
    );
    let password = json!({ "password": PASSWORD });
    let set = async || {
        root.send(Method::PUT, &format!("{path}/password"), password.clone())
            .await
            .0
    };
    let alive = async |session: &Session<'_>| {
        status_and_json(session.request(Method::GET, "/admin/health"))
            .await
            .0
            == 200
    };
    assert_eq!(set().await, 204);
    let first = control.session("other", PASSWORD).await;
    assert!(alive(&first).await);
    assert_eq!(set().await, 204);
    assert!(!alive(&first).await);

    let second = control.session("other", PASSWORD).await;
    assert_eq!(root.patch(&path, json!({ "disabled": true })).await.0, 204);
    assert!(!alive(&second).await);
    assert_eq!(
        control.login("other", PASSWORD).await.status(),
        StatusCode::UNAUTHORIZED
    );
    assert_eq!(root.patch(&path, json!({ "disabled": false })).await.0, 204);
    assert!(!alive(&second).await);

    let third = control.session("other", PASSWORD).await;
    let (status, body) =
        status_and_json(root.request(Method::POST, "/admin/sessions/revoke-all")).await;
    assert_eq!(
        (status, body),
        (200, json!({ "revoked": 2, "includes_caller": true }))
    );
    assert!(!alive(&third).await && !alive(&root).await);
}

#[tokio::test]
async fn number_of_sessions_per_principal_is_bounded() {
    let (database, control) = started().await;
    database
        .execute(
            "INSERT INTO sessions (token_hash, principal_id, created_at, expires_at) \
             SELECT sha256(n::text::bytea), 2, now() - interval '1 h', now() + interval '1 h' \
               FROM generate_series(1, 60) AS n",
        )
        .await;
    let root = control.session("root", PASSWORD).await;
    assert_eq!(database.number("SELECT count(*) FROM sessions").await, 50);
    root.get("/admin/health").await;
}

#[tokio::test]
async fn the_last_administrator_cannot_be_removed() {
    let (database, control) = started().await;
    let root = control.session("root", PASSWORD).await;
    let id = root.get("/admin/principals").await[1]["id"]
        .as_i64()
        .unwrap();
    let path = format!("/admin/principals/{id}");
    let permission = json!({ "verb": "config:write" });
    let strip = async || {
        root.send(
            Method::DELETE,
            "/admin/roles/admin/permissions",
            permission.clone(),
        )
        .await
    };
    for (status, body) in [
        root.delete(&path).await,
        root.patch(&path, json!({ "disabled": true })).await,
        root.delete(&format!("{path}/roles/admin")).await,
        strip().await,
    ] {
        assert_eq!((status, &body["code"]), (409, &json!("last_administrator")));
    }
    // A principal that cannot log in does not count.
    root.post("/admin/principals/1/roles", json!({ "role": "admin" }))
        .await;
    assert_eq!(root.delete(&path).await.0, 409);
    assert!(set_password(&database, "second", &[]).status.success());
    assert_eq!(root.delete(&format!("{path}/roles/admin")).await.0, 204);
}

#[tokio::test]
async fn proxy_token_grants_access_to_gateway_routes_only() {
    let (_database, control) = started().await;
    for path in ["/snapshot", "/usage", "/health-report"] {
        let method = if path == "/snapshot" {
            Method::GET
        } else {
            Method::POST
        };
        for token in ["", "wrong", &TOKEN[..TOKEN.len() - 1], &format!("{TOKEN}x")] {
            let url = format!("{}{path}", control.base);
            let request = control
                .client
                .request(method.clone(), url)
                .bearer_auth(token);
            assert_eq!(status_and_json(request).await.0, 401, "{path} {token}");
        }
        let bare = control
            .client
            .request(method, format!("{}{path}", control.base));
        assert_eq!(status_and_json(bare).await.0, 401, "{path}");
    }
    assert_eq!(
        status_and_json(control.as_gateway(Method::GET, "/admin/models"))
            .await
            .0,
        401
    );
    let root = control.session("root", PASSWORD).await;
    assert_eq!(
        status_and_json(root.request(Method::GET, "/snapshot"))
            .await
            .0,
        401
    );
}
