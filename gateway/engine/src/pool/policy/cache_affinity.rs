use std::sync::Arc;

use fastllm_contract::{ModelName, PolicyKind};

use super::least_loaded::LeastLoaded;
use super::{Candidates, Policy};
use crate::hash::{mix, seed};
use crate::pool::{Affinity, Boundary, Tuning};

/// Prefers the backend that has seen the longest prefix of the prompt, whose
/// engine still caches it, unless that backend is too busy.
#[derive(Debug)]
pub(super) struct CacheAffinity {
    table: Arc<Affinity>,
    seed: u64,
    balance_abs: u64,
    balance_rel_percent: u64,
}

/// The longest known prefix: its index among the boundaries, and its backend.
#[derive(Debug, Clone, Copy)]
struct PrefixMatch {
    place: usize,
    backend: usize,
}

impl CacheAffinity {
    pub(super) fn new(model: &ModelName, tuning: &Tuning, table: Arc<Affinity>) -> Self {
        Self {
            table,
            seed: seed(model.as_str()),
            balance_abs: tuning.balance_abs,
            balance_rel_percent: tuning.balance_rel_percent,
        }
    }

    /// The caches of engines are per model, too.
    fn key(&self, boundary: &Boundary) -> u64 {
        mix(boundary.hash ^ self.seed)
    }

    fn known(&self, choice: &Candidates<'_>) -> Option<PrefixMatch> {
        let boundaries = choice.pick.prompt.iter().enumerate().rev();
        boundaries
            .filter_map(|(place, boundary)| {
                Some((place, self.table.prompts.get(self.key(boundary))?))
            })
            .find_map(|(place, mark)| {
                let backend = choice
                    .candidates()
                    .find(|index| choice.backends[*index].mark() == mark)?;
                Some(PrefixMatch { place, backend })
            })
    }

    /// Whether the known prefix is long enough to accept a higher load.
    fn may_stay(&self, choice: &Candidates<'_>, known: PrefixMatch) -> bool {
        let backend = &choice.backends[known.backend];
        let loads = choice.candidates().map(|index| &choice.backends[index]);
        let Some(least) = loads.min_by_key(|backend| backend.load()) else {
            return true;
        };
        if backend.load() <= least.load() {
            return true;
        }
        // A short prefix that many prompts share, such as a system prompt, must
        // not attract all of them to one backend.
        let bytes = |place: usize| choice.pick.prompt.get(place).map_or(0, |end| end.bytes);
        let all = bytes(choice.pick.prompt.len().saturating_sub(1));
        if bytes(known.place) < all / 2 {
            return false;
        }
        let relative = least
            .state()
            .in_flight()
            .saturating_mul(self.balance_rel_percent)
            .div_ceil(100);
        let tolerance = self.balance_abs.max(relative);
        backend.load() <= least.load().saturating_add(least.load_of(tolerance))
    }

    /// The least loaded backend; among equals the one with the fewest
    /// conversations, then the one that every replica would choose for this
    /// prompt.
    fn settle(choice: &Candidates<'_>, whole: u64) -> Option<usize> {
        choice.candidates().min_by_key(|index| {
            let backend = &choice.backends[*index];
            let conversations = backend.load_of(backend.state().conversations().saturating_add(1));
            (
                backend.load(),
                conversations,
                mix(whole ^ u64::from(backend.mark())),
            )
        })
    }
}

impl Policy for CacheAffinity {
    fn choose(&self, choice: &Candidates<'_>) -> Option<usize> {
        let Some(last) = choice.pick.prompt.last() else {
            return LeastLoaded.choose(choice);
        };
        let known = self.known(choice);
        let stays = known.filter(|known| self.may_stay(choice, *known));
        let chosen = if let Some(known) = stays {
            known.backend
        } else {
            let chosen = Self::settle(choice, self.key(last))?;
            choice.backends[chosen].state().record_conversation();
            chosen
        };
        // A known prefix stays assigned, even if this request goes to another
        // backend. The rest of the prompt is assigned to the chosen backend.
        let mark = choice.backends[chosen].mark();
        let new = known.map_or(0, |known| known.place + 1);
        for boundary in choice.pick.prompt.iter().skip(new) {
            self.table.prompts.set(self.key(boundary), mark);
        }
        Some(chosen)
    }

    fn kind(&self) -> PolicyKind {
        PolicyKind::CacheAffinity
    }
}
