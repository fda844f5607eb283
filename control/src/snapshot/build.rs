use std::collections::{BTreeMap, BTreeSet};

use fastllm_contract::{
    Backend, FORMAT, Failover, KeyEntry, KeyId, KeyMap, KeyShard, Model, ModelName, Principal,
    PrincipalId, Section, Snapshot, Team, TeamId, Tokens,
};
use serde::Serialize;

use super::allowance::Allowances;
use super::backend::{self, Unpublished};
use super::etag::Etag;
use super::routing;
use crate::clock;
use crate::crypto::{OpenError, Vault, digest};
use crate::db::backends::BackendRow;
use crate::db::snapshot::{
    AllowanceRows, PrincipalGrants, PublishedKey, PublishedModel, PublishedTeam, RoutingRows,
    ShardState, SnapshotReader,
};
use crate::db::state::ConfigState;
use crate::db::{Db, DbError};

/// A snapshot, and the data that the next build reuses.
pub(super) struct Built {
    pub(super) state: ConfigState,
    pub(super) snapshot: Snapshot,
    pub(super) etag: Etag,
    /// The ID of the last change of each shard.
    shard_changes: BTreeMap<u8, String>,
    /// Omitted backends, so that each is logged once.
    unusable: BTreeSet<i64>,
    /// Omitted rules, so that each is logged once.
    unreadable: Vec<i64>,
}

/// The reason why the rows do not result in a snapshot.
#[derive(Debug, thiserror::Error)]
pub(crate) enum AssembleError {
    #[error("cannot serialize the snapshot")]
    Serialize(#[from] serde_json::Error),
    /// Requests would fail for the lack of a credential that another control plane has.
    #[error("cannot open a credential of backend {backend}")]
    UnknownKey { backend: i64, source: OpenError },
}

/// The rows of one transaction.
struct Rows {
    state: ConfigState,
    models: Vec<PublishedModel>,
    backends: Vec<BackendRow>,
    routing: RoutingRows,
    principals: Vec<PrincipalGrants>,
    teams: Vec<PublishedTeam>,
    allowances: AllowanceRows,
    shards: Vec<ShardState>,
    /// Keys of the shards that changed since the last build.
    keys: Vec<PublishedKey>,
    changed: BTreeSet<u8>,
}

/// Reads the rows that changed since `held`; `None` if nothing changed.
pub(super) async fn read(db: &Db, held: Option<&Built>) -> Result<Option<ReadRows>, DbError> {
    let mut reader = SnapshotReader::begin(db).await?;
    let state = reader.state().await?;
    if held.is_some_and(|held| held.state == state) {
        return Ok(None);
    }
    let models = reader.models().await?;
    let ids: Vec<i64> = models.iter().map(|model| model.id).collect();
    let backends = reader.backends(&ids).await?;
    let routing = reader.routing().await?;
    let principals = reader.principals().await?;
    let teams = reader.teams().await?;
    let shards = reader.shards().await?;
    let changed: BTreeSet<u8> = shards
        .iter()
        .filter(|shard| {
            held.and_then(|held| held.shard_changes.get(&shard.shard)) != Some(&shard.change_id)
        })
        .map(|shard| shard.shard)
        .collect();
    let wanted: Vec<u8> = changed.iter().copied().collect();
    let keys = reader.keys(&wanted).await?;
    let allowances = reader.allowances(&wanted).await?;
    let rows = Rows {
        state,
        models,
        backends,
        routing,
        principals,
        teams,
        allowances,
        shards,
        keys,
        changed,
    };
    Ok(Some(ReadRows(rows)))
}

/// The input of [`assemble`].
pub(super) struct ReadRows(Rows);

/// Assembles the snapshot in canonical form: the same rows result in the same bytes
/// in every replica, with or without `held`. CPU-bound; run on a blocking thread.
pub(super) fn assemble(
    rows: ReadRows,
    held: Option<&Built>,
    vault: &Vault,
) -> Result<Built, AssembleError> {
    let ReadRows(Rows {
        state,
        models,
        backends,
        routing,
        principals,
        teams,
        allowances,
        shards,
        keys,
        changed,
    }) = rows;
    let (pools, unusable) = pools(backends, held, vault)?;
    let (models, fallback_model) = published(models, pools);
    let (virtual_models, unreadable) = routing::virtual_models(routing);
    for rule in &unreadable {
        if !held.is_some_and(|held| held.unreadable.contains(rule)) {
            tracing::error!(rule, "omitting a rule of a later release");
        }
    }
    let mut allowances = Allowances::from(allowances);
    let principals = principals
        .into_iter()
        .map(|row| principal(row, &models, &mut allowances))
        .collect();
    let teams: Vec<Team> = teams.into_iter().map(|row| allowances.team(row)).collect();
    let snapshot = Snapshot {
        format: FORMAT,
        version: state.version,
        open: false,
        models: section(models)?,
        principals: section::<Vec<Principal>>(principals)?,
        teams: optional_section(teams)?,
        virtual_models: optional_section(virtual_models)?,
        fallback_model,
        key_shards: key_shards(keys, allowances, &changed, held)?,
    };
    Ok(Built {
        etag: etag(&snapshot),
        shard_changes: shards
            .into_iter()
            .map(|row| (row.shard, row.change_id))
            .collect(),
        state,
        snapshot,
        unusable,
        unreadable,
    })
}

/// The usable backends by model.
type BackendsByModel = BTreeMap<i64, Vec<Backend>>;

/// The usable backends, and the IDs of the unusable ones.
fn pools(
    rows: Vec<BackendRow>,
    held: Option<&Built>,
    vault: &Vault,
) -> Result<(BackendsByModel, BTreeSet<i64>), AssembleError> {
    let mut unusable = BTreeSet::new();
    let mut pools = BackendsByModel::new();
    for row in rows.into_iter().filter(|row| row.enabled) {
        let (id, model_id) = (row.id, row.model_id);
        match backend::published(row, vault) {
            Ok(backend) => pools.entry(model_id).or_default().push(backend),
            Err(Unpublished::UnknownKey(source)) => {
                return Err(AssembleError::UnknownKey {
                    backend: id,
                    source,
                });
            }
            Err(Unpublished::Unusable(reason)) => {
                unusable.insert(id);
                if !held.is_some_and(|held| held.unusable.contains(&id)) {
                    tracing::error!(backend = id, reason, "omitting an unusable backend");
                }
            }
        }
    }
    Ok((pools, unusable))
}

/// The models with their backends, and the name of the fallback model.
fn published(
    rows: Vec<PublishedModel>,
    mut pools: BackendsByModel,
) -> (Vec<Model>, Option<ModelName>) {
    let mut fallback = None;
    let mut models = Vec::with_capacity(rows.len());
    for row in rows {
        let PublishedModel {
            id,
            name,
            cache_ttl_seconds,
            policy,
            context_length,
            is_fallback,
            timeout_ms,
            stream_timeout_ms,
            max_retries,
        } = row;
        let Ok(name) = ModelName::new(&name) else {
            continue;
        };
        if is_fallback {
            fallback = Some(name.clone());
        }
        models.push(Model {
            name,
            cache_ttl_seconds: cache_ttl_seconds
                .map(i64::unsigned_abs)
                .filter(|seconds| *seconds > 0),
            policy: policy.and_then(|policy| policy.parse().ok()),
            context_length: context_length.map(|tokens| Tokens(tokens.unsigned_abs())),
            failover: Failover {
                timeout_ms: timeout_ms.map(|time| u64::from(time.unsigned_abs())),
                stream_timeout_ms: stream_timeout_ms.map(|time| u64::from(time.unsigned_abs())),
                max_retries: max_retries.map(i32::unsigned_abs),
                ..Failover::default()
            },
            backends: pools.remove(&id).unwrap_or_default(),
        });
    }
    (models, fallback)
}

/// A section that is omitted if there are no items, as releases without it do.
fn optional_section<T: Serialize>(items: Vec<T>) -> Result<Section<Vec<T>>, serde_json::Error> {
    if items.is_empty() {
        Ok(Section::default())
    } else {
        section(items)
    }
}

fn section<T: Serialize>(items: T) -> Result<Section<T>, serde_json::Error> {
    let text = serde_json::to_vec(&items)?;
    Ok(Section::complete(hex::encode(&digest(&text)[..16]), items))
}

fn etag(snapshot: &Snapshot) -> Etag {
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
    let mut text = format!("{format} {open} {} {}", models.digest, principals.digest);
    if !teams.digest.is_empty() {
        text.extend([" teams:", teams.digest.as_str()]);
    }
    if !virtual_models.digest.is_empty() {
        text.extend([" virtual:", virtual_models.digest.as_str()]);
    }
    if let Some(fallback) = fallback_model {
        text.extend([" fallback:", fallback.as_str()]);
    }
    for KeyShard { prefix, keys } in key_shards {
        text.extend([" ", prefix.as_str(), ":", keys.digest.as_str()]);
    }
    Etag {
        version: *version,
        digest: hex::encode(&digest(text.as_bytes())[..8]),
    }
}

/// Resolves grants to models: `model/*` grants all, `model/x*` a prefix.
fn principal(row: PrincipalGrants, models: &[Model], allowances: &mut Allowances) -> Principal {
    let PrincipalGrants {
        id,
        name,
        team_id,
        roles,
        resources,
    } = row;
    let patterns: Vec<&str> = resources
        .iter()
        .filter_map(|resource| resource.strip_prefix("model/"))
        .collect();
    let allow_all = patterns.contains(&"*");
    let granted = |name: &ModelName| {
        patterns
            .iter()
            .any(|pattern| match pattern.strip_suffix('*') {
                Some(prefix) => name.as_str().starts_with(prefix),
                None => name.as_str() == *pattern,
            })
    };
    let allowed_models = models
        .iter()
        .filter(|model| !allow_all && granted(&model.name))
        .map(|model| model.name.clone())
        .collect();
    let id = PrincipalId(id.unsigned_abs());
    let (limits, budget, models) = allowances.of_principal(id);
    Principal {
        team: team_id.map(|id| TeamId(id.unsigned_abs())),
        limits,
        budget,
        models,
        id,
        name,
        allow_all,
        allowed_models,
        roles,
    }
}

/// The key shards. Unchanged shards are taken from the last build.
fn key_shards(
    keys: Vec<PublishedKey>,
    mut allowances: Allowances,
    changed: &BTreeSet<u8>,
    held: Option<&Built>,
) -> Result<Vec<KeyShard>, serde_json::Error> {
    let mut maps: BTreeMap<u8, KeyMap> = BTreeMap::new();
    for row in keys {
        let PublishedKey {
            shard,
            hash,
            id,
            principal_id,
            expires_at,
            disabled,
        } = row;
        let id = KeyId(id.unsigned_abs());
        let (limits, budget) = allowances.of_key(id);
        let entry = KeyEntry {
            limits,
            budget,
            id,
            principal: PrincipalId(principal_id.unsigned_abs()),
            expires_at: expires_at.map(clock::timestamp),
            disabled,
        };
        maps.entry(shard).or_default().0.insert(hash, entry);
    }
    let mut shards: BTreeMap<String, KeyShard> = held
        .iter()
        .flat_map(|held| &held.snapshot.key_shards)
        .map(|shard| (shard.prefix.clone(), shard.clone()))
        .collect();
    for shard in changed {
        let prefix = format!("{shard:02x}");
        match maps.remove(shard) {
            Some(map) => {
                shards.insert(
                    prefix.clone(),
                    KeyShard {
                        prefix,
                        keys: section(map)?,
                    },
                );
            }
            None => {
                shards.remove(&prefix);
            }
        }
    }
    Ok(shards.into_values().collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn model(name: &str) -> Model {
        Model {
            cache_ttl_seconds: None,
            failover: Failover::default(),
            name: ModelName::new(name).unwrap(),
            policy: None,
            context_length: None,
            backends: Vec::new(),
        }
    }

    fn grants(resources: &[&str]) -> PrincipalGrants {
        PrincipalGrants {
            id: 1,
            name: "somebody".to_owned(),
            team_id: None,
            roles: Vec::new(),
            resources: resources
                .iter()
                .map(|&resource| resource.to_owned())
                .collect(),
        }
    }

    #[test]
    fn grants_are_resolved_to_models() {
        let models = [model("a-1"), model("a-2"), model("b")];
        let names = |resources: &[&str]| {
            let principal = principal(grants(resources), &models, &mut Allowances::default());
            let names = principal.allowed_models.iter().map(ToString::to_string);
            (principal.allow_all, names.collect::<Vec<_>>())
        };
        assert_eq!(names(&[]), (false, vec![]));
        assert_eq!(
            names(&["model/a-*"]),
            (false, vec!["a-1".to_owned(), "a-2".to_owned()])
        );
        assert_eq!(
            names(&["model/b", "model/gone"]),
            (false, vec!["b".to_owned()])
        );
        assert_eq!(names(&["model/*", "model/b"]), (true, vec![]));
    }
}
