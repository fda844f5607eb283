//! Dependencies between the crates of the workspace.

use std::fs;

use crate::{Finding, Tree};

/// What a crate may depend on. Dev-dependencies are not restricted.
struct CrateRule {
    /// The crate's folder.
    folder: &'static str,
    /// The crates of this workspace that it may depend on.
    allowed: &'static [&'static str],
    /// The libraries that it may not depend on.
    banned: &'static [&'static str],
}

const IO: &[&str] = &[
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
const DATABASE_KUBERNETES_AXUM: &[&str] = &["sqlx", "kube", "k8s-openapi", "axum"];

const RULES: [CrateRule; 13] = [
    CrateRule {
        folder: "gateway/contract",
        allowed: &[],
        banned: &["serde_json", "tokio", "hyper", "sqlx", "kube"],
    },
    CrateRule {
        folder: "gateway/engine",
        allowed: &["fastllm-contract"],
        banned: IO,
    },
    CrateRule {
        folder: "gateway/wire",
        allowed: &[],
        banned: IO,
    },
    CrateRule {
        folder: "gateway/translate",
        allowed: &["fastllm-contract", "fastllm-wire"],
        banned: IO,
    },
    CrateRule {
        folder: "gateway",
        allowed: &[
            "fastllm-contract",
            "fastllm-engine",
            "fastllm-wire",
            "fastllm-translate",
            "fastllm-process",
        ],
        banned: DATABASE_KUBERNETES_AXUM,
    },
    CrateRule {
        folder: "process",
        allowed: &[],
        banned: DATABASE_KUBERNETES_AXUM,
    },
    CrateRule {
        folder: "control",
        allowed: &[
            "fastllm-contract",
            "fastllm-engine",
            "fastllm-crds",
            "fastllm-process",
        ],
        banned: &[],
    },
    CrateRule {
        folder: "control/fastllm-proxy",
        allowed: &["fastllm-gateway", "fastllm-control", "fastllm-process"],
        banned: DATABASE_KUBERNETES_AXUM,
    },
    CrateRule {
        folder: "crds",
        allowed: &[],
        banned: &["sqlx", "axum", "reqwest", "tokio"],
    },
    CrateRule {
        folder: "operator",
        allowed: &["fastllm-crds", "fastllm-process"],
        banned: &["sqlx"],
    },
    CrateRule {
        folder: "e2e/bench/load",
        allowed: &[],
        banned: &["sqlx", "kube"],
    },
    CrateRule {
        folder: "e2e/bench/steps",
        allowed: &["fastllm-contract", "fastllm-engine", "fastllm-wire"],
        banned: IO,
    },
    CrateRule {
        folder: "tools/tidy",
        allowed: &[],
        banned: IO,
    },
];

/// Finds dependencies that the architecture does not allow, and workspace
/// members without a rule.
pub fn forbidden_dependencies(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for member in members(tree) {
        match RULES.iter().find(|rule| rule.folder == member) {
            Some(rule) => findings.extend(forbidden(&parse(tree, rule.folder), rule)),
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

fn forbidden(manifest: &toml::Table, rule: &CrateRule) -> Vec<Finding> {
    let Some(dependencies) = manifest.get("dependencies").and_then(toml::Value::as_table) else {
        return Vec::new();
    };
    dependencies
        .keys()
        .filter(|name| {
            rule.banned.contains(&name.as_str())
                || name.starts_with("fastllm-") && !rule.allowed.contains(&name.as_str())
        })
        .map(|name| format!("{}/Cargo.toml:1: may not depend on {name}", rule.folder))
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
    fn a_forbidden_dependency_is_found() {
        let manifest = "[dependencies]\nserde = '1'\nsqlx = '1'\nfastllm-control.path = 'c'\n\
            fastllm-contract.path = 'd'\n[dev-dependencies]\ntokio = '1'"
            .parse()
            .unwrap();
        let rule = CrateRule {
            folder: "gateway/engine",
            allowed: &["fastllm-contract"],
            banned: IO,
        };
        assert_eq!(
            forbidden(&manifest, &rule),
            [
                "gateway/engine/Cargo.toml:1: may not depend on fastllm-control",
                "gateway/engine/Cargo.toml:1: may not depend on sqlx",
            ]
        );
    }
}
