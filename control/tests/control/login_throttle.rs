//! Failed logins, by address and by name.

use reqwest::{StatusCode, header};
use serde_json::json;

use crate::harness::{Control, Database, PASSWORD, eventually, started};

/// Starts a control plane that takes the clients' addresses from `X-Forwarded-For`.
async fn behind_proxy(database: &Database) -> Control {
    let flags = ["--trusted-proxy-cidr=127.0.0.0/8,::1/128"];
    let control = Control::launch(&database.url(None), &flags).await;
    control.ready().await;
    control
}

/// Attempts a login from an address, and returns the response.
async fn login(control: &Control, address: &str, name: &str, password: &str) -> reqwest::Response {
    let request = control.client.post(format!("{}/login", control.base));
    request
        .header("x-forwarded-for", address)
        .json(&json!({ "name": name, "password": password }))
        .send()
        .await
        .unwrap()
}

async fn status(control: &Control, address: &str, name: &str, password: &str) -> u16 {
    login(control, address, name, password)
        .await
        .status()
        .as_u16()
}

/// Fails five times for a name at an address, which is free of delays.
async fn fail(control: &Control, address: &str, name: &str) {
    for _ in 0..5 {
        assert_eq!(status(control, address, name, "wrong").await, 401);
    }
}

#[tokio::test]
async fn a_known_address_is_not_kept_out_by_strangers() {
    let (database, _first) = started().await;
    let control = behind_proxy(&database).await;
    let home = "192.0.2.1";
    assert_eq!(status(&control, home, "root", PASSWORD).await, 200);
    // Ten strangers fail until the name is delayed for all addresses that are not known.
    for stranger in 1..=10 {
        fail(&control, &format!("198.51.100.{stranger}"), "root").await;
    }
    assert_eq!(
        status(&control, "198.51.100.99", "root", PASSWORD).await,
        429
    );
    for _ in 0..20 {
        assert_eq!(status(&control, home, "root", PASSWORD).await, 200);
    }
    // Its own failures count.
    fail(&control, home, "root").await;
    assert_eq!(status(&control, home, "root", PASSWORD).await, 429);
}

#[tokio::test]
async fn a_stranger_delays_only_itself() {
    let (database, _first) = started().await;
    let control = behind_proxy(&database).await;
    let stranger = "198.51.100.1";
    fail(&control, stranger, "root").await;
    assert_eq!(status(&control, stranger, "root", "wrong").await, 429);
    assert_eq!(status(&control, "192.0.2.1", "root", PASSWORD).await, 200);
    // With other names, too: 20 failures of an address are free of delays.
    for name in ["one", "two", "three"] {
        fail(&control, stranger, name).await;
    }
    assert_eq!(status(&control, stranger, "four", "wrong").await, 429);
    assert_eq!(status(&control, "198.51.100.2", "four", "wrong").await, 401);
}

#[tokio::test]
async fn replicas_share_the_failures() {
    let (database, _first) = started().await;
    let [one, two] = [behind_proxy(&database).await, behind_proxy(&database).await];
    for control in [&one, &two, &one, &two, &one] {
        assert_eq!(status(control, "192.0.2.1", "root", "wrong").await, 401);
    }
    for control in [&one, &two] {
        assert_eq!(status(control, "192.0.2.1", "root", PASSWORD).await, 429);
    }
}

#[tokio::test]
async fn concurrent_attempts_are_throttled_like_successive_ones() {
    let (database, _first) = started().await;
    let [one, two] = [behind_proxy(&database).await, behind_proxy(&database).await];
    let attempts = (0..30).map(|number| {
        let control = if number % 2 == 0 { &one } else { &two };
        status(control, "192.0.2.1", "root", "wrong")
    });
    let statuses = futures_util::future::join_all(attempts).await;
    let verified = statuses.iter().filter(|status| **status == 401).count();
    // At the start, attempts of both replicas may not see each other yet.
    assert!((5..=8).contains(&verified), "{statuses:?}");
}

#[tokio::test]
async fn the_announced_time_is_enough() {
    let (database, _first) = started().await;
    let control = behind_proxy(&database).await;
    fail(&control, "192.0.2.1", "root").await;
    let response = login(&control, "192.0.2.1", "root", PASSWORD).await;
    assert_eq!(response.status(), StatusCode::TOO_MANY_REQUESTS);
    let after = response.headers()[header::RETRY_AFTER].to_str().unwrap();
    // Two seconds, of which some time has passed.
    assert!(matches!(after, "1" | "2"), "{after}");
    eventually("the delay is over", async || {
        let status = status(&control, "192.0.2.1", "root", PASSWORD).await;
        (status == 200).then_some(())
    })
    .await;
    // Success forgets the failures.
    fail(&control, "192.0.2.1", "root").await;
}

#[tokio::test]
async fn the_audit_has_the_address_behind_trusted_proxies() {
    let (database, first) = started().await;
    let control = behind_proxy(&database).await;
    for (control, expected) in [(&control, "192.0.2.1"), (&first, "127.0.0.1")] {
        let root = control.session("root", PASSWORD).await;
        let body = json!({ "name": format!("team-{expected}") });
        let request = root.request(reqwest::Method::POST, "/admin/teams");
        let request = request.header("x-forwarded-for", "192.0.2.1").json(&body);
        assert_eq!(request.send().await.unwrap().status(), 201);
        let newest = root.get("/admin/audit?limit=1").await;
        assert_eq!(newest[0]["source"], expected, "{newest}");
    }
}
