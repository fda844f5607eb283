use super::{Backend, Policy};

/// Fewest requests under way; ties go round.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LeastLoaded;

impl LeastLoaded {
    pub(crate) const NAME: &str = "least-loaded";
}

impl Policy for LeastLoaded {
    fn choose(
        &self,
        backends: &[Backend],
        eligible: &dyn Fn(usize) -> bool,
        turn: usize,
    ) -> Option<usize> {
        let all = || (0..backends.len()).filter(|index| eligible(*index));
        let count = all().count();
        let first = turn.checked_rem(count)?;
        all()
            .enumerate()
            .min_by_key(|(place, index)| {
                let distance = (place + count - first) % count;
                (backends[*index].live().in_flight(), distance)
            })
            .map(|(_, index)| index)
    }

    fn name(&self) -> &'static str {
        Self::NAME
    }
}
