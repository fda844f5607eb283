//! Sections of a file that are given twice, or by an included file.

use std::collections::HashSet;
use std::sync::Arc;

use super::{MappingEntry, Node, NodeKind, member};
use crate::snapshot::file::problem::{Problem, Problems, Severity};

/// A mapping without one of its members, and that member; `None` if it has none
/// of this name.
pub(in super::super) fn without_section(
    root: &Arc<Node>,
    name: &str,
) -> Option<(Arc<Node>, Arc<Node>)> {
    let NodeKind::Mapping(entries) = &root.kind else {
        return None;
    };
    let at = entries.iter().position(|entry| entry.name == name)?;
    let mut entries = entries.clone();
    let MappingEntry { value, .. } = entries.remove(at);
    let rest = Node::new(root.place, NodeKind::Mapping(entries));
    Some((Arc::new(rest), value))
}

/// Joins the sections of an included file with those of the file. A member that
/// both have is an error.
pub(in super::super) fn join_sections(
    root: &mut Arc<Node>,
    included: &Arc<Node>,
    problems: &mut Problems,
) {
    let mut error = |place, path: String| {
        problems.push(Problem {
            severity: Severity::Error,
            place,
            path,
            message: "another file has it, too".to_owned(),
        });
    };
    let (NodeKind::Mapping(entries), NodeKind::Mapping(more)) = (&root.kind, &included.kind) else {
        if !included.is_null() {
            error(included.place, String::new());
        }
        return;
    };
    let mut entries = entries.clone();
    for again in more {
        let Some(section) = entries.iter_mut().find(|entry| entry.name == again.name) else {
            entries.push(again.clone());
            continue;
        };
        match join(&mut section.value, &again.value) {
            Some(twice) => {
                for MappingEntry { name, place, .. } in twice {
                    error(place, member(&again.name, &name));
                }
            }
            None => error(again.place, member("", &again.name)),
        }
    }
    *root = Arc::new(Node::new(root.place, NodeKind::Mapping(entries)));
}

/// Adds the content of a section to an earlier one. Returns the members that
/// both have, or `None` if they are not of one kind.
pub(super) fn join(section: &mut Arc<Node>, again: &Arc<Node>) -> Option<Vec<MappingEntry>> {
    if again.is_null() {
        return Some(Vec::new());
    }
    if section.is_null() {
        *section = Arc::clone(again);
        return Some(Vec::new());
    }
    let mut twice = Vec::new();
    let kind = match (&section.kind, &again.kind) {
        (NodeKind::Sequence(items), NodeKind::Sequence(more)) => {
            NodeKind::Sequence(items.iter().chain(more).map(Arc::clone).collect())
        }
        (NodeKind::Mapping(entries), NodeKind::Mapping(more)) => {
            let names: HashSet<&str> = entries.iter().map(|entry| entry.name.as_str()).collect();
            let known = |entry: &&MappingEntry| names.contains(entry.name.as_str());
            let (both, new): (Vec<_>, Vec<_>) = more.iter().partition(known);
            twice.extend(both.into_iter().cloned());
            NodeKind::Mapping(entries.iter().chain(new).cloned().collect())
        }
        _ => return None,
    };
    *section = Arc::new(Node::new(section.place, kind));
    Some(twice)
}
