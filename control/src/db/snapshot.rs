use fastllm_contract::{Budget, KeyHash, Limits, Subject};
use sqlx::PgTransaction;
use time::OffsetDateTime;

use super::backends::{self, BackendRow};
use super::rules::RuleRow;
use super::state::{self, ConfigState};
use super::targets::{Owner, TargetRow};
use super::{Db, DbError, budgets, limits, rules, targets};

/// Reads all rows of one snapshot in one read-only transaction, which does not see
/// later commits.
pub(crate) struct SnapshotReader(PgTransaction<'static>);

/// A principal with its roles' names and `model:invoke` resources, sorted.
pub(crate) struct PrincipalGrants {
    pub(crate) id: i64,
    pub(crate) name: String,
    pub(crate) team_id: Option<i64>,
    pub(crate) roles: Vec<String>,
    pub(crate) resources: Vec<String>,
}

/// The published columns of a team.
pub(crate) struct PublishedTeam {
    pub(crate) id: i64,
    pub(crate) name: String,
}

/// Limits and budgets of the keys of some shards, and of all other subjects.
pub(crate) struct AllowanceRows {
    pub(crate) limits: Vec<(Subject, Limits)>,
    pub(crate) budgets: Vec<(Subject, Budget)>,
}

/// The published columns of a model.
pub(crate) struct PublishedModel {
    pub(crate) id: i64,
    pub(crate) name: String,
    pub(crate) cache_ttl_seconds: Option<i64>,
    pub(crate) policy: Option<String>,
    pub(crate) context_length: Option<i64>,
    pub(crate) is_fallback: bool,
    pub(crate) timeout_ms: Option<i32>,
    pub(crate) stream_timeout_ms: Option<i32>,
    pub(crate) max_retries: Option<i32>,
}

/// The published columns of a virtual model.
pub(crate) struct PublishedVirtualModel {
    pub(crate) id: i64,
    pub(crate) name: String,
    pub(crate) split_by: String,
}

/// All virtual models with their rules and targets.
pub(crate) struct RoutingRows {
    pub(crate) virtual_models: Vec<PublishedVirtualModel>,
    pub(crate) rules: Vec<RuleRow>,
    pub(crate) targets: Vec<TargetRow>,
    pub(crate) defaults: Vec<TargetRow>,
}

/// The published columns of a key.
pub(crate) struct PublishedKey {
    pub(crate) shard: u8,
    pub(crate) hash: KeyHash,
    pub(crate) id: i64,
    pub(crate) principal_id: i64,
    pub(crate) expires_at: Option<OffsetDateTime>,
    pub(crate) disabled: bool,
}

/// The last change of a shard.
pub(crate) struct ShardState {
    pub(crate) shard: u8,
    pub(crate) change_id: String,
}

impl SnapshotReader {
    pub(crate) async fn begin(db: &Db) -> Result<Self, DbError> {
        Ok(Self(db.begin_reading().await?))
    }

    pub(crate) async fn state(&mut self) -> Result<ConfigState, DbError> {
        state::read(&mut self.0).await
    }

    /// Sorted by name in byte order.
    pub(crate) async fn models(&mut self) -> Result<Vec<PublishedModel>, DbError> {
        let rows = query_as!(
            PublishedModel,
            r#"SELECT id, name, cache_ttl_seconds, policy, context_length, is_fallback,
                      timeout_ms, stream_timeout_ms, max_retries
                 FROM models ORDER BY name COLLATE "C""#
        )
        .fetch_all(&mut self.0)
        .await?;
        Ok(rows)
    }

    /// Sorted by name in byte order.
    pub(crate) async fn routing(&mut self) -> Result<RoutingRows, DbError> {
        let virtual_models = query_as!(
            PublishedVirtualModel,
            r#"SELECT id, name, split_by FROM virtual_models ORDER BY name COLLATE "C""#
        )
        .fetch_all(&mut self.0)
        .await?;
        let ids: Vec<i64> = virtual_models.iter().map(|row| row.id).collect();
        let rules = rules::of_virtual_models(&mut self.0, &ids).await?;
        let rule_ids: Vec<i64> = rules.iter().map(|row| row.id).collect();
        Ok(RoutingRows {
            targets: targets::of(&mut self.0, Owner::Rule, &rule_ids).await?,
            defaults: targets::of(&mut self.0, Owner::VirtualModel, &ids).await?,
            virtual_models,
            rules,
        })
    }

    pub(crate) async fn backends(&mut self, models: &[i64]) -> Result<Vec<BackendRow>, DbError> {
        backends::of_models(&mut self.0, models).await
    }

    /// Sorted by ID.
    pub(crate) async fn principals(&mut self) -> Result<Vec<PrincipalGrants>, DbError> {
        let rows = query_as!(
            PrincipalGrants,
            r#"SELECT p.id, p.name, p.team_id,
                      ARRAY(SELECT r.name FROM principal_roles AS h
                              JOIN roles AS r ON r.id = h.role_id
                             WHERE h.principal_id = p.id ORDER BY r.name COLLATE "C") AS "roles!",
                      ARRAY(SELECT DISTINCT g.resource COLLATE "C" FROM principal_roles AS h
                              JOIN role_permissions AS g ON g.role_id = h.role_id
                             WHERE h.principal_id = p.id AND g.verb = 'model:invoke'
                             ORDER BY 1) AS "resources!"
                 FROM principals AS p ORDER BY p.id"#
        )
        .fetch_all(&mut self.0)
        .await?;
        Ok(rows)
    }

    /// Sorted by ID.
    pub(crate) async fn teams(&mut self) -> Result<Vec<PublishedTeam>, DbError> {
        let rows = query_as!(PublishedTeam, "SELECT id, name FROM teams ORDER BY id")
            .fetch_all(&mut self.0)
            .await?;
        Ok(rows)
    }

    /// Limits and budgets of the keys of the given shards, and of all other subjects.
    pub(crate) async fn allowances(&mut self, shards: &[u8]) -> Result<AllowanceRows, DbError> {
        let shards: Vec<i16> = shards.iter().copied().map(i16::from).collect();
        Ok(AllowanceRows {
            limits: limits::published(&mut self.0, &shards).await?,
            budgets: budgets::published(&mut self.0, &shards).await?,
        })
    }

    /// All 256 shards, sorted by number.
    pub(crate) async fn shards(&mut self) -> Result<Vec<ShardState>, DbError> {
        let rows = query!(
            r#"SELECT shard, change_id::text AS "change_id!" FROM key_shards ORDER BY shard"#
        )
        .fetch_all(&mut self.0)
        .await?;
        Ok(rows
            .into_iter()
            .filter_map(|row| {
                Some(ShardState {
                    shard: u8::try_from(row.shard).ok()?,
                    change_id: row.change_id,
                })
            })
            .collect())
    }

    /// The keys of the given shards. Keys of disabled principals are disabled.
    pub(crate) async fn keys(&mut self, shards: &[u8]) -> Result<Vec<PublishedKey>, DbError> {
        let shards: Vec<i16> = shards.iter().copied().map(i16::from).collect();
        let rows = query!(
            r#"SELECT k.shard, k.hash, k.id, k.principal_id, k.expires_at,
                      k.disabled OR p.disabled AS "disabled!"
                 FROM api_keys AS k JOIN principals AS p ON p.id = k.principal_id
                WHERE k.shard = ANY ($1)"#,
            &shards,
        )
        .fetch_all(&mut self.0)
        .await?;
        Ok(rows
            .into_iter()
            .filter_map(|row| {
                Some(PublishedKey {
                    shard: u8::try_from(row.shard).ok()?,
                    hash: KeyHash(row.hash.try_into().ok()?),
                    id: row.id,
                    principal_id: row.principal_id,
                    expires_at: row.expires_at,
                    disabled: row.disabled,
                })
            })
            .collect())
    }
}
