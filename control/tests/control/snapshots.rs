use std::time::Duration;

use fastllm_contract::{
    Backend, BackendId, Concurrency, HealthCheck, ModelName, RequestOptions, Secret, Snapshot,
};
use reqwest::{Method, Response, StatusCode, header};
use serde_json::{Value, json};
use tokio::time::{Instant, timeout};

use crate::harness::{Control, PASSWORD, command, eventually, started};

/// Much longer than the documented 250 ms, for machines under load.
const SOON: Duration = Duration::from_secs(5);

pub(crate) async fn fetch(control: &Control, held: Option<&str>, wait: &str) -> Response {
    let mut request = control.as_gateway(Method::GET, &format!("/snapshot?wait={wait}"));
    if let Some(held) = held {
        request = request.header(header::IF_NONE_MATCH, held);
    }
    request.send().await.unwrap()
}

fn etag(response: &Response) -> String {
    response.headers()[header::ETAG]
        .to_str()
        .unwrap()
        .to_owned()
}

/// The complete snapshot and its entity tag.
pub(crate) async fn whole(control: &Control) -> (Snapshot, String) {
    let response = fetch(control, None, "0s").await;
    assert_eq!(response.status(), StatusCode::OK);
    let tag = etag(&response);
    (response.json().await.unwrap(), tag)
}

/// The next snapshot: the difference to `held`, merged with it.
async fn next(control: &Control, held: &Snapshot, tag: &str) -> (Snapshot, String) {
    let response = fetch(control, Some(tag), "30s").await;
    assert_eq!(response.status(), StatusCode::OK);
    let tag = etag(&response);
    let difference: Snapshot = response.json().await.unwrap();
    (difference.merge(Some(held)).unwrap(), tag)
}

fn names(snapshot: &Snapshot) -> Vec<String> {
    let models = snapshot.models.items.as_ref().unwrap();
    models.iter().map(|model| model.name.to_string()).collect()
}

#[tokio::test]
async fn a_difference_and_the_held_snapshot_make_the_next_one() {
    let (_database, control) = started().await;
    let root = control.session("root", PASSWORD).await;
    let (mut held, mut tag) = whole(&control).await;
    root.model("b").await;
    root.model("a").await;
    let (key, plaintext) = root.key("k", 1).await;
    (held, tag) = next(&control, &held, &tag).await;
    assert_eq!(
        (&held, &tag),
        (&whole(&control).await.0, &whole(&control).await.1)
    );
    assert_eq!(names(&held), ["a", "b"]);
    let hash = ring::digest::digest(&ring::digest::SHA256, plaintext.as_bytes());
    let hash = hex::encode(hash);
    assert_eq!(held.key_shards.len(), 1);
    assert_eq!(held.key_shards[0].prefix, hash[..2]);
    let (found, entry) = held.key_shards[0]
        .keys
        .items
        .as_ref()
        .unwrap()
        .0
        .first_key_value()
        .unwrap();
    assert_eq!((found.to_string(), entry.disabled), (hash, false));
    // Two changes later, from a recent version.
    root.delete(&format!("/admin/keys/{key}")).await;
    root.model("c").await;
    let (after, _) = next(&control, &held, &tag).await;
    assert_eq!(after, whole(&control).await.0);
    assert!(
        after.key_shards[0]
            .keys
            .items
            .as_ref()
            .unwrap()
            .0
            .first_key_value()
            .unwrap()
            .1
            .disabled
    );
    // An unknown entity tag: the complete snapshot.
    let strange = fetch(&control, Some("\"1-0123456789abcdef\""), "0s").await;
    assert_eq!(strange.json::<Snapshot>().await.unwrap(), after);
}

#[tokio::test]
async fn a_new_key_updates_one_shard() {
    let (database, control) = started().await;
    database
        .execute(
            "INSERT INTO api_keys (hash, prefix, name, principal_id) \
             SELECT sha256(n::text::bytea), 'sk-', n::text, 1 FROM generate_series(1, 2000) AS n",
        )
        .await;
    let (held, tag) = eventually("the keys are published", async || {
        Some(whole(&control).await).filter(|(held, _)| held.key_shards.len() > 200)
    })
    .await;
    let root = control.session("root", PASSWORD).await;
    root.key("one more", 1).await;
    let response = fetch(&control, Some(&tag), "30s").await;
    let difference: Snapshot = response.json().await.unwrap();
    let sent = difference
        .key_shards
        .iter()
        .filter(|shard| shard.keys.items.is_some())
        .count();
    assert_eq!(sent, 1);
    assert!(difference.models.items.is_none() && difference.principals.items.is_none());
    assert_eq!(
        difference.merge(Some(&held)).unwrap(),
        whole(&control).await.0
    );
}

#[tokio::test]
async fn every_replica_notifies_waiting_gateways() {
    let (database, first) = started().await;
    // So that only a notification is fast enough.
    let seldom = ["--snapshot-rebuild-interval=3600"];
    let second = Control::launch(&database.url(None), &seldom).await;
    second.ready().await;
    eventually("both listen", async || {
        for control in [&first, &second] {
            let metrics = control
                .get("/metrics")
                .send()
                .await
                .unwrap()
                .text()
                .await
                .unwrap();
            if !metrics.contains("fastllm_control_database_notifications 1") {
                return None;
            }
        }
        Some(())
    })
    .await;
    let root = first.session("root", PASSWORD).await;
    for number in 0..3 {
        let (_, tag) = whole(&second).await;
        let waiting = async {
            let response = fetch(&second, Some(&tag), "30s").await;
            assert_eq!(response.status(), StatusCode::OK);
            Instant::now()
        };
        let changing = async {
            eventually("a gateway waits", async || {
                let metrics = second
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
            let begun = Instant::now();
            root.model(&format!("m{number}")).await;
            begun
        };
        let (received, begun) = tokio::join!(waiting, changing);
        assert!(
            received - begun < SOON,
            "received after {:?}",
            received - begun
        );
    }
}

/// As behind a connection pooler that does not forward notifications.
#[tokio::test]
async fn the_database_is_polled_without_notifications() {
    let (database, _) = started().await;
    let mut command = command(&database.url_without_listen().await);
    command.env("FASTLLM_DATABASE_MAX_CONNECTIONS", "1");
    let seldom = ["--snapshot-rebuild-interval=3600"];
    let control = Control::launch_command(command, &seldom, "http").await;
    control.ready().await;
    for number in 0..2 {
        let (_, tag) = whole(&control).await;
        let begun = Instant::now();
        database
            .execute("INSERT INTO models (name) VALUES (gen_random_uuid()::text)")
            .await;
        let response = fetch(&control, Some(&tag), "30s").await;
        assert_eq!(response.status(), StatusCode::OK, "change {number}");
        assert!(
            begun.elapsed() < SOON,
            "received after {:?}",
            begun.elapsed()
        );
    }
    let metrics = control
        .get("/metrics")
        .send()
        .await
        .unwrap()
        .text()
        .await
        .unwrap();
    assert!(
        metrics.contains("fastllm_control_database_notifications 0"),
        "{metrics}"
    );
    assert!(control.log().contains("polling for changes"));
}

#[tokio::test]
async fn replicas_serve_identical_bytes() {
    let (database, first) = started().await;
    let root = first.session("root", PASSWORD).await;
    for name in ["z", "a", "Z", "é", "m/1", "m/2"] {
        let id = root.model(name).await;
        for host in ["h2", "h1"] {
            let body = json!({ "api_base": format!("http://{host}/v1"), "upstream_api_key": "k" });
            root.post(&format!("/admin/models/{id}/backends"), body)
                .await;
        }
    }
    root.post("/admin/roles", json!({ "name": "some" })).await;
    let grant = json!({ "verb": "model:invoke", "resource": "model/m/*" });
    root.post("/admin/roles/some/permissions", grant).await;
    root.post("/admin/principals", json!({ "name": "p" })).await;
    root.post("/admin/principals/3/roles", json!({ "role": "some" }))
        .await;
    for number in 0..20 {
        root.key(&number.to_string(), 1).await;
    }
    // The first replica built it incrementally, the second one at once.
    let second = Control::start(&database).await;
    let bytes = async |control: &Control| {
        let response = fetch(control, None, "0s").await;
        (etag(&response), response.bytes().await.unwrap())
    };
    assert_eq!(bytes(&first).await, bytes(&second).await);
    let (snapshot, _) = whole(&first).await;
    let granted = &snapshot.principals.items.as_ref().unwrap()[2].allowed_models;
    assert_eq!(
        granted,
        &[
            ModelName::new("m/1").unwrap(),
            ModelName::new("m/2").unwrap()
        ]
    );
}

#[tokio::test]
async fn concurrent_changes_are_all_published() {
    let (database, first) = started().await;
    let second = Control::start(&database).await;
    let sessions = [
        first.session("root", PASSWORD).await,
        second.session("root", PASSWORD).await,
    ];
    let before = database
        .number("SELECT config_version FROM config_state")
        .await;
    let changes = (0..24).map(|number| {
        let session = &sessions[number % 2];
        async move { session.model(&format!("m{number:02}")).await }
    });
    let made = futures_util::future::join_all(changes).await;
    assert_eq!(made.len(), 24);
    let after = database
        .number("SELECT config_version FROM config_state")
        .await;
    assert_eq!(after, before + 24);
    for control in [&first, &second] {
        eventually("all of them are published", async || {
            let (snapshot, _) = whole(control).await;
            (i64::try_from(snapshot.version) == Ok(after)).then_some(snapshot)
        })
        .await;
    }
    let (snapshot, tag) = whole(&first).await;
    assert_eq!(names(&snapshot).len(), 24);
    assert_eq!(whole(&second).await, (snapshot, tag));
}

#[tokio::test]
async fn equal_content_does_not_notify_gateways() {
    let (_database, control) = started().await;
    let root = control.session("root", PASSWORD).await;
    let (_, tag) = whole(&control).await;
    // A change of the version without a change of published content.
    let body = json!({ "password": PASSWORD });
    root.send(Method::PUT, "/admin/principals/1/password", body)
        .await;
    let response = fetch(&control, Some(&tag), "200ms").await;
    assert_eq!(response.status(), StatusCode::NOT_MODIFIED);
    let (old, new) = (tag.split_once('-').unwrap(), etag(&response));
    let new = new.split_once('-').unwrap();
    assert_eq!(old.1, new.1);
    assert!(new.0 > old.0, "{new:?} follows {old:?}");
}

#[tokio::test]
async fn changes_by_manual_sql_are_published() {
    let (database, control) = started().await;
    let (held, tag) = whole(&control).await;
    database
        .execute("INSERT INTO models (name) VALUES ('by hand')")
        .await;
    let (held, tag) = next(&control, &held, &tag).await;
    assert_eq!(names(&held), ["by hand"]);
    database
        .execute("UPDATE principals SET disabled = true WHERE id = 1")
        .await;
    database
        .execute("INSERT INTO api_keys (hash, prefix, name, principal_id) VALUES (sha256('x'), '', '', 1)")
        .await;
    let (held, _) = next(&control, &held, &tag).await;
    assert!(
        held.key_shards[0]
            .keys
            .items
            .as_ref()
            .unwrap()
            .0
            .values()
            .all(|key| key.disabled)
    );
}

#[tokio::test]
async fn a_restored_database_is_published() {
    let (database, control) = started().await;
    let root = control.session("root", PASSWORD).await;
    root.model("kept").await;
    let id = root.model("lost").await;
    let (held, tag) = whole(&control).await;
    // As after a restore: fewer rows under a lower version.
    sqlx::query("DELETE FROM models WHERE id = $1")
        .bind(id)
        .execute(&database.pool)
        .await
        .unwrap();
    database
        .execute("UPDATE config_state SET config_version = 3, change_id = gen_random_uuid()")
        .await;
    let (held, _) = eventually("the restored state is served", async || {
        Some(next(&control, &held, &tag).await).filter(|(held, _)| held.version == 3)
    })
    .await;
    assert_eq!(names(&held), ["kept"]);
}

/// A backend with all fields set.
fn all_fields() -> Value {
    json!({
        "api_base": "http://h/v1",
        "draining": true,
        "max_concurrency": 8,
        "max_queue": 0,
        "queue_timeout_ms": 250,
        "extra_headers": { "X-Team": "blue" },
        "extra_query": { "api-version": "2024-10-21" },
        "path_template": "/openai/deployments/{upstream_model}{sub_path}",
        "health_check": false,
        "health_path": "//health",
        "health_method": "HEAD",
        "health_expect": "200,401",
    })
}

/// The published form of [`all_fields`]; `plain` is a backend with default values.
fn published(id: BackendId, plain: &Backend) -> Backend {
    Backend {
        id,
        draining: true,
        concurrency: Concurrency {
            max: Some(8),
            max_queue: 0,
            queue_timeout_ms: 250,
        },
        request_options: RequestOptions {
            headers: [("x-team".to_owned(), Secret::new("blue"))].into(),
            query: [("api-version".to_owned(), "2024-10-21".to_owned())].into(),
            path_template: Some("/openai/deployments/{upstream_model}{sub_path}".to_owned()),
        },
        health: HealthCheck {
            enabled: false,
            path: "//health".to_owned(),
            method: "HEAD".to_owned(),
            expect: "200,401".to_owned(),
        },
        ..plain.clone()
    }
}

/// A change to default values.
fn default_fields() -> Value {
    json!({
        "draining": false,
        "max_concurrency": null,
        "max_queue": 100,
        "queue_timeout_ms": 10_000,
        "extra_headers": null,
        "extra_query": null,
        "path_template": null,
        "health_check": true,
        "health_path": "/models",
        "health_method": "GET",
        "health_expect": "2xx",
    })
}

#[tokio::test]
async fn all_fields_of_backends_are_published() {
    let (database, control) = started().await;
    let root = control.session("root", PASSWORD).await;
    let id = root.model("m").await;
    let plain = json!({ "api_base": "http://h/v1" });
    let path = format!("/admin/models/{id}/backends");
    for body in [plain, all_fields()] {
        assert_eq!(root.post(&path, body).await.0, 201);
    }
    let (held, tag) = whole(&control).await;
    let models = held.models.items.as_ref().unwrap();
    let [plain, full] = models[0].backends.as_slice() else {
        panic!("two backends");
    };
    // Unset fields have the defaults of gateways.
    let mut same = plain.clone();
    same.draining = false;
    same.concurrency = Concurrency::default();
    same.request_options = RequestOptions::default();
    same.health = HealthCheck::default();
    assert_eq!(*plain, same);
    assert_eq!(*full, published(full.id, plain));

    // All fields can be reset.
    let at = format!("/admin/backends/{}", full.id.0);
    assert_eq!(root.patch(&at, default_fields()).await.0, 204);
    let (held, tag) = next(&control, &held, &tag).await;
    let models = held.models.items.as_ref().unwrap();
    let backends = &models[0].backends;
    let again = Backend {
        id: backends[1].id,
        ..backends[0].clone()
    };
    assert_eq!(backends[1], again);

    // Extra headers are sealed for their row and column.
    database
        .execute(
            "UPDATE model_backends SET extra_headers = '\\x0301', extra_header_names = '{x-team}' \
              WHERE id = (SELECT max(id) FROM model_backends)",
        )
        .await;
    let (held, _) = next(&control, &held, &tag).await;
    assert_eq!(held.models.items.as_ref().unwrap()[0].backends.len(), 1);
}

#[tokio::test]
async fn backends_with_unusable_credentials_are_omitted() {
    let (database, control) = started().await;
    let root = control.session("root", PASSWORD).await;
    let id = root.model("m").await;
    let body = json!({ "api_base": "http://h/v1", "upstream_api_key": "secret" });
    root.post(&format!("/admin/models/{id}/backends"), body.clone())
        .await;
    root.post(&format!("/admin/models/{id}/backends"), body)
        .await;
    let count = |snapshot: &Snapshot| snapshot.models.items.as_ref().unwrap()[0].backends.len();
    assert_eq!(count(&whole(&control).await.0), 2);
    // A sealed credential that is copied to another row cannot be opened.
    let (held, tag) = whole(&control).await;
    database
        .execute(
            "UPDATE model_backends SET upstream_api_key = \
             (SELECT upstream_api_key FROM model_backends ORDER BY id LIMIT 1) \
             WHERE id = (SELECT max(id) FROM model_backends)",
        )
        .await;
    assert_eq!(count(&next(&control, &held, &tag).await.0), 1);
    assert!(control.log().contains("omitting an unusable backend"));
}

#[tokio::test]
async fn waiting_ends_with_304_after_a_bounded_time() {
    let (_database, control) = started().await;
    let (_, tag) = whole(&control).await;
    let response = fetch(&control, Some(&tag), "100ms").await;
    assert_eq!(response.status(), StatusCode::NOT_MODIFIED);
    assert_eq!(etag(&response), tag);
    assert_eq!(
        fetch(&control, Some(&tag), "soon").await.status(),
        StatusCode::BAD_REQUEST
    );
    // No early response.
    let early = timeout(
        Duration::from_millis(300),
        fetch(&control, Some(&tag), "3600s"),
    )
    .await;
    assert!(early.is_err());
}
