//! Sources of the snapshot: watch, poll, and the copy on disk.

use fastllm_contract::Secret;

use crate::support::{
    Control, KEY, Options, SnapshotContent, TestGateway, Upstream, content, json_response, post,
    snapshot,
};

const BODY: &str = "{\"model\":\"small\"}";

fn with_key(key: &str) -> Vec<u8> {
    post(
        "/v1/chat/completions",
        &format!("x-api-key: {key}\r\n"),
        BODY,
    )
}

#[tokio::test]
async fn a_change_is_pushed_as_a_delta() {
    let upstream = Upstream::start([json_response("200 OK", "{}")]).await;
    let mut content = content(&[upstream.api_base()]);
    // Polling alone would be too slow.
    let gateway = TestGateway::serving(&content, Options::flags(&["--config-poll=3600"])).await;
    assert_eq!(gateway.send(&with_key("sk-added")).await.status, 401);

    content.version = 2;
    content.keys.push(("sk-added".to_owned(), 1, None, false));
    gateway.control.publish(snapshot(&content));
    gateway
        .until("the new key", async || {
            gateway.send(&with_key("sk-added")).await.status == 200
        })
        .await;

    content.version = 3;
    content.keys.remove(0);
    gateway.control.publish(snapshot(&content));
    gateway
        .until("the revoked key", async || {
            gateway.send(&with_key(KEY)).await.status == 401
        })
        .await;
    assert_eq!(gateway.send(&with_key("sk-added")).await.status, 200);
    assert_eq!(gateway.control.received().deltas, 2);
    assert!((gateway.metric("fastllm_snapshot_version").await - 3.0).abs() < 0.5);
}

#[tokio::test]
async fn an_unusable_snapshot_changes_nothing() {
    let upstream = Upstream::start([json_response("200 OK", "{}")]).await;
    let mut content = content(&[upstream.api_base()]);
    let gateway = TestGateway::serving(&content, Options::flags(&["--config-poll=1"])).await;
    let failures = "fastllm_snapshot_poll_failures_total";
    gateway
        .control
        .publish_text(2, "{\"format\":1,\"version\":2");
    gateway
        .until("the text to be rejected", async || {
            gateway.metric(failures).await > 0.5
        })
        .await;
    assert_eq!(gateway.chat(BODY).await.status, 200);

    let mut twice = content.clone();
    twice.version = 3;
    twice.models.push(content.models[0].clone());
    gateway.control.publish(snapshot(&twice));
    let seen = gateway.metric(failures).await;
    gateway
        .until("the inconsistent snapshot to be rejected", async || {
            gateway.metric(failures).await > seen + 0.5
        })
        .await;
    assert_eq!(gateway.chat(BODY).await.status, 200);
    assert!((gateway.metric("fastllm_snapshot_version").await - 1.0).abs() < 0.5);

    content.version = 4;
    gateway.control.publish(snapshot(&content));
    gateway
        .until("the good one", async || {
            gateway.metric("fastllm_snapshot_version").await > 3.5
        })
        .await;
}

#[tokio::test]
async fn a_restart_without_control_serves_the_last_snapshot() {
    let upstream = Upstream::start([json_response("200 OK", "{}")]).await;
    let folder = tempfile::tempdir().unwrap();
    let cache = folder.path().join("snapshot.json");
    let mut content = content(&[upstream.api_base()]);
    content.models[2].backends[0].api_key = Some(Secret::new("kept"));
    let options = || Options {
        cache: Some(cache.clone()),
        ..Options::default()
    };
    let gateway = TestGateway::serving(&content, options()).await;
    drop(gateway.finish().await);

    // The address of control refuses connections.
    let control = Control::start(snapshot(&content)).await;
    let away = control.address;
    drop(control);
    let listener = || async move { tokio::net::TcpListener::bind(away).await };
    let flags = vec![format!("--control-url=http://{away}/snapshot")];
    let stand_in = Control::start(snapshot(&content)).await;
    let gateway = TestGateway::with_control(stand_in, Options { flags, ..options() });
    gateway.until_ready().await;
    assert_eq!(gateway.chat(BODY).await.status, 200);
    assert_eq!(
        upstream.request().header("authorization"),
        Some("Bearer kept")
    );

    // Control is available again, and the gateway reconnects.
    content.version = 9;
    let _back = Control::start_on(listener().await.unwrap(), snapshot(&content));
    gateway
        .until("the new version", async || {
            (gateway.metric("fastllm_snapshot_version").await - 9.0).abs() < 0.5
        })
        .await;
}

#[tokio::test]
async fn a_reachable_control_takes_precedence_over_the_copy_on_disk() {
    let upstream = Upstream::start([json_response("200 OK", "{}")]).await;
    let folder = tempfile::tempdir().unwrap();
    let cache = folder.path().join("snapshot.json");
    let mut content = content(&[upstream.api_base()]);
    content.version = 50;
    std::fs::write(&cache, serde_json::to_vec(&snapshot(&content)).unwrap()).unwrap();
    // A restored database: a lower version, and the key is revoked.
    content.version = 4;
    content.keys.clear();
    let options = Options {
        cache: Some(cache),
        ..Options::default()
    };
    let gateway = TestGateway::serving(&content, options).await;
    assert_eq!(gateway.chat(BODY).await.status, 401);
    assert!((gateway.metric("fastllm_snapshot_version").await - 4.0).abs() < 0.5);
}

#[tokio::test]
async fn a_new_version_of_the_same_content_is_sent_without_content() {
    let upstream = Upstream::start([json_response("200 OK", "{}")]).await;
    let mut content = content(&[upstream.api_base()]);
    let gateway = TestGateway::serving(&content, Options::default()).await;
    let version = "fastllm_snapshot_version";
    gateway.control.renumber(8);
    gateway
        .until("the new number", async || {
            gateway.metric(version).await > 7.5
        })
        .await;
    assert_eq!(gateway.chat(BODY).await.status, 200);
    // Later changes are pushed as usual.
    content.version = 9;
    content.keys.push(("sk-added".to_owned(), 1, None, false));
    gateway.control.publish(snapshot(&content));
    gateway
        .until("the new key", async || {
            gateway.send(&with_key("sk-added")).await.status == 200
        })
        .await;
}

/// Sends a request whose body follows only after `change`; returns the status.
async fn changed_midway(change: impl FnOnce(&mut SnapshotContent)) -> u16 {
    let upstream = Upstream::start([json_response("200 OK", "{}")]).await;
    let mut content = content(&[upstream.api_base()]);
    let gateway = TestGateway::serving(&content, Options::default()).await;
    let mut client = gateway.client().await;
    let head = format!(
        "POST /v1/chat/completions HTTP/1.1\r\nhost: g\r\nx-api-key: {KEY}\r\n\
expect: 100-continue\r\ncontent-length: {}\r\n\r\n",
        BODY.len()
    );
    client.write(head.as_bytes()).await;
    // `100 Continue` shows that the key was accepted.
    assert!(client.head().await.starts_with("HTTP/1.1 100"));
    content.version = 2;
    change(&mut content);
    gateway.control.publish(snapshot(&content));
    gateway
        .until("the change", async || {
            gateway.metric("fastllm_snapshot_version").await > 1.5
        })
        .await;
    client.write(BODY.as_bytes()).await;
    let status = client.reply().await.status;
    assert_eq!(upstream.seen().requests.len(), usize::from(status == 200));
    status
}

#[tokio::test]
async fn a_change_while_a_body_is_received_takes_effect() {
    let revoked = changed_midway(|content| content.keys.clear());
    assert_eq!(revoked.await, 401);
    let withdrawn = changed_midway(|content| content.principals[0].allowed_models.clear());
    assert_eq!(withdrawn.await, 403);
    let unrelated = changed_midway(|content| {
        content.keys.push(("sk-more".to_owned(), 1, None, false));
    });
    assert_eq!(unrelated.await, 200);
}
