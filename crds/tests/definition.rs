//! The checked-in CRD matches the types.
#![expect(clippy::unwrap_used, reason = "tests")]

use fastllm_crds::{crd, crd_yaml};
use serde_json::Value;

#[test]
fn the_checked_in_crd_is_up_to_date() {
    let path = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../config/crd/fastllmproxies.yaml"
    );
    let checked_in = std::fs::read_to_string(path).unwrap();
    assert!(
        checked_in == crd_yaml().unwrap(),
        "config/crd/fastllmproxies.yaml is stale: \
         cargo run --release -p fastllm-crds --example crd > config/crd/fastllmproxies.yaml"
    );
}

fn schema() -> Value {
    let definition = serde_json::to_value(crd()).unwrap();
    definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"].clone()
}

#[test]
fn every_field_has_a_description() {
    fn walk(path: &str, node: &Value, missing: &mut Vec<String>) {
        if let Some(fields) = node.get("properties").and_then(Value::as_object) {
            for (name, field) in fields {
                let path = format!("{path}.{name}");
                if field.get("description").is_none() && !path.starts_with(".metadata") {
                    missing.push(path.clone());
                }
                walk(&path, field, missing);
            }
        }
        if let Some(items) = node.get("items") {
            walk(&format!("{path}[]"), items, missing);
        }
    }
    let mut missing = Vec::new();
    walk("", &schema(), &mut missing);
    assert_eq!(missing, Vec::<String>::new());
}

// A violated limit of the schema prevents the API server from evaluating any rule,
// and its message then contains a line about that.
#[test]
fn the_limits_of_the_schema_are_above_those_of_the_rules() {
    fn walk(path: &str, node: &Value, strict: &mut Vec<String>) {
        for (limit, rule) in [("maxLength", 1024), ("maxItems", 32)] {
            if node[limit].as_u64().is_some_and(|max| max <= rule) {
                strict.push(format!("{path}: {limit}"));
            }
        }
        for (name, field) in node["properties"].as_object().into_iter().flatten() {
            walk(&format!("{path}.{name}"), field, strict);
        }
        if node.get("items").is_some() {
            walk(&format!("{path}[]"), &node["items"], strict);
        }
    }
    let mut strict = Vec::new();
    walk("spec", &schema()["properties"]["spec"], &mut strict);
    assert_eq!(strict, Vec::<String>::new());
}

#[test]
fn every_string_has_a_rule_or_an_enum() {
    fn walk(path: &str, node: &Value, free: &mut Vec<String>) {
        let ruled = |node: &Value| {
            node.get("enum").is_some() || node.get("x-kubernetes-validations").is_some()
        };
        if node["type"] == "string" && !ruled(node) {
            free.push(path.to_owned());
        }
        for (name, field) in node["properties"].as_object().into_iter().flatten() {
            walk(&format!("{path}.{name}"), field, free);
        }
        if node.get("items").is_some() && !ruled(node) {
            walk(&format!("{path}[]"), &node["items"], free);
        }
    }
    let mut free = Vec::new();
    walk("spec", &schema()["properties"]["spec"], &mut free);
    assert_eq!(free, Vec::<String>::new());
}

#[test]
fn a_new_resource_has_no_observed_generation() {
    assert_eq!(
        schema()["properties"]["status"]["default"],
        serde_json::json!({"observedGeneration": -1})
    );
}

#[test]
fn omitted_planes_have_defaults() {
    let spec = &schema()["properties"]["spec"]["properties"];
    assert_eq!(spec["control"]["default"]["replicas"], 1);
    assert_eq!(spec["proxy"]["default"]["replicas"], 2);
    assert_eq!(spec["imagePullPolicy"]["default"], "IfNotPresent");
    assert_eq!(spec["observability"]["default"]["logLevel"], "info");
    assert_eq!(spec["image"]["default"], fastllm_crds::default_image());
}

#[test]
fn the_crd_contains_the_rules_of_the_types() {
    let schema = schema();
    let spec = &schema["properties"]["spec"]["properties"];
    let rule = |node: &Value| node["x-kubernetes-validations"][0]["rule"].clone();
    assert_eq!(rule(&spec["encryptionKey"]), "self == oldSelf");
    assert_eq!(
        rule(&spec["proxy"]["properties"]["replicas"]),
        "self >= 0 && self <= 10000"
    );
    assert_eq!(
        rule(&spec["database"]["properties"]["key"]),
        "self.size() <= 253 && self != '.' && !self.startsWith('..') \
         && self.matches('^[-._a-zA-Z0-9]+$')"
    );
    assert_eq!(
        spec["proxy"]["properties"]["resources"]["x-kubernetes-validations"]
            .as_array()
            .unwrap()
            .len(),
        2
    );
    assert_eq!(
        schema["x-kubernetes-validations"].as_array().unwrap().len(),
        2
    );
}
