//! The forms of request bodies that every operation accepts.

use reqwest::Method;
use serde_json::json;

use crate::harness::{PASSWORD, started, status_and_json};
use crate::openapi::operations;

/// The standard derivation of parsers accepts the values of an object's members
/// as an array, so that `["root", "secret"]` would log in.
#[tokio::test]
async fn no_operation_accepts_an_array_as_its_body() {
    let (_database, control) = started().await;
    let root = control.session("root", PASSWORD).await;
    let mut tried = 0;
    for (name, operation) in operations() {
        let Some(body) = operation.get("requestBody") else {
            continue;
        };
        let is_list = body["content"]["application/json"]["schema"]["type"] == "array";
        let (method, path) = name.split_once(' ').unwrap();
        let method: Method = method.to_uppercase().parse().unwrap();
        let path = path.replace("{id}", "1").replace("{model_id}", "1");
        let code = if is_list {
            "invalid_value"
        } else {
            "malformed_body"
        };
        for body in [json!([[]]), json!(["root", PASSWORD]), json!([])] {
            if is_list && body == json!([]) {
                continue;
            }
            let (status, error) = root.send(method.clone(), &path, body).await;
            assert_eq!(
                (status, &error["code"]),
                (400, &json!(code)),
                "{name}: {error}"
            );
            tried += 1;
        }
    }
    assert!(tried > 60, "{tried}");
    for path in ["/usage", "/health-report", "/limits/reconcile"] {
        let request = control
            .as_gateway(Method::POST, path)
            .json(&json!(["g", []]));
        let (status, error) = status_and_json(request).await;
        assert_eq!(
            (status, &error["code"]),
            (400, &json!("malformed_body")),
            "{path}: {error}"
        );
    }
}
