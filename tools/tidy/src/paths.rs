//! Paths of the tree that pages name.

use std::path::Path;

use crate::{Finding, Tree};

/// Pages whose paths in backticks have to exist.
const PAGES: [&str; 7] = [
    "CONTRIBUTING.md",
    "README.md",
    "docs/architecture.md",
    "docs/glossary.md",
    "docs/operations.md",
    "e2e/README.md",
    "tools/README.md",
];

/// Finds paths in backticks that do not exist.
pub fn missing_paths(tree: &Tree) -> Vec<Finding> {
    let pages = tree
        .sources
        .iter()
        .filter(|source| PAGES.contains(&source.path.as_str()));
    pages
        .flat_map(|page| {
            named_paths(&page.text, &tree.root)
                .into_iter()
                .filter(|(_, path)| !exists(&tree.root, path))
                .map(|(line, path)| format!("{}:{line}: `{path}` does not exist", page.path))
                .collect::<Vec<_>>()
        })
        .collect()
}

/// What stands in backticks and begins with a folder of the root, by line.
fn named_paths(text: &str, root: &Path) -> Vec<(usize, String)> {
    let mut paths = Vec::new();
    for (index, line) in text.lines().enumerate() {
        for quoted in line.split('`').skip(1).step_by(2) {
            let Some((first, _)) = quoted.split_once('/') else {
                continue;
            };
            let is_path = !quoted.contains(|c: char| c.is_whitespace() || "{}<>$…".contains(c));
            if is_path && !first.is_empty() && root.join(first).is_dir() {
                paths.push((index + 1, quoted.to_owned()));
            }
        }
    }
    paths
}

/// Whether a path exists. `*` as the last part stands for any file, and what
/// follows a `:` for a line.
fn exists(root: &Path, path: &str) -> bool {
    let path = path.split(':').next().unwrap_or(path);
    let path = path.split_once('*').map_or(path, |(folder, _)| {
        folder.rsplit_once('/').map_or(folder, |(folder, _)| folder)
    });
    root.join(path).exists()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_in_backticks_are_read() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR"));
        let text =
            "see `src/lib.rs` and `a/b`\n`GET /src`, `cargo run`, `src/<name>.rs`, `src/none.rs`";
        let paths = named_paths(text, root);
        assert_eq!(
            paths,
            [(1, "src/lib.rs".to_owned()), (2, "src/none.rs".to_owned())]
        );
        assert!(exists(root, "src/lib.rs:3"));
        assert!(exists(root, "src/*.rs"));
        assert!(!exists(root, "src/none.rs"));
    }
}
