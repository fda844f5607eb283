use fastllm_contract::PolicyKind;

use super::least_loaded::LeastLoaded;
use super::{Candidates, Policy};

/// Every 64th turn is decided by load: otherwise a backend that was slow once
/// would never be measured again.
const LOOK_AGAIN: usize = 64;

/// The lowest latency of successful responses, streamed and plain ones apart.
/// Up to an eighth slower, or not measured yet, counts as equal; among those
/// the least loaded.
#[derive(Debug, Clone, Copy)]
pub(super) struct LowestLatency;

impl Policy for LowestLatency {
    fn choose(&self, choice: &Candidates<'_>) -> Option<usize> {
        let stream = choice.pick.stream;
        let latency = |index: usize| choice.backends[index].state().latency(stream);
        let best = choice.candidates().filter_map(latency).min();
        let look_again = choice.turn % LOOK_AGAIN == LOOK_AGAIN - 1;
        let limit = best
            .filter(|_| !look_again)
            .map_or(u64::MAX, |best| best.saturating_add(best / 8));
        let fast = |index: usize| {
            (choice.eligible)(index) && latency(index).is_none_or(|latency| latency <= limit)
        };
        // The latencies may change in between.
        LeastLoaded
            .choose(&Candidates {
                eligible: &fast,
                ..*choice
            })
            .or_else(|| LeastLoaded.choose(choice))
    }

    fn kind(&self) -> PolicyKind {
        PolicyKind::LowestLatency
    }
}
