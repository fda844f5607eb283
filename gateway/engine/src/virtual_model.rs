//! Virtual models: rules that map a requested name to concrete models.

mod route_query;
mod rule;
mod rule_skipped;

pub use route_query::{HeaderFields, RouteQuery};
pub(crate) use rule::Rule;
pub use rule_skipped::RuleSkipped;

use std::sync::Arc;

use fastllm_contract::{ModelName, SplitBy, Target, VirtualModel as Described};

use crate::caller::Caller;
use crate::hash::{mix, seed};
use crate::pool::Pool;

/// A virtual model, ready for requests.
#[derive(Debug)]
pub(crate) struct VirtualModel {
    name: ModelName,
    rules: Vec<Rule>,
    defaults: Targets,
    split_by: SplitBy,
    seed: u64,
}

/// Models that share requests by weight, each once.
#[derive(Debug)]
pub(crate) struct Targets(Vec<Target>);

impl VirtualModel {
    pub(crate) fn build(described: &Described) -> Self {
        let Described {
            name,
            rules,
            default_targets,
            split_by,
        } = described;
        Self {
            name: name.clone(),
            rules: rules.iter().map(Rule::build).collect(),
            defaults: Targets::build(default_targets),
            split_by: *split_by,
            seed: seed(name.as_str()),
        }
    }

    pub(crate) fn name(&self) -> &ModelName {
        &self.name
    }

    pub(crate) fn rules(&self) -> &[Rule] {
        &self.rules
    }

    pub(crate) fn defaults(&self) -> &Targets {
        &self.defaults
    }

    /// Every target; one may occur several times.
    pub(crate) fn targets(&self) -> impl Iterator<Item = &ModelName> {
        self.rules
            .iter()
            .map(Rule::targets)
            .chain([&self.defaults])
            .flat_map(|targets| &targets.0)
            .map(|target| &target.model)
    }

    /// The position of a request in the split: equal for requests that stay
    /// together, independent of other virtual models.
    pub(crate) fn place(&self, caller: &Caller, ask: &RouteQuery<'_>) -> u64 {
        let whole = match (self.split_by, caller.identified()) {
            (SplitBy::Caller, Some(identified)) => identified.principal.id().0,
            (SplitBy::Caller, None) | (SplitBy::Prompt, _) => ask.prompt_hash,
        };
        mix(whole ^ self.seed)
    }
}

impl Targets {
    /// Of a repeated model the first position counts, and the sum of weights.
    pub(crate) fn build(described: &[Target]) -> Self {
        let mut targets: Vec<Target> = Vec::with_capacity(described.len());
        for target in described {
            match targets.iter_mut().find(|known| known.model == target.model) {
                Some(known) => known.weight = known.weight.saturating_add(target.weight),
                None => targets.push(target.clone()),
            }
        }
        Self(targets)
    }

    /// The targets for which `usable` returns a pool: the one whose share
    /// contains `place` first, then the others as declared.
    pub(crate) fn ordered<'a>(
        &self,
        place: u64,
        mut usable: impl FnMut(&ModelName) -> Option<&'a Arc<Pool>>,
    ) -> Vec<Arc<Pool>> {
        let mut weights = Vec::with_capacity(self.0.len());
        let mut pools = Vec::with_capacity(self.0.len());
        for target in &self.0 {
            if let Some(pool) = usable(&target.model) {
                weights.push(u64::from(target.weight));
                pools.push(Arc::clone(pool));
            }
        }
        let head = pick(&weights, place);
        if let Some(first) = pools.get_mut(..=head) {
            first.rotate_right(1);
        }
        pools
    }
}

/// The index of the share that contains `place`; 0 without shares.
fn pick(weights: &[u64], place: u64) -> usize {
    let mut left = place.checked_rem(weights.iter().sum()).unwrap_or(0);
    for (index, weight) in weights.iter().enumerate() {
        match left.checked_sub(*weight) {
            Some(rest) => left = rest,
            None => return index,
        }
    }
    0
}

#[cfg(test)]
mod tests {
    use super::pick;

    #[test]
    fn shares_follow_weights() {
        let mut counts = [0; 4];
        for place in 0..100 {
            counts[pick(&[0, 3, 0, 1], place)] += 1;
        }
        assert_eq!(counts, [0, 75, 0, 25]);
        assert_eq!(pick(&[0, 0], 5), 0);
        assert_eq!(pick(&[], 5), 0);
    }
}
