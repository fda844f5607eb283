use fastllm_contract::PolicyKind;

use super::{Candidates, Policy};

/// Fewest requests in flight relative to the weight; ties rotate.
#[derive(Debug, Clone, Copy)]
pub(super) struct LeastLoaded;

impl Policy for LeastLoaded {
    fn choose(&self, choice: &Candidates<'_>) -> Option<usize> {
        let count = choice.candidates().count();
        let first = choice.turn.checked_rem(count)?;
        choice
            .candidates()
            .enumerate()
            .min_by_key(|(place, index)| {
                let distance = (place + count - first) % count;
                (choice.backends[*index].load(), distance)
            })
            .map(|(_, index)| index)
    }

    fn kind(&self) -> PolicyKind {
        PolicyKind::LeastLoaded
    }
}
