//! Concurrent changes between two steps of one request.

use reqwest::Method;
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::harness::{
    Control, Database, PASSWORD, Session, WAITING, command, eventually, set_password, started,
    status_and_json,
};
use crate::proxy::Proxy;

async fn principal(session: &Session<'_>, name: &str) -> i64 {
    let all = session.get("/admin/principals").await;
    let found = all.as_array().unwrap().iter().find(|p| p["name"] == name);
    found.unwrap()["id"].as_i64().unwrap()
}

/// A password that is replaced while it is verified starts no session.
#[tokio::test]
async fn login_with_a_replaced_password_starts_no_session() {
    let (database, control) = started().await;
    for change in [
        "UPDATE principals SET password_hash = password_hash || ' ' WHERE name = 'root'",
        "UPDATE principals SET disabled = true WHERE name = 'root'",
    ] {
        let mut transaction = database.pool.begin().await.unwrap();
        sqlx::query(change)
            .execute(&mut *transaction)
            .await
            .unwrap();
        let login = control.login("root", PASSWORD);
        let overtaken = async {
            eventually("the login waits, or is done", async || {
                let sessions = database.number("SELECT count(*) FROM sessions").await;
                (database.number(WAITING).await + sessions > 0).then_some(())
            })
            .await;
            transaction.commit().await.unwrap();
        };
        let (response, ()) = tokio::join!(login, overtaken);
        assert_eq!(response.status(), 401, "{change}");
        assert_eq!(database.number("SELECT count(*) FROM sessions").await, 0);
        database
            .execute("UPDATE principals SET password_hash = rtrim(password_hash)")
            .await;
    }
}

#[tokio::test]
async fn concurrent_failed_logins_are_throttled() {
    let (_database, control) = started().await;
    let guesses = (0..40).map(|_| async {
        let response = control.login("root", "wrong-password").await;
        response.status().as_u16()
    });
    let statuses = futures_util::future::join_all(guesses).await;
    let tried = statuses.iter().filter(|status| **status == 401).count();
    let throttled = statuses.iter().filter(|status| **status == 429).count();
    // Five failures are free, as are attempts that are being verified.
    assert!((5..=7).contains(&tried), "{tried} guesses were looked at");
    assert_eq!(tried + throttled, 40, "{statuses:?}");
}

/// The body may arrive long after the permission was checked.
#[tokio::test]
async fn revoked_permission_is_detected_before_the_change() {
    let (database, control) = started().await;
    assert!(set_password(&database, "second", &[]).status.success());
    let root = control.session("root", PASSWORD).await;
    let second = control.session("second", PASSWORD).await;
    let path = format!(
        "/admin/principals/{}/roles",
        principal(&root, "second").await
    );

    let body = json!({ "role": "admin" }).to_string();
    let address = control.base.strip_prefix("http://").unwrap();
    let mut stream = TcpStream::connect(address).await.unwrap();
    let head = format!(
        "POST {path} HTTP/1.1\r\nhost: control\r\ncookie: {}\r\nconnection: close\r\n\
         content-type: application/json\r\ncontent-length: {}\r\nexpect: 100-continue\r\n\r\n",
        second.cookie,
        body.len()
    );
    stream.write_all(head.as_bytes()).await.unwrap();
    let mut go_on = [0; 25];
    stream.read_exact(&mut go_on).await.unwrap();
    assert_eq!(&go_on, b"HTTP/1.1 100 Continue\r\n\r\n");

    assert_eq!(root.delete(&format!("{path}/admin")).await.0, 204);
    stream.write_all(body.as_bytes()).await.unwrap();
    let mut response = String::new();
    stream.read_to_string(&mut response).await.unwrap();
    assert!(response.starts_with("HTTP/1.1 403 "), "{response}");
    let roles = root.get(path.trim_end_matches("/roles")).await["roles"].clone();
    assert_eq!(roles, json!([]));
}

#[tokio::test]
async fn concurrent_removals_keep_one_administrator() {
    let (database, first) = started().await;
    assert!(set_password(&database, "second", &[]).status.success());
    let other = Control::start(&database).await;
    let root = first.session("root", PASSWORD).await;
    let second = other.session("second", PASSWORD).await;
    let path = async |session: &Session<'_>, name: &str| {
        let id = principal(session, name).await;
        format!("/admin/principals/{id}/roles/admin")
    };
    let (one, two) = (path(&root, "root").await, path(&second, "second").await);
    let (one, two) = tokio::join!(root.delete(&one), second.delete(&two));
    let mut statuses = [one.0, two.0];
    statuses.sort_unstable();
    assert_eq!(statuses, [204, 409], "{one:?} {two:?}");
}

/// As if the database host vanished silently and another took over its address.
#[tokio::test]
async fn silent_database_connections_are_released() {
    let (database, _) = started().await;
    let mut proxy = Proxy::new(&database).await;
    proxy.open().await;
    let mut command = command(&database.url(Some(proxy.address)));
    command.env("FASTLLM_DATABASE_ADMIN_CONNECTIONS", "1");
    let control = Control::launch_command(command, &[], "http").await;
    control.ready().await;
    let root = control.session("root", PASSWORD).await;

    let mut transaction = database.pool.begin().await.unwrap();
    sqlx::query("SELECT FROM config_state FOR UPDATE")
        .execute(&mut *transaction)
        .await
        .unwrap();
    tokio::select! {
        _ = root.model("given up") => panic!("the configuration is locked"),
        () = eventually("the change waits", async || {
            (database.number(WAITING).await > 0).then_some(())
        }) => proxy.freeze(),
    }
    transaction.rollback().await.unwrap();
    eventually("a connection is available again", async || {
        let (status, _) = status_and_json(root.request(Method::GET, "/admin/models")).await;
        (status == 200).then_some(())
    })
    .await;
}

/// A request that waits too long for a lock gets a retryable error.
#[tokio::test]
async fn lock_timeouts_are_reported_as_unavailable() {
    let (database, control): (Database, Control) = started().await;
    let root = control.session("root", PASSWORD).await;
    let mut transaction = database.pool.begin().await.unwrap();
    sqlx::query("SELECT FROM config_state FOR UPDATE")
        .execute(&mut *transaction)
        .await
        .unwrap();
    let (status, body) = root.post("/admin/models", json!({ "name": "m" })).await;
    assert_eq!(
        (status, &body["code"]),
        (503, &json!("database_unavailable"))
    );
}
