use std::collections::BTreeMap;

use fastllm_contract::{
    Budget, KeyId, Limits, ModelAllowance, ModelName, PrincipalId, Subject, Team, TeamId,
};

use crate::db::snapshot::{AllowanceRows, PublishedTeam};

/// Limits and budgets by subject. Each is removed when it is added to the snapshot.
#[derive(Default)]
pub(super) struct Allowances {
    limits: BTreeMap<Subject, Limits>,
    budgets: BTreeMap<Subject, Budget>,
    models: BTreeMap<PrincipalId, BTreeMap<ModelName, ModelAllowance>>,
}

impl From<AllowanceRows> for Allowances {
    fn from(rows: AllowanceRows) -> Self {
        let AllowanceRows { limits, budgets } = rows;
        let mut allowances = Self::default();
        for (subject, limits) in limits {
            match subject {
                Subject::Model(id, model) => allowances.model(id, model).limits = Some(limits),
                other => {
                    allowances.limits.insert(other, limits);
                }
            }
        }
        for (subject, budget) in budgets {
            match subject {
                Subject::Model(id, model) => allowances.model(id, model).budget = Some(budget),
                other => {
                    allowances.budgets.insert(other, budget);
                }
            }
        }
        allowances
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

    fn take(&mut self, subject: &Subject) -> (Option<Limits>, Option<Budget>) {
        (self.limits.remove(subject), self.budgets.remove(subject))
    }

    /// Limits and budget of a principal, and those for individual models.
    pub(super) fn of_principal(
        &mut self,
        id: PrincipalId,
    ) -> (Option<Limits>, Option<Budget>, Vec<ModelAllowance>) {
        let (limits, budget) = self.take(&Subject::Principal(id));
        let models = self.models.remove(&id).unwrap_or_default();
        (limits, budget, models.into_values().collect())
    }

    /// Limits and budget of a key.
    pub(super) fn of_key(&mut self, id: KeyId) -> (Option<Box<Limits>>, Option<Box<Budget>>) {
        let (limits, budget) = self.take(&Subject::Key(id));
        (limits.map(Box::new), budget.map(Box::new))
    }

    /// A team with its limits and budget.
    pub(super) fn team(&mut self, row: PublishedTeam) -> Team {
        let PublishedTeam { id, name } = row;
        let id = TeamId(id.unsigned_abs());
        let (limits, budget) = self.take(&Subject::Team(id));
        Team {
            id,
            name,
            limits,
            budget,
        }
    }
}
