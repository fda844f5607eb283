//! Findings that a rule tolerates, with the reason.

use crate::Finding;

/// Files with a number of findings that are tolerated.
pub(crate) struct Tolerated {
    /// The start of the files' paths.
    pub(crate) start: &'static str,
    /// How many findings there are. Fewer is an error, too: allow-lists may
    /// only shrink.
    pub(crate) count: usize,
    /// Why they are tolerated.
    pub(crate) reason: &'static str,
}

/// The findings that an allow-list does not cover, and its stale entries.
/// Where a file has more findings than allowed, all of them are returned.
pub(crate) fn not_tolerated(findings: Vec<Finding>, list: &[Tolerated]) -> Vec<Finding> {
    let (mut rest, mut covered) = (Vec::new(), vec![Vec::new(); list.len()]);
    for finding in findings {
        match list
            .iter()
            .position(|entry| finding.starts_with(entry.start))
        {
            Some(index) => covered[index].push(finding),
            None => rest.push(finding),
        }
    }
    for (entry, found) in list.iter().zip(covered) {
        if found.len() > entry.count {
            rest.extend(found);
        } else if found.len() < entry.count {
            rest.push(format!(
                "{}: {} findings ({}); lower the allow-list from {}",
                entry.start,
                found.len(),
                entry.reason,
                entry.count
            ));
        }
    }
    rest
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rest(findings: &[&str]) -> Vec<Finding> {
        let list = [Tolerated {
            start: "a/",
            count: 2,
            reason: "generated",
        }];
        let findings = findings.iter().map(|&finding| finding.to_owned());
        not_tolerated(findings.collect(), &list)
    }

    #[test]
    fn exactly_the_allowed_number_is_tolerated() {
        assert_eq!(rest(&["a/x:1: p", "b/y:1: p", "a/z:2: p"]), ["b/y:1: p"]);
        assert_eq!(rest(&["a/x:1: p", "a/x:2: p", "a/x:3: p"]).len(), 3);
        assert_eq!(
            rest(&["a/x:1: p"]),
            ["a/: 1 findings (generated); lower the allow-list from 2"]
        );
    }
}
