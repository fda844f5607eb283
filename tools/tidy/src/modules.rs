//! Imports between the top modules of a crate: no cycles.

mod cycles;
mod imports;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::{io, path};

use crate::krate::{Krate, read_package};
use crate::{Finding, Tree, members};

pub(crate) use imports::imports;

/// Where one top module uses another, as `path:line`, by pair.
pub(crate) type Imports = BTreeMap<(String, String), String>;

/// A cycle that is tolerated, for a reason.
struct ToleratedCycle {
    /// The root file of the crate.
    krate: &'static str,
    /// The modules of the cycle. A cycle of fewer of them is an error, too:
    /// this list may only shrink.
    modules: &'static [&'static str],
    /// Why it is tolerated.
    reason: &'static str,
}

const TOLERATED: &[ToleratedCycle] = &[];

/// Finds cycles of imports among the top modules of each crate, and entries of
/// the allow-list that are no longer needed.
pub fn module_cycles(tree: &Tree) -> io::Result<Vec<Finding>> {
    let mut findings = Vec::new();
    let mut stale: Vec<&ToleratedCycle> = TOLERATED.iter().collect();
    for folder in members(tree) {
        for krate in read_package(&tree.root, &folder)? {
            let imports = imports(&krate);
            for cycle in cycles::cycles(&imports) {
                let allowed = stale.iter().position(|entry| {
                    entry.krate == krate.name && cycle.iter().eq(entry.modules.iter())
                });
                match allowed {
                    Some(index) => drop(stale.swap_remove(index)),
                    None => findings.push(describe(&krate.name, &cycle, &imports)),
                }
            }
        }
    }
    findings.extend(stale.into_iter().map(|entry| {
        format!(
            "{}:1: the tolerated cycle ({}) is gone; remove it from the allow-list",
            entry.krate, entry.reason
        )
    }));
    Ok(findings)
}

/// Lists the imports between the top modules of the crates in `folder`, and
/// the cycles among them.
pub fn list_modules(root: &path::Path, folder: &str) -> io::Result<String> {
    let mut text = String::new();
    for krate in read_package(root, folder.trim_end_matches('/'))? {
        let imports = imports(&krate);
        let _ = writeln!(text, "{}", krate.name);
        for module in top_modules(&krate) {
            let _ = writeln!(text, "  {module}");
            for ((from, to), place) in &imports {
                if *from == module {
                    let _ = writeln!(text, "    -> {to:<20} {place}");
                }
            }
        }
        for cycle in cycles::cycles(&imports) {
            let _ = writeln!(text, "{}", describe(&krate.name, &cycle, &imports));
        }
    }
    Ok(text)
}

fn top_modules(krate: &Krate) -> BTreeSet<String> {
    let paths = krate.modules.iter().filter(|module| !module.test);
    paths
        .filter_map(|module| module.path.first().cloned())
        .collect()
}

fn describe(krate: &str, cycle: &BTreeSet<String>, imports: &Imports) -> String {
    let members: Vec<&str> = cycle.iter().map(String::as_str).collect();
    let mut text = format!(
        "{krate}:1: {} top modules import each other: {}",
        cycle.len(),
        members.join(", ")
    );
    for ((from, to), place) in imports {
        if cycle.contains(from) && cycle.contains(to) {
            let _ = write!(text, "\n    {from} -> {to}: {place}");
        }
    }
    text
}
