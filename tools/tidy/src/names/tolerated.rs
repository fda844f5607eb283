use super::ToleratedName;

/// Names that are defined more than once, for a reason. This list may only
/// shrink.
pub(super) const TOLERATED: &[ToleratedName] = &[
    ToleratedName {
        krate: "gateway/wire/src/lib.rs",
        name: "Decoded",
        reason: "being renamed",
    },
    ToleratedName {
        krate: "gateway/wire/src/lib.rs",
        name: "Field",
        reason: "being renamed",
    },
    ToleratedName {
        krate: "gateway/wire/src/lib.rs",
        name: "Fields",
        reason: "being renamed",
    },
    ToleratedName {
        krate: "gateway/wire/src/lib.rs",
        name: "Reading",
        reason: "being renamed",
    },
    ToleratedName {
        krate: "gateway/wire/src/lib.rs",
        name: "State",
        reason: "being renamed",
    },
    ToleratedName {
        krate: "control/src/lib.rs",
        name: "Gateway",
        reason: "being renamed",
    },
    ToleratedName {
        krate: "e2e/bench/load/src/lib.rs",
        name: "Connection",
        reason: "being renamed",
    },
    ToleratedName {
        krate: "e2e/bench/load/src/lib.rs",
        name: "Outcome",
        reason: "being renamed",
    },
    ToleratedName {
        krate: "e2e/bench/load/src/lib.rs",
        name: "Plan",
        reason: "being renamed",
    },
    ToleratedName {
        krate: "e2e/bench/load/src/lib.rs",
        name: "Progress",
        reason: "being renamed",
    },
];
