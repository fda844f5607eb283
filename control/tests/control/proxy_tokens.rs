//! Replacement of the token that gateways authenticate with.

use crate::harness::{Control, Database, command, eventually};

const FORMER: &str = "pt-canary-former-token";
const NEW: &str = "pt-canary-new-token";

/// Starts a control plane with a token.
async fn start(database: &Database, token: &str, grace: u64) -> Control {
    let mut command = command(&database.url(None));
    command.env("FASTLLM_PROXY_TOKEN", token);
    let grace = format!("--proxy-token-grace={grace}");
    let control = Control::launch_command(command, &[&grace], "http").await;
    control.ready().await;
    control
}

/// The status of a gateway's request with a token.
async fn status(control: &Control, token: &str) -> u16 {
    let request = control.get("/snapshot").bearer_auth(token);
    request.send().await.unwrap().status().as_u16()
}

#[tokio::test]
async fn replicas_accept_the_tokens_of_each_other() {
    let database = Database::create().await;
    let former = start(&database, FORMER, 600).await;
    assert_eq!(status(&former, NEW).await, 401);
    let new = start(&database, NEW, 600).await;
    assert_eq!(status(&new, FORMER).await, 200);
    // The refused request above may have been the last read within this second.
    eventually("the former replica accepts the new token", async || {
        (status(&former, NEW).await == 200).then_some(())
    })
    .await;
    for control in [&former, &new] {
        assert_eq!(status(control, "pt-canary-unknown-token").await, 401);
        let log = control.log();
        assert!(!log.contains(FORMER) && !log.contains(NEW), "{log}");
    }
}

#[tokio::test]
async fn a_former_token_is_accepted_until_its_grace_period_ends() {
    let database = Database::create().await;
    drop(start(&database, FORMER, 600).await);
    let new = start(&database, NEW, 600).await;
    assert_eq!(status(&new, FORMER).await, 200);
    drop(new);
    // A restart does not extend the grace period.
    let seconds = "SELECT extract(epoch FROM expires_at - now())::bigint FROM proxy_tokens \
                   WHERE expires_at IS NOT NULL";
    assert!((1..=600).contains(&database.number(seconds).await));
    let earlier = "UPDATE proxy_tokens SET expires_at = now() + interval '2 seconds' \
                   WHERE expires_at IS NOT NULL";
    database.execute(earlier).await;
    let new = start(&database, NEW, 600).await;
    eventually("the grace period ends", async || {
        (status(&new, FORMER).await == 401).then_some(())
    })
    .await;
    assert_eq!(status(&new, NEW).await, 200);
    drop(new);
    drop(start(&database, NEW, 600).await);
    let rows = "SELECT count(*) FROM proxy_tokens";
    assert_eq!(database.number(rows).await, 1);
}

#[tokio::test]
async fn without_a_grace_period_a_former_token_is_refused_at_once() {
    let database = Database::create().await;
    let former = start(&database, FORMER, 600).await;
    let new = start(&database, NEW, 0).await;
    assert_eq!(status(&new, FORMER).await, 401);
    assert_eq!(status(&new, NEW).await, 200);
    drop((former, new));
    assert_eq!(status(&start(&database, NEW, 600).await, FORMER).await, 401);
}

#[tokio::test]
async fn a_token_that_is_configured_again_does_not_expire() {
    let database = Database::create().await;
    for token in [FORMER, NEW, FORMER] {
        drop(start(&database, token, 600).await);
    }
    let new = start(&database, NEW, 600).await;
    assert_eq!(status(&new, FORMER).await, 200);
    let lasting = "SELECT count(*) FROM proxy_tokens WHERE expires_at IS NULL";
    assert_eq!(database.number(lasting).await, 1);
}
