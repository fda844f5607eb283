//! Subjects of commits.

use std::path::Path;
use std::process::Command;

use crate::{Finding, Tree};

/// The last commit with a longer subject.
const BASE: &str = "36845c5";
/// Characters of a subject.
const LONGEST: usize = 72;

/// Finds commits with subjects that are too long. Without git, or in a clone
/// without the history, there is nothing to check.
pub fn long_subjects(tree: &Tree) -> Vec<Finding> {
    too_long(&log(&tree.root).unwrap_or_default())
}

/// `commit subject`, one a line.
fn log(root: &Path) -> Option<String> {
    let output = Command::new("git")
        .current_dir(root)
        .args(["log", "--no-merges", "--format=%h %s"])
        .arg(format!("{BASE}..HEAD"))
        .output()
        .ok()?;
    if !output.status.success() {
        return None;
    }
    String::from_utf8(output.stdout).ok()
}

fn too_long(log: &str) -> Vec<Finding> {
    log.lines()
        .filter_map(|line| line.split_once(' '))
        .map(|(commit, subject)| (commit, subject.chars().count()))
        .filter(|(_, length)| *length > LONGEST)
        .map(|(commit, length)| {
            format!("{commit}: a subject of {length} characters, at most {LONGEST}")
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_subject_is_found() {
        let log = format!("1111111 {}\n2222222 {}\n", "ä".repeat(72), "b".repeat(73));
        assert_eq!(
            too_long(&log),
            ["2222222: a subject of 73 characters, at most 72"]
        );
    }

    #[test]
    fn a_folder_without_history_has_no_findings() {
        assert_eq!(log(Path::new("/")), None);
    }
}
