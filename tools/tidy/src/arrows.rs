use std::fs;

use crate::{Finding, Tree};

/// A crate's folder, the crates of this project that it may use, and the
/// libraries that it may not.
type Arrow = (
    &'static str,
    &'static [&'static str],
    &'static [&'static str],
);

const SOCKETS: &[&str] = &[
    "tokio",
    "mio",
    "socket2",
    "hyper",
    "hyper-util",
    "reqwest",
    "axum",
    "sqlx",
    "kube",
    "tokio-util",
    "tokio-rustls",
];
const PLANES: &[&str] = &["sqlx", "kube", "k8s-openapi", "axum"];

const ARROWS: [Arrow; 13] = [
    (
        "gateway/contract",
        &[],
        &["serde_json", "tokio", "hyper", "sqlx", "kube"],
    ),
    ("gateway/engine", &["fastllm-contract"], SOCKETS),
    ("gateway/wire", &[], SOCKETS),
    (
        "gateway/translate",
        &["fastllm-contract", "fastllm-wire"],
        SOCKETS,
    ),
    (
        "gateway",
        &[
            "fastllm-contract",
            "fastllm-engine",
            "fastllm-wire",
            "fastllm-translate",
            "fastllm-process",
        ],
        PLANES,
    ),
    ("process", &[], PLANES),
    (
        "control",
        &[
            "fastllm-contract",
            "fastllm-engine",
            "fastllm-crds",
            "fastllm-process",
        ],
        &[],
    ),
    (
        "control/fastllm-proxy",
        &["fastllm-gateway", "fastllm-control", "fastllm-process"],
        PLANES,
    ),
    ("crds", &[], &["sqlx", "axum", "reqwest", "tokio"]),
    ("operator", &["fastllm-crds", "fastllm-process"], &["sqlx"]),
    ("e2e/bench/load", &[], &["sqlx", "kube"]),
    (
        "e2e/bench/steps",
        &["fastllm-contract", "fastllm-engine", "fastllm-wire"],
        SOCKETS,
    ),
    ("tools/tidy", &[], SOCKETS),
];

/// Finds dependencies that the architecture does not allow, and workspace
/// members without a rule.
pub fn broken_arrows(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for member in members(tree) {
        match ARROWS.iter().find(|(folder, ..)| *folder == member) {
            Some(arrow) => findings.extend(check(tree, arrow)),
            None => findings.push(format!(
                "{member}/Cargo.toml:1: no rule in tools/tidy for this crate"
            )),
        }
    }
    findings
}

/// The folders of the workspace's crates.
pub(crate) fn members(tree: &Tree) -> Vec<String> {
    let manifest = parse(tree, "");
    let members = manifest
        .get("workspace")
        .and_then(|workspace| workspace.get("members"))
        .and_then(toml::Value::as_array)
        .cloned()
        .unwrap_or_default();
    members
        .iter()
        .filter_map(|member| member.as_str().map(str::to_owned))
        .collect()
}

fn check(tree: &Tree, arrow: &Arrow) -> Vec<Finding> {
    wrong_dependencies(&parse(tree, arrow.0), arrow)
}

fn wrong_dependencies(manifest: &toml::Table, (folder, ours, banned): &Arrow) -> Vec<Finding> {
    let Some(dependencies) = manifest.get("dependencies").and_then(toml::Value::as_table) else {
        return Vec::new();
    };
    dependencies
        .keys()
        .filter(|name| {
            banned.contains(&name.as_str())
                || name.starts_with("fastllm-") && !ours.contains(&name.as_str())
        })
        .map(|name| format!("{folder}/Cargo.toml:1: may not depend on {name}"))
        .collect()
}

fn parse(tree: &Tree, folder: &str) -> toml::Table {
    let path = tree.root.join(folder).join("Cargo.toml");
    fs::read_to_string(path)
        .ok()
        .and_then(|text| text.parse().ok())
        .unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wrong_arrow_is_found() {
        let manifest = "[dependencies]\nserde = '1'\nsqlx = '1'\nfastllm-control.path = 'c'\n\
            fastllm-contract.path = 'd'\n[dev-dependencies]\ntokio = '1'"
            .parse()
            .unwrap();
        let arrow = ("gateway/engine", &["fastllm-contract"][..], SOCKETS);
        assert_eq!(
            wrong_dependencies(&manifest, &arrow),
            [
                "gateway/engine/Cargo.toml:1: may not depend on fastllm-control",
                "gateway/engine/Cargo.toml:1: may not depend on sqlx",
            ]
        );
    }
}
