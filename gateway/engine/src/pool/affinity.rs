use std::sync::atomic::{AtomicU64, Ordering};

use fastllm_contract::PolicyKind;

use super::UNHEALTHY_AFTER;

/// What the policies are tuned with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tuning {
    /// The policy of models that name none.
    pub policy: PolicyKind,
    /// How many more requests than the least loaded backend the remembered one
    /// may have under way.
    pub balance_abs: u64,
    /// The same as a share of the least load, in percent of it; the larger of
    /// both counts.
    pub balance_rel_percent: u64,
    /// How many beginnings of prompts are remembered: rounded up to a power of
    /// two, 64 to 2^24.
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

/// Which backend has seen which beginning of a prompt: a table of fixed size
/// that forgets by overwriting. Shared by all models, and by all snapshots.
#[derive(Debug)]
pub(crate) struct Affinity {
    /// A tag of the hash above the mark of a backend; 0 is empty.
    slots: Box<[AtomicU64]>,
}

impl Affinity {
    pub(crate) fn new(slots: usize) -> Self {
        let slots = slots.clamp(64, 1 << 24).next_power_of_two();
        Self {
            slots: (0..slots).map(|_| AtomicU64::new(0)).collect(),
        }
    }

    /// The mark of the backend that was remembered for a hash.
    pub(super) fn get(&self, hash: u64) -> Option<u32> {
        let entry = self.slot(hash).load(Ordering::Relaxed);
        if entry >> 32 != tag(hash) {
            return None;
        }
        u32::try_from(entry & u64::from(u32::MAX)).ok()
    }

    /// Remembers a backend; what was in the slot is forgotten.
    pub(super) fn set(&self, hash: u64, mark: u32) {
        let entry = tag(hash) << 32 | u64::from(mark);
        self.slot(hash).store(entry, Ordering::Relaxed);
    }

    fn slot(&self, hash: u64) -> &AtomicU64 {
        // Its length is a power of two, so the low bits are an index.
        let low = hash & (self.slots.len() as u64 - 1);
        &self.slots[usize::try_from(low).unwrap_or(0)]
    }
}

/// 32 bits of a hash that its slot does not tell, and never 0.
fn tag(hash: u64) -> u64 {
    hash >> 32 | 1
}

#[cfg(test)]
mod tests {
    use super::Affinity;
    use crate::route::ask::mix;

    #[test]
    fn what_was_remembered_is_known_until_it_is_overwritten() {
        let table = Affinity::new(1);
        assert_eq!(table.slots.len(), 64);
        assert_eq!(table.get(0), None);
        table.set(0, 0);
        assert_eq!(table.get(0), Some(0));
        table.set(64 | 5 << 32, 7);
        assert_eq!(table.get(0), None);
        assert_eq!(table.get(64 | 5 << 32), Some(7));
        assert_eq!(Affinity::new(usize::MAX).slots.len(), 1 << 24);
    }

    #[test]
    fn strangers_are_hardly_ever_taken_for_known() {
        let table = Affinity::new(1024);
        for number in 0..1024 {
            table.set(mix(number), 1);
        }
        let mistaken = (1024..101_024).filter(|number| table.get(mix(*number)).is_some());
        assert!(mistaken.count() <= 1);
    }
}
