//! Fallbacks, aliases, retries and timeouts of a configuration file.

use std::io::Write;

use tempfile::NamedTempFile;

use crate::support::{Barrier, Step, TestGateway, Upstream, json_response, post};

fn file(text: &str) -> NamedTempFile {
    let mut file = NamedTempFile::new().unwrap();
    file.write_all(text.as_bytes()).unwrap();
    file
}

fn entry(name: &str, api_base: &str, more: &str) -> String {
    format!(
        "- {{model_name: {name}, litellm_params: {{model: openai/own, api_base: '{api_base}'{more}}}}}\n"
    )
}

fn request(key: &str, body: &str) -> Vec<u8> {
    post(
        "/v1/chat/completions",
        &format!("authorization: Bearer {key}\r\n"),
        body,
    )
}

const SMALL: &str = "{\"model\":\"small\"}";

#[tokio::test]
async fn fallbacks_and_aliases_of_a_file_are_followed_within_the_grants() {
    let small = Upstream::start([json_response("500 X", "{}")]).await;
    let large = Upstream::start([json_response("200 OK", "{\"by\":\"large\"}")]).await;
    let text = format!(
        "model_list:\n{}{}
router_settings:
  num_retries: 0
  fallbacks: [{{small: [large]}}]
  model_group_alias: {{gpt: small}}
auth:
  keys:
  - {{name: both, key: sk-both, models: [small, large]}}
  - {{name: small, key: sk-small, models: [small]}}
",
        entry("small", &small.api_base(), ""),
        entry("large", &large.api_base(), ""),
    );
    let file = file(&text);
    let gateway = TestGateway::with_file(file.path(), &[]).await;
    for body in [SMALL, "{\"model\":\"gpt\"}"] {
        let response = gateway.send(&request("sk-both", body)).await;
        assert_eq!(
            (response.status, response.text()),
            (200, "{\"by\":\"large\"}".into())
        );
    }
    let before = large.seen().requests.len();
    assert_eq!(gateway.send(&request("sk-small", SMALL)).await.status, 500);
    assert_eq!(large.seen().requests.len(), before);
}

#[tokio::test]
async fn retries_and_timeouts_of_a_file_precede_the_flags() {
    let failing = Upstream::start([json_response("503 X", "{}")]).await;
    let barrier = Barrier::new();
    let silent = Upstream::start([vec![Step::Wait(barrier.clone())]]).await;
    let text = format!(
        "model_list:\n{}{}{}litellm_settings: {{num_retries: 0}}\n",
        entry("small", &failing.api_base(), ""),
        entry("often", &failing.api_base(), ", max_retries: 1"),
        entry("silent", &silent.api_base(), ", timeout: 0.2"),
    );
    let file = file(&text);
    let flags = ["--max-retries=2", "--upstream-timeout=3600"];
    let gateway = TestGateway::with_file(file.path(), &flags).await;
    assert_eq!(gateway.send(&request("k", SMALL)).await.status, 503);
    assert_eq!(failing.seen().requests.len(), 1);
    let often = gateway.send(&request("k", "{\"model\":\"often\"}")).await;
    assert_eq!((often.status, failing.seen().requests.len()), (503, 3));
    let silent = gateway.send(&request("k", "{\"model\":\"silent\"}")).await;
    assert_eq!(silent.status, 504);
    barrier.cancel();
}
