use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use fastllm_contract::PolicyKind;

use super::UNHEALTHY_AFTER;
use crate::hash::mix;

/// Settings of the policies.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tuning {
    /// The default policy.
    pub policy: PolicyKind,
    /// How many more requests than the least loaded backend the remembered
    /// backend may have in flight.
    pub balance_abs: u64,
    /// The same in percent of the least load; the larger of both counts.
    pub balance_rel_percent: u64,
    /// How many prompt prefixes are remembered: rounded up to a power of two,
    /// from 64 to 2^24.
    pub affinity_slots: usize,
    /// Consecutive failed probes that make a backend unhealthy; at least one.
    pub unhealthy_after: u32,
}

impl Default for Tuning {
    fn default() -> Self {
        Self {
            policy: PolicyKind::default(),
            balance_abs: 8,
            balance_rel_percent: 50,
            affinity_slots: 65_536,
            unhealthy_after: UNHEALTHY_AFTER,
        }
    }
}

/// How many stored objects are remembered: 4 MiB, allocated with the first one.
const OWNERS: usize = 1 << 19;

/// What is known about backends. Shared by all models and snapshots.
#[derive(Debug)]
pub(crate) struct Affinity {
    /// Which backend has seen which prompt prefix.
    pub(super) prompts: BackendTable,
    /// Which backend stores which response or conversation, by a hash of its ID.
    owners: OnceLock<BackendTable>,
}

/// Backends by hash: a table of fixed size in which new entries overwrite old
/// ones.
#[derive(Debug)]
pub(super) struct BackendTable {
    /// The tag of a hash above the mark of a backend; 0 is empty.
    slots: Box<[AtomicU64]>,
}

impl Affinity {
    /// Remembers this many prompt prefixes.
    pub(crate) fn new(prompts: usize) -> Self {
        Self {
            prompts: BackendTable::new(prompts),
            owners: OnceLock::new(),
        }
    }

    /// The mark of the backend that stores an object.
    pub(super) fn owner(&self, object: u64) -> Option<u32> {
        self.owners.get()?.get(mix(object))
    }

    /// Remembers the backend that stores an object.
    pub(super) fn set_owner(&self, object: u64, mark: u32) {
        let owners = self.owners.get_or_init(|| BackendTable::new(OWNERS));
        owners.set(mix(object), mark);
    }
}

impl BackendTable {
    fn new(slots: usize) -> Self {
        let slots = slots.clamp(64, 1 << 24).next_power_of_two();
        Self {
            slots: (0..slots).map(|_| AtomicU64::new(0)).collect(),
        }
    }

    /// The mark of the backend remembered for a hash.
    pub(super) fn get(&self, hash: u64) -> Option<u32> {
        let entry = self.slot(hash).load(Ordering::Relaxed);
        if entry >> 32 != tag(hash) {
            return None;
        }
        u32::try_from(entry & u64::from(u32::MAX)).ok()
    }

    /// Remembers a backend; overwrites the entry of the same slot.
    pub(super) fn set(&self, hash: u64, mark: u32) {
        let entry = tag(hash) << 32 | u64::from(mark);
        self.slot(hash).store(entry, Ordering::Relaxed);
    }

    fn slot(&self, hash: u64) -> &AtomicU64 {
        // The length is a power of two, so the low bits are an index.
        let low = hash & (self.slots.len() as u64 - 1);
        &self.slots[usize::try_from(low).unwrap_or(0)]
    }
}

/// 32 bits of a hash that do not determine its slot; never 0.
fn tag(hash: u64) -> u64 {
    hash >> 32 | 1
}

#[cfg(test)]
mod tests {
    use super::{Affinity, BackendTable};
    use crate::hash::mix;

    #[test]
    fn entry_is_found_until_overwritten() {
        let table = BackendTable::new(1);
        assert_eq!(table.slots.len(), 64);
        assert_eq!(table.get(0), None);
        table.set(0, 0);
        assert_eq!(table.get(0), Some(0));
        table.set(64 | 5 << 32, 7);
        assert_eq!(table.get(0), None);
        assert_eq!(table.get(64 | 5 << 32), Some(7));
        assert_eq!(BackendTable::new(usize::MAX).slots.len(), 1 << 24);
    }

    #[test]
    fn the_owner_of_an_object_is_remembered() {
        let affinity = Affinity::new(64);
        assert_eq!(affinity.owner(7), None);
        affinity.set_owner(7, 3);
        affinity.set_owner(8, 4);
        assert_eq!((affinity.owner(7), affinity.owner(8)), (Some(3), Some(4)));
        affinity.set_owner(7, 5);
        assert_eq!(affinity.owner(7), Some(5));
        assert_eq!(affinity.owner(9), None);
    }

    #[test]
    fn false_matches_are_rare() {
        let table = BackendTable::new(1024);
        for number in 0..1024 {
            table.set(mix(number), 1);
        }
        let mistaken = (1024..101_024).filter(|number| table.get(mix(*number)).is_some());
        assert!(mistaken.count() <= 1);
    }
}
