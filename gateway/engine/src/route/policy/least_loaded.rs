use std::sync::atomic::{AtomicUsize, Ordering};

use super::{Backend, Policy};

/// Fewest requests under way; ties go round.
#[derive(Debug, Default)]
pub(crate) struct LeastLoaded {
    rotation: AtomicUsize,
}

impl LeastLoaded {
    pub(crate) const NAME: &str = "least-loaded";
}

impl Policy for LeastLoaded {
    fn choose(&self, backends: &[Backend], eligible: &dyn Fn(usize) -> bool) -> Option<usize> {
        let count = (0..backends.len()).filter(|index| eligible(*index)).count();
        if count == 0 {
            return None;
        }
        let start = self.rotation.fetch_add(1, Ordering::Relaxed) % count;
        (0..backends.len())
            .filter(|index| eligible(*index))
            .enumerate()
            .min_by_key(|(place, index)| {
                let turn = (place + count - start) % count;
                (backends[*index].live().in_flight(), turn)
            })
            .map(|(_, index)| index)
    }

    fn name(&self) -> &'static str {
        Self::NAME
    }
}
