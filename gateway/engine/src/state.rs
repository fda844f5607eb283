//! The immutable state that requests are decided by: built from a snapshot
//! outside the request path, replaced as a whole.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use fastllm_contract::{
    BackendId, FORMAT, KeyShard, Model, ModelName, PolicyKind, Principal as DescribedPrincipal,
    PrincipalId, Section, Snapshot, Subject, Team, TeamId, VirtualModel as DescribedVirtual,
};

use crate::accounts::{Account, Accounts};
use crate::caller::{Keys, Principal};
use crate::pool::{Affinity, Backend, BackendIdentity, BackendState, InvalidBackend, Pool, Tuning};
use crate::virtual_model::VirtualModel;

/// A snapshot in the form that the request path reads.
#[derive(Debug)]
pub struct RoutingState {
    version: u64,
    open: bool,
    models: Arc<Models>,
    principals: Arc<Principals>,
    teams: Arc<Teams>,
    virtual_models: Arc<VirtualModels>,
    fallback_model: Option<ModelName>,
    keys: Keys,
    /// Outlives snapshots, as do the caches of engines.
    affinity: Arc<Affinity>,
    /// Outlive snapshots, so that usage is not forgotten.
    accounts: Arc<Accounts>,
    policy: PolicyKind,
}

#[derive(Debug)]
struct Models {
    digest: String,
    pools: BTreeMap<ModelName, Arc<Pool>>,
    by_name: HashMap<ModelName, Arc<Pool>>,
    backend_states: HashMap<BackendIdentity, Arc<BackendState>>,
}

#[derive(Debug)]
struct Principals {
    digest: String,
    by_id: HashMap<PrincipalId, Arc<Principal>>,
}

#[derive(Debug)]
struct Teams {
    digest: String,
    accounts: HashMap<TeamId, Arc<Account>>,
}

#[derive(Debug)]
struct VirtualModels {
    digest: String,
    by_name: BTreeMap<ModelName, VirtualModel>,
}

/// The result of [`RoutingState::build`].
#[derive(Debug)]
pub struct BuildOutcome {
    /// The new state.
    pub state: RoutingState,
    /// Backends that are not usable.
    pub skipped_backends: Vec<SkippedBackend>,
}

/// A backend of the snapshot that is not usable.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SkippedBackend {
    /// The model of the backend.
    pub model: ModelName,
    /// The backend.
    pub backend: BackendId,
    /// The reason.
    pub reason: InvalidBackend,
}

/// Why a snapshot is rejected.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InvalidSnapshot {
    /// A format that no release writes.
    #[error("snapshot format {0} does not exist; this release writes {FORMAT}")]
    Format(u32),
    /// A section without items that is not held.
    #[error("the snapshot lacks the items of its {0}")]
    Incomplete(&'static str),
    /// Two models with one name.
    #[error("the snapshot names a model twice: {0}")]
    DuplicateModel(ModelName),
    /// Two principals with one ID.
    #[error("the snapshot names principal {0} twice")]
    DuplicatePrincipal(PrincipalId),
}

impl RoutingState {
    /// Builds the state of a complete snapshot. Unchanged sections are shared
    /// with `held`, and counters and health of unchanged backends are kept. An
    /// invalid backend is skipped. `tuning` is the same for all snapshots of a
    /// process.
    pub fn build(
        snapshot: &Snapshot,
        held: Option<&Self>,
        tuning: &Tuning,
    ) -> Result<BuildOutcome, InvalidSnapshot> {
        let Snapshot {
            format,
            version,
            open,
            models,
            principals,
            teams,
            virtual_models,
            fallback_model,
            key_shards,
        } = snapshot;
        if *format == 0 {
            return Err(InvalidSnapshot::Format(*format));
        }
        let affinity = held.map_or_else(
            || Arc::new(Affinity::new(tuning.affinity_slots)),
            |held| Arc::clone(&held.affinity),
        );
        let accounts = held.map_or_else(Arc::default, |held| Arc::clone(&held.accounts));
        let mut skipped_backends = Vec::new();
        let same = held.map(|held| &held.models);
        let models = shared(same.filter(|held| held.digest == models.digest), || {
            let before = same.map(|held| &**held);
            Models::build(models, before, tuning, &affinity, &mut skipped_backends)
        })?;
        let same = held.map(|held| &held.principals);
        let principals = shared(same.filter(|held| held.digest == principals.digest), || {
            Principals::build(principals, &accounts)
        })?;
        let same = held.map(|held| &held.teams);
        let teams = shared(same.filter(|held| held.digest == teams.digest), || {
            Teams::build(teams, &accounts)
        })?;
        let same = held.map(|held| &held.virtual_models);
        let virtual_models = shared(
            same.filter(|held| held.digest == virtual_models.digest),
            || VirtualModels::build(virtual_models),
        )?;
        accounts.remove_unused();
        if let Some(name) = virtual_models.clash_with(&models) {
            return Err(InvalidSnapshot::DuplicateModel(name.clone()));
        }
        Ok(BuildOutcome {
            state: Self {
                version: *version,
                open: *open,
                models,
                principals,
                teams,
                virtual_models,
                fallback_model: fallback_model.clone(),
                keys: keys(key_shards, held, &accounts)?,
                affinity,
                accounts,
                policy: tuning.policy,
            },
            skipped_backends,
        })
    }

    /// The version of the snapshot.
    pub fn version(&self) -> u64 {
        self.version
    }

    /// Whether no key is required.
    pub fn open(&self) -> bool {
        self.open
    }

    /// Usage of limits and budgets.
    pub fn accounts(&self) -> &Arc<Accounts> {
        &self.accounts
    }

    pub(crate) fn team_account(&self, principal: &Principal) -> Option<Arc<Account>> {
        self.teams.accounts.get(&principal.team()?).cloned()
    }

    /// The number of API keys.
    pub fn key_count(&self) -> usize {
        self.keys.len()
    }

    /// Every model, sorted by name.
    pub fn pools(&self) -> impl Iterator<Item = &Arc<Pool>> {
        self.models.pools.values()
    }

    /// Every backend of every model.
    pub fn backends(&self) -> impl Iterator<Item = (&ModelName, &Backend)> {
        self.pools().flat_map(|pool| {
            pool.backends()
                .iter()
                .map(|backend| (pool.model(), backend))
        })
    }

    pub(crate) fn pool(&self, name: &str) -> Option<&Arc<Pool>> {
        self.models.by_name.get(name)
    }

    /// The default policy.
    pub fn policy(&self) -> PolicyKind {
        self.policy
    }

    /// Every virtual model, sorted by name.
    pub(crate) fn virtual_models(&self) -> impl Iterator<Item = &VirtualModel> {
        self.virtual_models.by_name.values()
    }

    pub(crate) fn virtual_model(&self, name: &str) -> Option<&VirtualModel> {
        self.virtual_models.by_name.get(name)
    }

    /// The model that is tried after all other candidates.
    pub(crate) fn fallback_model(&self) -> Option<&ModelName> {
        self.fallback_model.as_ref()
    }

    /// A principal by ID, for requests sent in its name without a key.
    pub fn principal(&self, id: PrincipalId) -> Option<&Arc<Principal>> {
        self.principals.by_id.get(&id)
    }

    pub(crate) fn keys(&self) -> &Keys {
        &self.keys
    }
}

/// The held value if it is unchanged, else a new one.
fn shared<T>(
    same: Option<&Arc<T>>,
    build: impl FnOnce() -> Result<T, InvalidSnapshot>,
) -> Result<Arc<T>, InvalidSnapshot> {
    match same {
        Some(held) => Ok(Arc::clone(held)),
        None => build().map(Arc::new),
    }
}

/// The items of a section.
fn items<'a, T>(part: &'a Section<T>, name: &'static str) -> Result<&'a T, InvalidSnapshot> {
    part.items
        .as_deref()
        .ok_or(InvalidSnapshot::Incomplete(name))
}

fn keys(
    shards: &[KeyShard],
    held: Option<&RoutingState>,
    accounts: &Accounts,
) -> Result<Keys, InvalidSnapshot> {
    if shards.iter().any(|shard| shard.keys.items.is_none()) {
        return Err(InvalidSnapshot::Incomplete("keys"));
    }
    Ok(Keys::build(shards, held.map(|held| &held.keys), accounts))
}

impl Models {
    fn build(
        models: &Section<Vec<Model>>,
        held: Option<&Self>,
        tuning: &Tuning,
        affinity: &Arc<Affinity>,
        skipped_backends: &mut Vec<SkippedBackend>,
    ) -> Result<Self, InvalidSnapshot> {
        let digest = models.digest.clone();
        let mut backend_states = HashMap::new();
        let mut pools = BTreeMap::new();
        for model in items(models, "models")? {
            let mut backends = Vec::with_capacity(model.backends.len());
            for described in &model.backends {
                let identity = BackendIdentity::of(described);
                let counters = backend_states
                    .get(&identity)
                    .or_else(|| held.and_then(|held| held.backend_states.get(&identity)))
                    .cloned()
                    .unwrap_or_else(|| Arc::new(BackendState::new(tuning.unhealthy_after)));
                match Backend::build(described, Arc::clone(&counters)) {
                    Ok(backend) => {
                        backend_states.insert(identity, counters);
                        backends.push(backend);
                    }
                    Err(reason) => skipped_backends.push(SkippedBackend {
                        model: model.name.clone(),
                        backend: described.id,
                        reason,
                    }),
                }
            }
            let pool = Arc::new(Pool::new(model, backends, tuning, affinity));
            if pools.insert(model.name.clone(), pool).is_some() {
                return Err(InvalidSnapshot::DuplicateModel(model.name.clone()));
            }
        }
        let by_name = pools
            .iter()
            .map(|(name, pool)| (name.clone(), Arc::clone(pool)))
            .collect();
        Ok(Self {
            digest,
            pools,
            by_name,
            backend_states,
        })
    }
}

impl VirtualModels {
    fn build(described: &Section<Vec<DescribedVirtual>>) -> Result<Self, InvalidSnapshot> {
        let mut by_name = BTreeMap::new();
        for described in items(described, "virtual models")? {
            let name = described.name.clone();
            if by_name
                .insert(name, VirtualModel::build(described))
                .is_some()
            {
                return Err(InvalidSnapshot::DuplicateModel(described.name.clone()));
            }
        }
        Ok(Self {
            digest: described.digest.clone(),
            by_name,
        })
    }

    /// A name that a concrete model has, too.
    fn clash_with(&self, models: &Models) -> Option<&ModelName> {
        let mut names = self.by_name.keys();
        names.find(|name| models.pools.contains_key(*name))
    }
}

impl Principals {
    fn build(
        principals: &Section<Vec<DescribedPrincipal>>,
        accounts: &Accounts,
    ) -> Result<Self, InvalidSnapshot> {
        let digest = principals.digest.clone();
        let principals = items(principals, "principals")?;
        let mut by_id = HashMap::with_capacity(principals.len());
        for described in principals {
            let principal = Arc::new(Principal::build(described, accounts));
            if by_id.insert(described.id, principal).is_some() {
                return Err(InvalidSnapshot::DuplicatePrincipal(described.id));
            }
        }
        Ok(Self { digest, by_id })
    }
}

impl Teams {
    fn build(teams: &Section<Vec<Team>>, accounts: &Accounts) -> Result<Self, InvalidSnapshot> {
        let opened = items(teams, "teams")?.iter().filter_map(|team| {
            let Team {
                id,
                name: _,
                limits,
                budget,
            } = team;
            let account = accounts.open(Subject::Team(*id), limits.as_ref(), budget.as_ref())?;
            Some((*id, account))
        });
        Ok(Self {
            digest: teams.digest.clone(),
            accounts: opened.collect(),
        })
    }
}

#[cfg(test)]
mod tests;
