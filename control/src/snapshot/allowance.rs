use std::collections::BTreeMap;

use fastllm_contract::{
    Budget, KeyId, Limits, ModelAllowance, ModelName, PrincipalId, Subject, Team, TeamId,
};

use crate::db::snapshot::{AllowanceRows, PublishedTeam};

/// Limits and budgets by whose they are, to be handed out.
#[derive(Default)]
pub(super) struct Allowances {
    limits: BTreeMap<Subject, Limits>,
    budgets: BTreeMap<Subject, Budget>,
    models: BTreeMap<PrincipalId, BTreeMap<ModelName, ModelAllowance>>,
}

impl From<AllowanceRows> for Allowances {
    fn from(rows: AllowanceRows) -> Self {
        let AllowanceRows { limits, budgets } = rows;
        let mut by_holder = Self::default();
        for (subject, limits) in limits {
            match subject {
                Subject::Model(id, model) => by_holder.model(id, model).limits = Some(limits),
                other => {
                    by_holder.limits.insert(other, limits);
                }
            }
        }
        for (subject, budget) in budgets {
            match subject {
                Subject::Model(id, model) => by_holder.model(id, model).budget = Some(budget),
                other => {
                    by_holder.budgets.insert(other, budget);
                }
            }
        }
        by_holder
    }
}

impl Allowances {
    fn model(&mut self, id: PrincipalId, model: ModelName) -> &mut ModelAllowance {
        self.models
            .entry(id)
            .or_default()
            .entry(model)
            .or_insert_with_key(|model| ModelAllowance {
                model: model.clone(),
                limits: None,
                budget: None,
            })
    }

    fn of(&mut self, subject: &Subject) -> (Option<Limits>, Option<Budget>) {
        (self.limits.remove(subject), self.budgets.remove(subject))
    }

    /// A principal's, and those of its use of single models, by model.
    pub(super) fn of_principal(
        &mut self,
        id: PrincipalId,
    ) -> (Option<Limits>, Option<Budget>, Vec<ModelAllowance>) {
        let (limits, budget) = self.of(&Subject::Principal(id));
        let models = self.models.remove(&id).unwrap_or_default();
        (limits, budget, models.into_values().collect())
    }

    /// A key's.
    pub(super) fn of_key(&mut self, id: KeyId) -> (Option<Box<Limits>>, Option<Box<Budget>>) {
        let (limits, budget) = self.of(&Subject::Key(id));
        (limits.map(Box::new), budget.map(Box::new))
    }

    /// A team with its own.
    pub(super) fn team(&mut self, row: PublishedTeam) -> Team {
        let PublishedTeam { id, name } = row;
        let id = TeamId(id.unsigned_abs());
        let (limits, budget) = self.of(&Subject::Team(id));
        Team {
            id,
            name,
            limits,
            budget,
        }
    }
}
