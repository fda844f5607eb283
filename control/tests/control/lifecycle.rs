use std::net::SocketAddr;
use std::process::Output;
use std::time::Duration;

use reqwest::{Method, StatusCode, header};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::harness::{
    Control, Database, PASSWORD, command, eventually, set_password, started, status_and_json,
};
use crate::proxy::Proxy;

async fn readiness(control: &Control) -> (u16, Value) {
    status_and_json(control.get("/readyz")).await
}

#[tokio::test]
async fn control_starts_without_a_database_and_becomes_ready_once_there_is_one() {
    let database = Database::create().await;
    let mut proxy = Proxy::new(&database).await;
    let control = Control::launch(&database.url(Some(proxy.address)), &[]).await;
    assert_ne!(readiness(&control).await.1["database"], "ok");
    let (status, body) = eventually("the missing database is reported", async || {
        Some(readiness(&control).await).filter(|(_, body)| {
            body["database"]
                .as_str()
                .unwrap()
                .starts_with("unreachable")
        })
    })
    .await;
    assert_eq!(status, 503, "{body}");
    assert_eq!(status_and_json(control.get("/livez")).await.0, 200);
    let (status, body) = status_and_json(control.as_gateway(Method::GET, "/snapshot")).await;
    assert_eq!((status, &body["code"]), (503, &json!("no_snapshot")));
    proxy.open().await;
    control.ready().await;
}

/// Something else than PostgreSQL: sends `reply` to what it receives, and closes.
async fn other_server(reply: &'static [u8]) -> (SocketAddr, JoinSet<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let mut tasks = JoinSet::new();
    tasks.spawn(async move {
        loop {
            let (mut stream, _) = listener.accept().await.unwrap();
            // The client may have closed the connection.
            let _ = stream.read(&mut [0; 512]).await;
            let _ = stream.write_all(reply).await;
        }
    });
    (address, tasks)
}

#[tokio::test]
async fn control_waits_for_postgresql_and_names_what_is_in_its_place() {
    let other = "unreachable: the peer does not respond like PostgreSQL";
    let closed = "unreachable: the peer closed the connection";
    for (reply, reason) in [
        (&b"HTTP/1.1 503 Service Unavailable\r\n\r\n"[..], other),
        (b"SSH-2.0-OpenSSH_9.2\r\n", other),
        (b"\x00\x00\x00\x00\xff\xff\xff\xff", other),
        (b"", other),
        // An agreement not to use TLS, and no more.
        (b"N", closed),
    ] {
        let database = Database::create().await;
        let (address, server) = other_server(reply).await;
        let mut control = Control::launch(&database.url(Some(address)), &[]).await;
        let body = eventually("the reason is reported", async || {
            let (status, body) = readiness(&control).await;
            assert_eq!(status, 503, "{body}");
            let text = body["database"].as_str().unwrap().to_owned();
            text.contains(reason).then_some(body)
        });
        let body = body.await;
        assert!(!body.to_string().contains("127.0.0.1"), "{body}");
        drop(server);
        control.terminate();
        assert_eq!(control.exit_code().await, Some(0), "{}", control.log());
    }
}

#[tokio::test]
async fn control_survives_database_outages() {
    let (database, _) = started().await;
    let mut proxy = Proxy::new(&database).await;
    proxy.open().await;
    let control = Control::launch(&database.url(Some(proxy.address)), &[]).await;
    control.ready().await;
    let root = control.session("root", PASSWORD).await;
    root.model("before").await;
    let snapshot = status_and_json(control.as_gateway(Method::GET, "/snapshot")).await;

    proxy.cut().await;
    let body = eventually("the outage is reported", async || {
        let (status, body) = readiness(&control).await;
        assert_eq!(status, 200, "{body}");
        (body["database"] != "ok").then_some(body)
    })
    .await;
    let text = body["database"].as_str().unwrap();
    assert!(
        text.starts_with("unreachable: ") && !text.contains("127.0.0.1"),
        "{text}"
    );
    // Gateways are still served; one with a newer snapshot keeps it.
    assert_eq!(
        status_and_json(control.as_gateway(Method::GET, "/snapshot")).await,
        snapshot
    );
    let ahead = control
        .as_gateway(Method::GET, "/snapshot?wait=100ms")
        .header(header::IF_NONE_MATCH, "\"999999-0123456789abcdef\"");
    let ahead = ahead.send().await.unwrap();
    assert_eq!(ahead.status(), StatusCode::NOT_MODIFIED);
    // An entity tag would assign the served version to its different content.
    assert_eq!(ahead.headers().get(header::ETAG), None);
    // Sessions and tokens are not rejected as invalid. A refused connection is known at
    // once, before the timeout of three seconds for a connection.
    for _ in 0..3 {
        let request = status_and_json(root.request(Method::GET, "/admin/models"));
        let reply = timeout(Duration::from_secs(2), request).await;
        let (status, body) = reply.unwrap();
        assert_eq!(
            (status, &body["code"]),
            (503, &json!("database_unavailable"))
        );
    }
    let empty = json!({ "replica": "r", "boot_id": "b", "sequence": 1, "events": [] });
    let usage = control.as_gateway(Method::POST, "/usage").json(&empty);
    assert_eq!(
        usage.send().await.unwrap().status(),
        StatusCode::SERVICE_UNAVAILABLE
    );

    proxy.open().await;
    eventually("the database is available again", async || {
        (readiness(&control).await.1["database"] == "ok").then_some(())
    })
    .await;
    root.model("after").await;
    let (_, snapshot) = status_and_json(control.as_gateway(Method::GET, "/snapshot")).await;
    assert_eq!(snapshot["models"]["items"].as_array().unwrap().len(), 2);
}

#[tokio::test]
async fn shutdown_is_announced_before_the_port_closes() {
    let (database, _) = started().await;
    let mut control = Control::launch(&database.url(None), &["--shutdown-delay=2"]).await;
    control.ready().await;
    let (_, tag) = {
        let response = control
            .as_gateway(Method::GET, "/snapshot")
            .send()
            .await
            .unwrap();
        (response.status(), response.headers()[header::ETAG].clone())
    };
    let waiting = control
        .as_gateway(Method::GET, "/snapshot?wait=60s")
        .header(header::IF_NONE_MATCH, tag)
        .send();
    let draining = async {
        eventually("a gateway waits", async || {
            let metrics = control
                .get("/metrics")
                .send()
                .await
                .unwrap()
                .text()
                .await
                .unwrap();
            metrics
                .contains("fastllm_control_snapshot_waiters 1")
                .then_some(())
        })
        .await;
        control.terminate();
        eventually("it is unready but responds", async || {
            let (status, body) = readiness(&control).await;
            (status == 503 && body["status"] == "draining").then_some(())
        })
        .await;
    };
    let (waited, ()) = tokio::join!(waiting, draining);
    assert_eq!(waited.unwrap().status(), StatusCode::NOT_MODIFIED);
    assert_eq!(control.exit_code().await, Some(0));
}

#[tokio::test]
async fn replicas_can_migrate_an_empty_database_concurrently() {
    let database = Database::create().await;
    let url = database.url(None);
    let mut controls = Vec::new();
    for _ in 0..4 {
        controls.push(Control::launch(&url, &[]).await);
    }
    for control in &controls {
        control.ready().await;
    }
    assert_eq!(database.number("SELECT count(*) FROM roles").await, 3);
}

#[tokio::test]
async fn a_release_that_is_too_old_exits_with_an_error() {
    let (database, _) = started().await;
    database
        .execute("UPDATE schema_info SET oldest_binary = '99.1.0'")
        .await;
    let mut control = Control::launch(&database.url(None), &[]).await;
    assert_eq!(control.exit_code().await, Some(1));
    let log = control.log();
    assert!(
        log.contains("99.1.0") && log.contains(env!("CARGO_PKG_VERSION")),
        "{log}"
    );
    // A newer schema that supports this release is accepted.
    database
        .execute("UPDATE schema_info SET oldest_binary = '0.1.0'")
        .await;
    database
        .execute("INSERT INTO _sqlx_migrations VALUES (9999, 'later', now(), true, '\\x00', 1)")
        .await;
    Control::start(&database).await;
}

/// A process that no longer receives changes must not appear healthy.
#[tokio::test]
async fn a_lost_watcher_ends_the_process() {
    let (database, mut control) = started().await;
    let forever = "INSERT INTO api_keys (hash, prefix, name, principal_id, expires_at) \
                   VALUES (sha256('x'), '', '', 1, 'infinity')";
    let refused = sqlx::query(forever).execute(&database.pool).await;
    assert!(refused.is_err(), "infinity is not a valid expiry");
    database
        .execute("ALTER TABLE api_keys DROP CONSTRAINT api_keys_expiry")
        .await;
    database.execute(forever).await;
    assert_eq!(control.exit_code().await, Some(1));
    assert!(control.log().contains("the database watcher panicked"));
}

#[tokio::test]
async fn expired_rows_are_deleted() {
    let (database, control) = started().await;
    let root = control.session("root", PASSWORD).await;
    database
        .execute(
            "INSERT INTO sessions (token_hash, principal_id, expires_at) \
             VALUES (sha256('old'), 1, now() - interval '1 s'); \
             INSERT INTO usage_reporters VALUES \
             ('old', 'b', 9, now() - interval '8 days'), ('new', 'b', 9, now()); \
             INSERT INTO gateway_reports VALUES \
             ('old', '{}', now() - interval '2 hours'), ('new', '{}', now())",
        )
        .await;
    let _second = Control::start(&database).await;
    eventually("the old rows are gone", async || {
        let rows = "SELECT (SELECT count(*) FROM sessions) \
                         + (SELECT count(*) FROM usage_reporters) \
                         + (SELECT count(*) FROM gateway_reports)";
        (database.number(rows).await == 3).then_some(())
    })
    .await;
    root.get("/admin/health").await;
}

fn output(output: &Output) -> String {
    let Output { stdout, stderr, .. } = output;
    format!(
        "{}{}",
        String::from_utf8_lossy(stdout),
        String::from_utf8_lossy(stderr)
    )
}

#[tokio::test]
async fn set_password_follows_the_rules_for_names() {
    let database = Database::create().await;
    let long = "x".repeat(129);
    for name in ["", " root", "root\u{200b}", "root\n2", long.as_str()] {
        let refused = set_password(&database, name, &[]);
        assert_eq!(refused.status.code(), Some(2), "{name:?}");
        let text = output(&refused);
        assert!(text.contains("--name must "), "{name:?}: {text}");
    }
}

#[tokio::test]
async fn set_password_creates_and_replaces_passwords() {
    let database = Database::create().await;
    let first = set_password(&database, "root", &["--create-only"]);
    assert!(first.status.success(), "{}", output(&first));
    let again = set_password(
        &database,
        "root",
        &["--create-only", "--password", "canary-other"],
    );
    assert!(again.status.success());
    let control = Control::start(&database).await;
    let root = control.session("root", PASSWORD).await;
    assert_eq!(
        control.login("root", "canary-other").await.status(),
        StatusCode::UNAUTHORIZED
    );
    let replaced = set_password(&database, "root", &["--password", "canary-other"]);
    assert!(replaced.status.success());
    let root_again = control.session("root", "canary-other").await;
    let (status, _) = status_and_json(root.request(Method::GET, "/admin/models")).await;
    assert_eq!(status, 401);
    let log = root_again.get("/admin/audit").await;
    assert_eq!(
        (&log[0]["action"], &log[0]["actor_id"]),
        (&json!("COMMAND"), &Value::Null)
    );
    assert_eq!(log[0]["detail"]["changes"]["password"], "set");

    // A user who can already change the configuration gets no other role.
    let (_, made) = root_again
        .post("/admin/principals", json!({ "name": "ops" }))
        .await;
    let path = format!("/admin/principals/{}", made["id"]);
    root_again
        .post(&format!("{path}/roles"), json!({ "role": "operator" }))
        .await;
    assert!(set_password(&database, "ops", &[]).status.success());
    let view = root_again.get(&path).await;
    assert_eq!(
        (&view["roles"], &view["kind"]),
        (&json!(["operator"]), &json!("user"))
    );
    for text in [
        output(&first),
        output(&again),
        output(&replaced),
        log.to_string(),
    ] {
        assert!(!text.contains("canary"), "{text}");
    }
}

#[tokio::test]
async fn invalid_settings_exit_with_2_and_reveal_no_secret() {
    let database = Database::create().await;
    let url = database.url(None);
    let short = set_password(&database, "root", &["--password", "canary"]);
    assert_eq!(short.status.code(), Some(2), "{}", output(&short));
    assert!(!output(&short).contains("canary"));

    let run = |name: &str, value: &str, flag: &[&str]| {
        command(&url).env(name, value).args(flag).output().unwrap()
    };
    for (reason, name, value, flag) in [
        ("proxy token", "FASTLLM_PROXY_TOKEN", "", None),
        ("encryption key", "FASTLLM_ENCRYPTION_KEY", "", None),
        ("64 hexadecimal", "FASTLLM_ENCRYPTION_KEY", "canary-k", None),
        ("database", "FASTLLM_DATABASE_URL", "canary-u", None),
        ("--tls-key", "X", "", Some("--tls-cert=x")),
        ("--host", "X", "", Some("--host=example.org")),
    ] {
        let result = run(name, value, flag.as_slice());
        let text = output(&result);
        assert_eq!(result.status.code(), Some(2), "{reason}: {text}");
        assert!(text.contains(reason), "{reason}: {text}");
        assert!(!text.contains("canary"), "{text}");
    }
    let help = run("X", "", &["--help"]);
    assert!(help.status.success());
    let text = output(&help);
    assert!(text.contains("--admin-port"), "{text}");
    assert!(!text.contains("canary") && !text.contains(&url), "{text}");
}
