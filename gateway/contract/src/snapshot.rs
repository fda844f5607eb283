use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Deserializer, Serialize};

use crate::routing::known_policy;
use crate::{
    Backend, Budget, KeyHash, KeyId, Limits, ModelAllowance, ModelName, PolicyKind, PrincipalId,
    Team, TeamId, Timestamp, Tokens, VirtualModel,
};

/// The format that this release writes. A reader accepts every lower one, and a
/// higher one as long as it only added members.
pub const FORMAT: u32 = 1;

/// Everything that a gateway needs to decide about requests: versioned,
/// complete, with roles and wildcards expanded.
///
/// Invariant: the same version of the same database gives the same bytes on
/// every control replica (lists are sorted by id or name, maps by key).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Snapshot {
    /// See [`FORMAT`].
    pub format: u32,
    /// The `config_version` of the database.
    pub version: u64,
    /// Whether no key is required.
    #[serde(default)]
    pub open: bool,
    /// The concrete models, by name.
    pub models: Section<Vec<Model>>,
    /// Principals, by ID.
    pub principals: Section<Vec<Principal>>,
    /// Teams, by ID.
    #[serde(default, skip_serializing_if = "Section::is_empty")]
    pub teams: Section<Vec<Team>>,
    /// Virtual models, by name.
    #[serde(default, skip_serializing_if = "Section::is_empty")]
    pub virtual_models: Section<Vec<VirtualModel>>,
    /// The model that is tried after all other candidates.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fallback_model: Option<ModelName>,
    /// API keys in shards by the first byte of their hash, so that a new key
    /// changes one shard. Empty shards are omitted; sorted by prefix.
    pub key_shards: Vec<KeyShard>,
}

/// A section of a snapshot with a digest of its content. The control plane
/// omits `items` if the reader holds the same digest.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Section<T> {
    /// Opaque digest of the items; equal digests mean equal items.
    pub digest: String,
    /// The content; `None` if unchanged.
    #[serde(default = "none", skip_serializing_if = "Option::is_none")]
    pub items: Option<Arc<T>>,
}

fn none<T>() -> Option<T> {
    None
}

impl<T: Default> Default for Section<T> {
    /// An empty section: with an empty digest, and not written at all.
    fn default() -> Self {
        Self::complete(String::new(), T::default())
    }
}

impl<T> Section<T> {
    fn is_empty(&self) -> bool {
        self.digest.is_empty()
    }

    /// A section with its content.
    pub fn complete(digest: impl Into<String>, items: T) -> Self {
        Self {
            digest: digest.into(),
            items: Some(Arc::new(items)),
        }
    }

    fn fill(&mut self, held: Option<&Self>) -> Result<(), MissingSection> {
        if self.items.is_none() {
            self.items = held
                .filter(|held| held.digest == self.digest)
                .and_then(|held| held.items.clone());
        }
        if self.items.is_none() {
            return Err(MissingSection);
        }
        Ok(())
    }
}

/// The API keys whose hash starts with one byte.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeyShard {
    /// The byte, as two lower-case hexadecimal digits; see [`shard_prefix`].
    pub prefix: String,
    /// The keys. An entry with a malformed hash is skipped.
    #[serde(flatten)]
    pub keys: Section<KeyMap>,
}

/// The key entries of a shard, by hash.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub struct KeyMap(pub BTreeMap<KeyHash, KeyEntry>);

impl<'de> Deserialize<'de> for KeyMap {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let entries = BTreeMap::<String, KeyEntry>::deserialize(deserializer)?;
        let well_formed = entries
            .into_iter()
            .filter_map(|(hash, entry)| Some((hash.parse().ok()?, entry)));
        Ok(Self(well_formed.collect()))
    }
}

/// The shard of a key.
pub fn shard_prefix(hash: &KeyHash) -> String {
    format!("{:02x}", hash.0[0])
}

/// An API key.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeyEntry {
    /// The ID of the key, for usage events.
    pub id: KeyId,
    /// Its principal.
    pub principal: PrincipalId,
    /// When the key expires.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<Timestamp>,
    /// Whether the key is revoked or its principal is disabled.
    #[serde(default)]
    pub disabled: bool,
    /// Its limits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limits: Option<Box<Limits>>,
    /// Its budget.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub budget: Option<Box<Budget>>,
}

/// A user or service account with its grants expanded.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Principal {
    /// Identity, also in usage events.
    pub id: PrincipalId,
    /// Unique name, for logs.
    pub name: String,
    /// Every model is granted (`model:invoke` on `model/*`).
    #[serde(default)]
    pub allow_all: bool,
    /// Otherwise the granted concrete models; sorted.
    #[serde(default)]
    pub allowed_models: Vec<ModelName>,
    /// The names of its roles; sorted. Rules may refer to them.
    #[serde(default)]
    pub roles: Vec<String>,
    /// Its team.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub team: Option<TeamId>,
    /// Its limits for all models together.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limits: Option<Limits>,
    /// Its budget for all models together.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub budget: Option<Budget>,
    /// Its limits and budgets for single models; sorted by model.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub models: Vec<ModelAllowance>,
}

/// A concrete model.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Model {
    /// The name that clients use.
    pub name: ModelName,
    /// How long a response may be cached; absent: not at all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cache_ttl_seconds: Option<u64>,
    /// The policy that chooses a backend; the gateway's default if absent.
    #[serde(
        default,
        deserialize_with = "known_policy",
        skip_serializing_if = "Option::is_none"
    )]
    pub policy: Option<PolicyKind>,
    /// The context window for prompt and response.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub context_length: Option<Tokens>,
    /// Other models that are tried, and how its own backends are.
    #[serde(default, skip_serializing_if = "is_default")]
    pub failover: Failover,
    /// Its backends; sorted by ID. May be empty.
    #[serde(default)]
    pub backends: Vec<Backend>,
}

/// What is tried where a model does not respond. The settings of the gateway
/// apply where these are absent.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Failover {
    /// Concrete models that are tried after it, in order, if the caller may use
    /// both.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub fallbacks: Vec<ModelName>,
    /// Concrete models that are tried before it if its context window is too
    /// small.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub context_fallbacks: Vec<ModelName>,
    /// Maximum number of retries with its backends.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_retries: Option<u32>,
    /// How long each attempt waits for the head of a response, milliseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timeout_ms: Option<u64>,
    /// The same for streams; `timeout_ms` applies if it is absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stream_timeout_ms: Option<u64>,
}

fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

/// A section came without items, and none with its digest is held: request the
/// whole snapshot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MissingSection;

impl fmt::Display for MissingSection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the snapshot omits a section that this gateway does not hold")
    }
}

impl std::error::Error for MissingSection {}

impl Snapshot {
    /// Completes a snapshot whose unchanged sections were omitted with those of
    /// `held`. Shared sections are not copied.
    pub fn merge(mut self, held: Option<&Snapshot>) -> Result<Self, MissingSection> {
        self.models.fill(held.map(|held| &held.models))?;
        self.principals.fill(held.map(|held| &held.principals))?;
        self.teams.fill(held.map(|held| &held.teams))?;
        self.virtual_models
            .fill(held.map(|held| &held.virtual_models))?;
        for shard in &mut self.key_shards {
            let same = held.and_then(|held| held.shard(&shard.prefix));
            shard.keys.fill(same)?;
        }
        Ok(self)
    }

    /// This snapshot without the sections whose digests `held` has, too.
    #[must_use]
    pub fn without_sections_of(&self, held: &Snapshot) -> Self {
        let mut delta = self.clone();
        if held.models.digest == delta.models.digest {
            delta.models.items = None;
        }
        if held.principals.digest == delta.principals.digest {
            delta.principals.items = None;
        }
        // An empty section is not written, so there is nothing to omit.
        if held.teams.digest == delta.teams.digest && !delta.teams.is_empty() {
            delta.teams.items = None;
        }
        if held.virtual_models.digest == delta.virtual_models.digest
            && !delta.virtual_models.is_empty()
        {
            delta.virtual_models.items = None;
        }
        for shard in &mut delta.key_shards {
            if held
                .shard(&shard.prefix)
                .is_some_and(|held| held.digest == shard.keys.digest)
            {
                shard.keys.items = None;
            }
        }
        delta
    }

    /// The same version and digests without any items: kept by the control
    /// plane to send only differences.
    #[must_use]
    pub fn digests(&self) -> Self {
        self.without_sections_of(self)
    }

    fn shard(&self, prefix: &str) -> Option<&Section<KeyMap>> {
        self.key_shards
            .binary_search_by(|shard| shard.prefix.as_str().cmp(prefix))
            .ok()
            .map(|index| &self.key_shards[index].keys)
    }
}
