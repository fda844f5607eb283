use super::ToleratedName;

/// Names that are defined more than once, for a reason. This list may only
/// shrink.
pub(super) const TOLERATED: &[ToleratedName] = &[
    ToleratedName {
        krate: "gateway/wire/src/lib.rs",
        name: "Decoded",
        reason: "to be renamed",
    },
    ToleratedName {
        krate: "gateway/wire/src/lib.rs",
        name: "Field",
        reason: "to be renamed",
    },
    ToleratedName {
        krate: "gateway/wire/src/lib.rs",
        name: "Fields",
        reason: "to be renamed",
    },
    ToleratedName {
        krate: "gateway/wire/src/lib.rs",
        name: "Reading",
        reason: "to be renamed",
    },
    ToleratedName {
        krate: "gateway/wire/src/lib.rs",
        name: "State",
        reason: "to be renamed",
    },
    ToleratedName {
        krate: "control/src/lib.rs",
        name: "Gateway",
        reason: "to be renamed",
    },
    ToleratedName {
        krate: "e2e/bench/load/src/lib.rs",
        name: "Connection",
        reason: "to be renamed",
    },
    ToleratedName {
        krate: "e2e/bench/load/src/lib.rs",
        name: "Outcome",
        reason: "to be renamed",
    },
    ToleratedName {
        krate: "e2e/bench/load/src/lib.rs",
        name: "Plan",
        reason: "to be renamed",
    },
    ToleratedName {
        krate: "e2e/bench/load/src/lib.rs",
        name: "Progress",
        reason: "to be renamed",
    },
];
