use crate::{Finding, Source, Tree};

/// Module names that do not describe their content.
const VAGUE: [&str; 5] = ["utils", "common", "helpers", "misc", "manager"];

/// Maximum number of `unsafe` blocks in the product, each justified by a
/// measurement. It may only shrink. Fuzz targets are not counted.
const UNSAFE_BLOCKS: usize = 0;

/// Finds names, words and attributes that the style bans.
pub fn banned(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut unsafe_blocks = 0;
    for source in tree.sources.iter().filter(|source| !is_this_file(source)) {
        findings.extend(vague_name(source));
        findings.extend(unfinished(source));
        if source.is_rust() {
            findings.extend(rust(source));
            if !source.path.contains("/fuzz/") {
                unsafe_blocks += source.text.matches("unsafe {").count();
            }
        }
    }
    findings.extend(sql_outside_db(tree));
    if unsafe_blocks > UNSAFE_BLOCKS {
        findings.push(format!(
            "{unsafe_blocks} unsafe blocks, at most {UNSAFE_BLOCKS}"
        ));
    }
    findings
}

fn is_this_file(source: &Source) -> bool {
    source.path == "tools/tidy/src/bans.rs"
}

fn vague_name(source: &Source) -> Option<Finding> {
    let mut parts = source.path.split(['/', '.']);
    parts
        .find(|part| VAGUE.contains(part))
        .map(|part| format!("{}:1: `{part}` does not describe the content", source.path))
}

fn unfinished(source: &Source) -> Vec<Finding> {
    const WORDS: [&str; 4] = ["TODO", "FIXME", "XXX:", "unimplemented!"];
    lines_with(
        source,
        |line| WORDS.iter().any(|word| line.contains(word)),
        "unfinished work",
    )
}

fn rust(source: &Source) -> Vec<Finding> {
    let mut findings = lines_with(
        source,
        |line| {
            let line = line.trim_start();
            line.starts_with("#[allow(") || line.starts_with("#![allow(")
        },
        "use #[expect(…, reason)] instead of allow",
    );
    if !source.path.starts_with("operator/") && !source.path.starts_with("crds/") {
        findings.extend(lines_with(
            source,
            |line| line.trim_start().starts_with("use kube") || line.contains(" kube::"),
            "only the operator and the deployment screen use the Kubernetes API",
        ));
    }
    findings
}

/// SQL is only in `control/src/db/`, migrations and tests.
fn sql_outside_db(tree: &Tree) -> Vec<Finding> {
    const MACROS: [&str; 5] = [
        "query!(",
        "query_as!(",
        "query_scalar!(",
        "sqlx::query",
        "QueryBuilder",
    ];
    tree.with_ending(&[".rs"])
        .filter(|source| {
            !source.path.starts_with("control/src/db/")
                && !source.is_test()
                && !is_this_file(source)
        })
        .flat_map(|source| {
            lines_with(
                source,
                |line| MACROS.iter().any(|word| line.contains(word)),
                "SQL belongs in control/src/db/",
            )
        })
        .collect()
}

fn lines_with(source: &Source, wrong: impl Fn(&str) -> bool, what: &str) -> Vec<Finding> {
    source
        .text
        .lines()
        .enumerate()
        .filter(|(_, line)| wrong(line))
        .map(|(index, _)| format!("{}:{}: {what}", source.path, index + 1))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source(path: &str, text: &str) -> Source {
        Source {
            path: path.to_owned(),
            text: text.to_owned(),
        }
    }

    #[test]
    fn finds_vague_names_unfinished_work_and_allowed_lints() {
        assert!(vague_name(&source("a/src/utils/b.rs", "")).is_some());
        assert!(vague_name(&source("a/src/helpers.rs", "")).is_some());
        assert!(vague_name(&source("a/src/route.rs", "")).is_none());
        assert_eq!(unfinished(&source("a.rs", "ok\n// TODO later")).len(), 1);
        assert_eq!(rust(&source("a.rs", "#[allow(dead_code)]")).len(), 1);
        assert_eq!(rust(&source("gateway/src/a.rs", "use kube::Api;")).len(), 1);
        assert_eq!(
            rust(&source("operator/src/a.rs", "use kube::Api;")),
            [""; 0]
        );
    }
}
