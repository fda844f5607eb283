//! The OpenAPI document describes every operation completely.

use serde_json::{Map, Value};

const METHODS: [&str; 5] = ["get", "put", "post", "delete", "patch"];

/// Responses of these statuses follow from what an operation accepts.
const DERIVED: [&str; 7] = ["400", "401", "403", "404", "413", "415", "default"];

fn document() -> Value {
    let document = fastllm_control::openapi_document().unwrap();
    serde_json::from_str(&document).unwrap()
}

pub(crate) fn operations() -> Vec<(String, Map<String, Value>)> {
    let mut operations = Vec::new();
    for (path, item) in document()["paths"].as_object().unwrap() {
        for method in METHODS {
            if let Some(operation) = item[method].as_object() {
                operations.push((format!("{method} {path}"), operation.clone()));
            }
        }
    }
    assert!(operations.len() > 30, "{}", operations.len());
    operations
}

fn has_parameter(operation: &Map<String, Value>, location: &str) -> bool {
    operation
        .get("parameters")
        .and_then(Value::as_array)
        .is_some_and(|parameters| parameters.iter().any(|one| one["in"] == location))
}

#[test]
fn every_operation_has_a_short_summary() {
    for (name, operation) in operations() {
        let summary = operation["summary"].as_str().unwrap_or_default();
        assert!(
            (5..=60).contains(&summary.len()) && !summary.ends_with('.'),
            "{name}: {summary}"
        );
    }
}

#[test]
fn every_operation_documents_the_errors_that_it_can_return() {
    for (name, operation) in operations() {
        let mut expected = vec!["503", "default"];
        if operation.contains_key("security") {
            expected.extend(["401", "403"]);
        }
        if !name.starts_with("get ") {
            expected.push("403");
        }
        if operation.contains_key("requestBody") {
            expected.extend(["400", "413", "415"]);
        }
        if has_parameter(&operation, "path") {
            expected.extend(["400", "404"]);
        }
        if has_parameter(&operation, "query") {
            expected.push("400");
        }
        for status in expected {
            assert!(
                operation["responses"].get(status).is_some(),
                "{name} does not document {status}"
            );
        }
    }
}

/// The response itself, if it is a reference to a component.
fn resolved<'a>(document: &'a Value, response: &'a Value) -> &'a Value {
    match response["$ref"].as_str() {
        Some(reference) => document.pointer(&reference[1..]).unwrap(),
        None => response,
    }
}

#[test]
fn every_error_response_has_a_description_and_the_error_body() {
    let document = document();
    for (name, operation) in operations() {
        for (status, response) in operation["responses"].as_object().unwrap() {
            let response = resolved(&document, response);
            let description = response["description"].as_str().unwrap_or_default();
            assert!(!description.is_empty(), "{name}: {status}");
            if !status.starts_with('2') {
                let schema = &response["content"]["application/json"]["schema"]["$ref"];
                assert_eq!(schema, "#/components/schemas/ErrorBody", "{name}: {status}");
            }
        }
    }
}

#[test]
fn operations_refer_to_the_error_responses_that_they_share() {
    let document = document();
    let shared = document["components"]["responses"].as_object().unwrap();
    for (name, operation) in operations() {
        let responses = operation["responses"].as_object().unwrap();
        for (status, response) in responses {
            let own = name == "post /login" && status == "401";
            if DERIVED.contains(&status.as_str()) && !own {
                assert!(response["$ref"].is_string(), "{name}: {status}");
            }
            assert!(
                shared.values().all(|one| one != response),
                "{name}: {status} repeats a component"
            );
        }
    }
}

#[test]
fn descriptions_state_what_a_change_of_limits_or_a_budget_keeps_and_loses() {
    let facts = [
        ("put", "limits", "Replaces all limits"),
        ("put", "budget", "amounts already used are kept"),
        ("delete", "limits", "not set changes nothing"),
        (
            "delete",
            "budget",
            "Deletes the record of the amounts already used",
        ),
    ];
    let subjects = [
        "principals/{id}",
        "principals/{id}/models/{model_id}",
        "keys/{id}",
        "teams/{id}",
    ];
    let operations = operations();
    for (method, kind, fact) in facts {
        for subject in subjects {
            let name = format!("{method} /admin/{subject}/{kind}");
            let (_, operation) = operations.iter().find(|(one, _)| *one == name).unwrap();
            let description = operation["description"].as_str().unwrap_or_default();
            assert!(description.contains(fact), "{name}: {description}");
        }
    }
}

#[test]
fn conflicts_are_documented_where_names_are_unique() {
    let conflicting = [
        "post /admin/models",
        "post /admin/virtual-models",
        "post /admin/principals",
        "post /admin/roles",
        "post /admin/teams",
        "delete /admin/teams/{id}",
    ];
    let operations = operations();
    for name in conflicting {
        let (_, operation) = operations.iter().find(|(one, _)| one == name).unwrap();
        assert!(operation["responses"].get("409").is_some(), "{name}");
    }
}

#[test]
fn every_parameter_is_described() {
    for (name, operation) in operations() {
        let parameters = operation.get("parameters").and_then(Value::as_array);
        for parameter in parameters.into_iter().flatten() {
            let description = parameter["description"].as_str().unwrap_or_default();
            assert!(!description.is_empty(), "{name}: {}", parameter["name"]);
        }
    }
}
