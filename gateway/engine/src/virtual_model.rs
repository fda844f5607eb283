use std::sync::Arc;

use fastllm_contract::{ModelName, SplitBy, Target, VirtualModel as Described};

use super::ask::{mix, seed};
use super::rule::Rule;
use super::{Pool, RouteQuery};
use crate::identify::Caller;

/// A name that stands for other models, ready for requests.
#[derive(Debug)]
pub(crate) struct VirtualModel {
    name: ModelName,
    rules: Vec<Rule>,
    defaults: Targets,
    split_by: SplitBy,
    seed: u64,
}

/// Models that share traffic by weight, each once.
#[derive(Debug)]
pub(super) struct Targets(Vec<Target>);

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

    pub(super) fn rules(&self) -> &[Rule] {
        &self.rules
    }

    pub(super) fn defaults(&self) -> &Targets {
        &self.defaults
    }

    /// Every model that it may stand for; one may come several times.
    pub(super) fn targets(&self) -> impl Iterator<Item = &ModelName> {
        self.rules
            .iter()
            .map(Rule::targets)
            .chain([&self.defaults])
            .flat_map(|targets| &targets.0)
            .map(|target| &target.model)
    }

    /// Where in the split a request falls: the same for all that shall stay
    /// together, independent of other virtual models.
    pub(super) fn place(&self, caller: &Caller, ask: &RouteQuery<'_>) -> u64 {
        let whole = match (self.split_by, caller.identified()) {
            (SplitBy::Caller, Some(identified)) => identified.principal.id().0,
            (SplitBy::Caller, None) | (SplitBy::Prompt, _) => ask.prompt_hash,
        };
        mix(whole ^ self.seed)
    }
}

impl Targets {
    /// Of a model that is named twice the first place counts, and both weights.
    pub(super) fn build(described: &[Target]) -> Self {
        let mut targets: Vec<Target> = Vec::with_capacity(described.len());
        for target in described {
            match targets.iter_mut().find(|known| known.model == target.model) {
                Some(known) => known.weight = known.weight.saturating_add(target.weight),
                None => targets.push(target.clone()),
            }
        }
        Self(targets)
    }

    /// The targets that `usable` gives a pool for: the one whose share `place`
    /// falls into, then the others as they were declared.
    pub(super) fn ordered<'a>(
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

/// The index of the share that `place` falls into; 0 where there are none.
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
    fn each_share_is_as_large_as_its_weight() {
        let mut counts = [0; 4];
        for place in 0..100 {
            counts[pick(&[0, 3, 0, 1], place)] += 1;
        }
        assert_eq!(counts, [0, 75, 0, 25]);
        assert_eq!(pick(&[0, 0], 5), 0);
        assert_eq!(pick(&[], 5), 0);
    }
}
