use std::collections::{BTreeMap, BTreeSet};

use super::Imports;

/// The strongly connected components of two or more modules, sorted.
pub(super) fn cycles(imports: &Imports) -> Vec<BTreeSet<String>> {
    let reached = reachable(imports);
    let mut found = BTreeSet::new();
    for (module, targets) in &reached {
        let cycle: BTreeSet<String> = targets
            .iter()
            .filter(|other| {
                reached
                    .get(*other)
                    .is_some_and(|back| back.contains(*module))
            })
            .cloned()
            .collect();
        if cycle.len() > 1 {
            found.insert(cycle);
        }
    }
    found.into_iter().collect()
}

/// All modules that each module reaches, over any number of imports.
fn reachable(imports: &Imports) -> BTreeMap<&String, BTreeSet<String>> {
    let mut reached: BTreeMap<&String, BTreeSet<String>> = BTreeMap::new();
    for start in imports.keys().map(|(from, _)| from) {
        let mut seen = BTreeSet::new();
        let mut pending = vec![start];
        while let Some(module) = pending.pop() {
            for (_, to) in imports.keys().filter(|(from, _)| from == module) {
                if seen.insert(to.clone()) {
                    pending.push(to);
                }
            }
        }
        reached.insert(start, seen);
    }
    reached
}

#[cfg(test)]
mod tests {
    use super::*;

    fn graph(pairs: &[(&str, &str)]) -> Imports {
        pairs
            .iter()
            .map(|(from, to)| (((*from).to_owned(), (*to).to_owned()), String::new()))
            .collect()
    }

    #[test]
    fn finds_each_cycle_once_and_no_chain() {
        let imports = graph(&[
            ("a", "b"),
            ("b", "c"),
            ("c", "a"),
            ("c", "d"),
            ("d", "e"),
            ("e", "d"),
            ("e", "f"),
        ]);
        let found = cycles(&imports);
        let names: Vec<Vec<&str>> = found
            .iter()
            .map(|cycle| cycle.iter().map(String::as_str).collect())
            .collect();
        assert_eq!(names, [vec!["a", "b", "c"], vec!["d", "e"]]);
    }

    #[test]
    fn a_graph_without_cycles_has_none() {
        let found = cycles(&graph(&[("a", "b"), ("a", "c"), ("b", "c")]));
        assert!(found.is_empty());
    }
}
