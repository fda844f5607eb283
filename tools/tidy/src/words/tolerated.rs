use super::ToleratedUses;

/// Folders in which replaced words are still used. This list may only shrink.
pub(super) const TOLERATED: &[ToleratedUses] = &[];
