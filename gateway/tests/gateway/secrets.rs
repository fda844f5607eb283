//! Credentials appear in no log, metric or response.

use fastllm_contract::Secret;

use crate::support::{
    Options, SnapshotContent, Step, TestGateway, Upstream, content, events, json_response, logged,
    post,
};

const CREDENTIAL: &str = "canary-upstream-credential";
const CLIENT_KEY: &str = "sk-canary-client-key";
const WRONG_KEY: &str = "sk-canary-wrong-key";
const PROMPT: &str = "canary-prompt-text";
const COMPLETION: &str = "canary-completion-text";

/// A working backend, an unreachable one, and one that is skipped.
fn with_canaries(upstream: &Upstream) -> SnapshotContent {
    let mut content = content(&[upstream.api_base()]);
    for model in &mut content.models {
        for backend in &mut model.backends {
            backend.api_key = Some(Secret::new(CREDENTIAL));
        }
    }
    let nowhere = content.models[1].backends.first_mut().unwrap();
    nowhere.api_base = String::from("http://127.0.0.1:1/v1");
    let mut left_out = content.models[2].backends[0].clone();
    left_out.id.0 = 77;
    left_out.api_key = Some(Secret::new(format!("{CREDENTIAL}\n")));
    content.models[2].backends.push(left_out);
    content.keys.push((CLIENT_KEY.to_owned(), 1, None, false));
    content
}

#[tokio::test]
async fn canary_secrets_appear_in_no_output() {
    let response = format!("{{\"choices\":[{{\"message\":{{\"content\":\"{COMPLETION}\"}}}}]}}");
    let stream = format!("data: {{\"choices\":[{{\"delta\":\"{COMPLETION}\"}}]}}\n\n");
    let upstream = Upstream::start([
        json_response("200 OK", &response),
        vec![Step::Send(events(&[&stream], false)), Step::Close],
        json_response("500 X", "{}"),
    ])
    .await;
    let gateway = TestGateway::serving(&with_canaries(&upstream), Options::default()).await;

    let mut seen = String::new();
    for (key, model) in [
        (CLIENT_KEY, "small"),
        (CLIENT_KEY, "small"),
        (CLIENT_KEY, "small"),
        (CLIENT_KEY, "large"),
        (CLIENT_KEY, "forbidden"),
        (CLIENT_KEY, "nobodys"),
        (WRONG_KEY, "small"),
    ] {
        let body = format!("{{\"model\":\"{model}\",\"prompt\":\"{PROMPT}\"}}");
        let headers = format!("authorization: Bearer {key}\r\n");
        let reply = gateway
            .send(&post("/v1/chat/completions", &headers, &body))
            .await;
        seen.push_str(&reply.head);
        seen.push_str(&String::from_utf8_lossy(&reply.body).replace(COMPLETION, ""));
    }
    for path in ["/health", "/metrics", "/readyz"] {
        seen.push_str(&gateway.get(path).await.text());
    }
    drop(gateway.finish().await);
    let logs = logged();
    assert!(logs.contains("request_id") && logs.contains("a backend is left out"));
    for canary in [
        CREDENTIAL,
        CLIENT_KEY,
        WRONG_KEY,
        PROMPT,
        COMPLETION,
        "canary-proxy-token",
    ] {
        let place = logs
            .find(canary)
            .map(|at| &logs[at.saturating_sub(300)..at + 40]);
        assert_eq!(place, None, "{canary} was logged");
        assert!(!seen.contains(canary), "{canary} was answered");
    }
}
