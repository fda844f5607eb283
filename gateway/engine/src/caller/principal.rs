use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use fastllm_contract::{
    ModelAllowance, ModelName, Principal as DescribedPrincipal, PrincipalId, Subject, TeamId,
};

use crate::accounts::{Account, Accounts};

/// A principal with its grants.
#[derive(Debug)]
pub struct Principal {
    id: PrincipalId,
    name: Arc<str>,
    grants: Grants,
    roles: Vec<String>,
    team: Option<TeamId>,
    account: Option<Arc<Account>>,
    models: HashMap<ModelName, Arc<Account>>,
}

#[derive(Debug)]
enum Grants {
    Everything,
    Only(HashSet<ModelName>),
}

impl Principal {
    pub(crate) fn build(described: &DescribedPrincipal, accounts: &Accounts) -> Self {
        let id = described.id;
        let models = described.models.iter().filter_map(|allowance| {
            let ModelAllowance {
                model,
                limits,
                budget,
            } = allowance;
            let subject = Subject::Model(id, model.clone());
            let account = accounts.open(subject, limits.as_ref(), budget.as_ref())?;
            Some((model.clone(), account))
        });
        let (limits, budget) = (described.limits.as_ref(), described.budget.as_ref());
        Self {
            team: described.team,
            account: accounts.open(Subject::Principal(id), limits, budget),
            models: models.collect(),
            id: described.id,
            name: Arc::from(described.name.as_str()),
            grants: if described.allow_all {
                Grants::Everything
            } else {
                Grants::Only(described.allowed_models.iter().cloned().collect())
            },
            roles: described.roles.clone(),
        }
    }

    /// Identity, also in usage events.
    pub fn id(&self) -> PrincipalId {
        self.id
    }

    /// The name, for logs.
    pub fn name(&self) -> &Arc<str> {
        &self.name
    }

    pub(crate) fn team(&self) -> Option<TeamId> {
        self.team
    }

    /// The account of all its requests.
    pub(crate) fn account(&self) -> Option<&Arc<Account>> {
        self.account.as_ref()
    }

    /// Whether some model has limits or a budget of its own.
    pub(crate) fn limits_models(&self) -> bool {
        !self.models.is_empty()
    }

    /// The account of its requests to a model.
    pub(crate) fn account_for(&self, model: &ModelName) -> Option<&Arc<Account>> {
        self.models.get(model)
    }

    /// Whether it has a role.
    pub(crate) fn has_role(&self, role: &str) -> bool {
        self.roles.iter().any(|held| held == role)
    }

    /// Whether it may use a concrete model.
    pub fn may_use(&self, model: &str) -> bool {
        match &self.grants {
            Grants::Everything => true,
            Grants::Only(models) => models.contains(model),
        }
    }
}
