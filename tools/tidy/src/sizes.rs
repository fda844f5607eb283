use crate::{Finding, Source, Tree};

/// Maximum lines of a file, without its tests.
const BUDGET: usize = 500;
/// Maximum lines of unit tests within the file that they test.
const INLINE_TESTS: usize = 150;

/// Files over [`BUDGET`], with the maximum of each (at most 800).
/// This list may only shrink.
const ALLOWED: [(&str, usize); 0] = [];

/// Finds files that are too long, tests that belong in a file of their own,
/// and code after a test module.
pub fn oversized(tree: &Tree) -> Vec<Finding> {
    tree.with_ending(&[".rs", ".py", ".sh", ".ts", ".tsx"])
        .filter(|source| !source.is_test())
        .flat_map(check)
        .collect()
}

fn check(source: &Source) -> Vec<Finding> {
    let path = &source.path;
    let lines: Vec<&str> = source.text.lines().collect();
    let tests_at = lines
        .windows(2)
        .position(|pair| pair[0].trim() == "#[cfg(test)]" && is_test_module(pair[1]));
    let code = tests_at.unwrap_or(lines.len());
    let allowed = ALLOWED
        .iter()
        .find(|(file, _)| file == path)
        .map_or(BUDGET, |(_, most)| *most);

    let mut findings = Vec::new();
    if code > allowed {
        findings.push(format!("{path}:1: {code} lines of code, at most {allowed}"));
    }
    if let Some(start) = tests_at {
        let inline = lines.len() - start;
        if lines[start + 1].contains('{') && inline > INLINE_TESTS {
            findings.push(format!(
                "{path}:{}: {inline} lines of tests; over {INLINE_TESTS} they belong in a tests.rs",
                start + 1
            ));
        }
        if let Some(line) = code_after(&lines, start) {
            findings.push(format!("{path}:{line}: code after the test module"));
        }
    }
    findings
}

fn is_test_module(line: &str) -> bool {
    matches!(line.trim(), "mod tests;" | "mod tests {")
}

/// The first line of code after a test module that begins at `start`, counted
/// from 1. Modules are formatted by rustfmt, so the module ends at `}` in the
/// first column.
fn code_after(lines: &[&str], start: usize) -> Option<usize> {
    let end = if lines[start + 1].contains('{') {
        start + 2 + lines[start + 2..].iter().position(|line| *line == "}")?
    } else {
        start + 1
    };
    lines[end + 1..]
        .iter()
        .position(|line| !line.trim().is_empty())
        .map(|after| end + 2 + after)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source(text: String) -> Source {
        Source {
            path: "a/src/b.rs".to_owned(),
            text,
        }
    }

    #[test]
    fn counts_code_without_its_tests() {
        let tests = "#[cfg(test)]\nmod tests {\n}\n";
        assert_eq!(check(&source("x\n".repeat(BUDGET) + tests)), [""; 0]);
        assert_eq!(check(&source("x\n".repeat(BUDGET + 1) + tests)).len(), 1);
    }

    #[test]
    fn finds_code_after_tests_and_long_tests() {
        let after = "#[cfg(test)]\nmod tests {\n    a\n}\n\nfn late() {}\n".to_owned();
        assert_eq!(
            check(&source(after)),
            ["a/src/b.rs:6: code after the test module"]
        );
        let long = "#[cfg(test)]\nmod tests {\n".to_owned() + &"    x\n".repeat(150) + "}\n";
        assert_eq!(check(&source(long)).len(), 1);
        let sibling = "#[cfg(test)]\nmod tests;\nfn late() {}\n".to_owned();
        assert_eq!(check(&source(sibling)).len(), 1);
    }
}
