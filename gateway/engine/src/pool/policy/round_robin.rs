use fastllm_contract::PolicyKind;

use super::{Candidates, Policy};

/// In rotation, heavier backends more often.
#[derive(Debug, Clone, Copy)]
pub(super) struct RoundRobin;

impl Policy for RoundRobin {
    fn choose(&self, choice: &Candidates<'_>) -> Option<usize> {
        // Without weights all candidates are equal.
        let weight = |index: usize| u64::from(choice.backends[index].weight());
        let total: u64 = choice.candidates().map(weight).sum();
        let first = choice.candidates().next()?;
        let even = choice
            .candidates()
            .all(|index| weight(index) == weight(first));
        if total == 0 || even {
            let count = choice.candidates().count();
            return choice.candidates().nth(choice.turn.checked_rem(count)?);
        }
        let mut left = spread(choice.turn, total);
        choice.candidates().find(|index| {
            let share = weight(*index);
            let here = left < share;
            left = left.saturating_sub(share);
            here
        })
    }

    fn kind(&self) -> PolicyKind {
        PolicyKind::RoundRobin
    }
}

/// A position below `total` for every turn, such that the positions of
/// consecutive turns are evenly spread (multiples of the golden ratio): the
/// turns of a heavy backend do not come all at once.
fn spread(turn: usize, total: u64) -> u64 {
    let fraction = (turn as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let place = (u128::from(fraction) * u128::from(total)) >> 64;
    u64::try_from(place).unwrap_or(0)
}
