use super::ToleratedName;

/// Names that are defined more than once, for a reason. This list may only
/// shrink.
pub(super) const TOLERATED: &[ToleratedName] = &[
    ToleratedName {
        krate: "e2e/bench/load/src/lib.rs",
        name: "Connection",
        reason: "each program of this crate has its own",
    },
    ToleratedName {
        krate: "e2e/bench/load/src/lib.rs",
        name: "Outcome",
        reason: "each program of this crate has its own",
    },
    ToleratedName {
        krate: "e2e/bench/load/src/lib.rs",
        name: "Plan",
        reason: "each program of this crate has its own",
    },
    ToleratedName {
        krate: "e2e/bench/load/src/lib.rs",
        name: "Progress",
        reason: "each program of this crate has its own",
    },
];
