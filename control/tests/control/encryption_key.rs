//! Control planes whose encryption key is not the database's.

use serde_json::json;

use crate::harness::{Control, Database, KEY, PASSWORD, Session, command, eventually, started};
use crate::snapshots::whole;

/// Another key than [`KEY`].
const OTHER: &str = "ffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff";

/// The IDs of the two keys.
const IDS: [&str; 2] = ["4773d12e", "af961376"];

/// Starts a control plane with these keys.
async fn launch(database: &Database, current: &str, old: &str) -> Control {
    let mut command = command(&database.url(None));
    command
        .env("FASTLLM_ENCRYPTION_KEY", current)
        .env("FASTLLM_ENCRYPTION_KEYS_OLD", old);
    Control::launch_command(command, &[], "http").await
}

/// Starts one that must end, because it lacks the database's key.
async fn assert_refused(database: &Database, current: &str, old: &str) {
    let mut control = launch(database, current, old).await;
    assert_eq!(control.exit_code().await, Some(2));
    let log = control.log();
    assert!(IDS.iter().all(|id| log.contains(id)), "{log}");
    assert!(!log.contains(KEY) && !log.contains(OTHER), "{log}");
}

/// Starts one that must become ready, and returns it with the number of credentials in
/// its snapshot.
async fn accepted(database: &Database, current: &str, old: &str) -> (Control, usize) {
    let control = launch(database, current, old).await;
    control.ready().await;
    let count = credentials(&control).await;
    (control, count)
}

async fn credentials(control: &Control) -> usize {
    let (snapshot, _) = whole(control).await;
    let models = snapshot.models.items.unwrap();
    let backends = models.iter().flat_map(|model| &model.backends);
    backends.filter(|one| one.api_key.is_some()).count()
}

/// Adds a backend with a credential to model 1.
async fn add_backend(root: &Session<'_>) {
    let body = json!({ "api_base": "http://h/v1", "upstream_api_key": "canary-secret" });
    let (status, made) = root.post("/admin/models/1/backends", body).await;
    assert_eq!(status, 201, "{made}");
}

/// A database with one credential, encrypted with [`KEY`].
async fn database() -> Database {
    let (database, control) = started().await;
    let root = control.session("root", PASSWORD).await;
    assert_eq!(root.model("m").await, 1);
    add_backend(&root).await;
    database
}

#[tokio::test]
async fn a_control_plane_with_another_key_does_not_start() {
    let database = database().await;
    assert_refused(&database, OTHER, "").await;
    // Without backends, too: credentials that it stored would be lost to the others.
    database.execute("DELETE FROM model_backends").await;
    assert_refused(&database, OTHER, "").await;
    let (control, count) = accepted(&database, KEY, "").await;
    assert_eq!(count, 0);
    let root = control.session("root", PASSWORD).await;
    add_backend(&root).await;
    drop(control);
    // Credentials count although the record of the key is missing.
    database.execute("DELETE FROM encryption_key").await;
    assert_refused(&database, OTHER, "").await;
    assert_eq!(accepted(&database, KEY, "").await.1, 1);
}

#[tokio::test]
async fn a_key_is_replaced_by_one_beside_the_former() {
    let database = database().await;
    let (control, count) = accepted(&database, OTHER, KEY).await;
    assert_eq!(count, 1);
    add_backend(&control.session("root", PASSWORD).await).await;
    drop(control);
    // The first credential is still encrypted with the former key.
    assert_refused(&database, OTHER, "").await;
    assert_refused(&database, KEY, "").await;
    assert_eq!(accepted(&database, KEY, OTHER).await.1, 2);
}

#[tokio::test]
async fn no_snapshot_lacks_a_credential_of_another_key() {
    let database = database().await;
    let (former, count) = accepted(&database, KEY, "").await;
    assert_eq!(count, 1);
    let before = whole(&former).await.0.version;
    let (later, _) = accepted(&database, OTHER, KEY).await;
    add_backend(&later.session("root", PASSWORD).await).await;
    assert_eq!(credentials(&later).await, 2);
    eventually("the replica without the key notices", async || {
        let log = former.log();
        log.contains("cannot open a credential of backend")
            .then_some(())
    })
    .await;
    assert_eq!(whole(&former).await.0.version, before);
    assert_eq!(credentials(&former).await, 1);
}
