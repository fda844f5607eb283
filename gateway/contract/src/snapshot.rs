use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Deserializer, Serialize};

use crate::routing::known_policy;
use crate::{
    Backend, Budget, KeyHash, KeyId, Limits, ModelAllowance, ModelName, PolicyKind, PrincipalId,
    Team, TeamId, Timestamp, Tokens, VirtualModel,
};

/// The format that this release writes. A reader accepts every lower one, and
/// a higher one as long as it only added fields.
pub const FORMAT: u32 = 1;

/// Everything a gateway needs to decide about requests: versioned, complete,
/// pre-flattened (roles and wildcards are expanded by control).
///
/// Invariant: the same version of the same database gives the same bytes on
/// every control replica (lists are sorted by id or name, maps by key).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Snapshot {
    /// See [`FORMAT`].
    pub format: u32,
    /// `config_version` of the database that it was built from.
    pub version: u64,
    /// No key is needed.
    #[serde(default)]
    pub open: bool,
    /// The models that can be asked for, by name.
    pub models: Section<Vec<Model>>,
    /// Who may ask, by id.
    pub principals: Section<Vec<Principal>>,
    /// Principals that share limits and budgets, by id.
    #[serde(default, skip_serializing_if = "Section::is_empty")]
    pub teams: Section<Vec<Team>>,
    /// Names that stand for other models, by name.
    #[serde(default, skip_serializing_if = "Section::is_empty")]
    pub virtual_models: Section<Vec<VirtualModel>>,
    /// The model that is tried after every other candidate.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fallback_model: Option<ModelName>,
    /// API keys, cut by the first byte of their hash, so that one new key
    /// changes one shard. Empty shards are left out; sorted by prefix.
    pub key_shards: Vec<KeyShard>,
}

/// A part of a snapshot under a digest of its content. Control leaves `items`
/// out where the reader said that it holds the same digest.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Section<T> {
    /// Opaque digest of the items; equal digests mean equal items.
    pub digest: String,
    /// The content, or nothing when it is unchanged.
    #[serde(default = "none", skip_serializing_if = "Option::is_none")]
    pub items: Option<Arc<T>>,
}

fn none<T>() -> Option<T> {
    None
}

impl<T: Default> Default for Section<T> {
    /// The part of a snapshot that has nothing of its kind: under the empty
    /// digest, and not written at all.
    fn default() -> Self {
        Self::complete(String::new(), T::default())
    }
}

impl<T> Section<T> {
    fn is_empty(&self) -> bool {
        self.digest.is_empty()
    }

    /// A part with its content.
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

/// The API keys whose hash begins with one byte.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeyShard {
    /// The byte, as two lower-case hexadecimal digits; see [`shard_prefix`].
    pub prefix: String,
    /// The keys themselves. An entry whose hash is malformed is skipped.
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

/// The shard that a key belongs to.
pub fn shard_prefix(hash: &KeyHash) -> String {
    format!("{:02x}", hash.0[0])
}

/// What a key says about its bearer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeyEntry {
    /// The key's own identity, for usage events.
    pub id: KeyId,
    /// Whose key it is.
    pub principal: PrincipalId,
    /// From this moment on the key is refused as expired.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<Timestamp>,
    /// Revoked, or its principal is disabled.
    #[serde(default)]
    pub disabled: bool,
    /// What may be taken with this key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limits: Option<Box<Limits>>,
    /// What may be spent with this key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub budget: Option<Box<Budget>>,
}

/// A person or service that may ask, with its grants already flattened.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Principal {
    /// Identity, also in usage events.
    pub id: PrincipalId,
    /// Unique name, for logs.
    pub name: String,
    /// Every model is granted (`model:invoke` on `model/*`).
    #[serde(default)]
    pub allow_all: bool,
    /// The concrete models that are granted otherwise; sorted.
    #[serde(default)]
    pub allowed_models: Vec<ModelName>,
    /// Names of the roles it holds; sorted. Rules may ask for them.
    #[serde(default)]
    pub roles: Vec<String>,
    /// The team that it belongs to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub team: Option<TeamId>,
    /// What it may take, whatever the model.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limits: Option<Limits>,
    /// What it may spend, whatever the model.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub budget: Option<Budget>,
    /// What it may take of single models; sorted by model.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub models: Vec<ModelAllowance>,
}

/// A name that requests are routed to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Model {
    /// What clients ask for.
    pub name: ModelName,
    /// For so long an answer may be given again to the same request; not at all
    /// where absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cache_ttl_seconds: Option<u64>,
    /// How a backend is chosen; the gateway's own default where absent.
    #[serde(
        default,
        deserialize_with = "known_policy",
        skip_serializing_if = "Option::is_none"
    )]
    pub policy: Option<PolicyKind>,
    /// What prompt and answer may have together.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub context_length: Option<Tokens>,
    /// The pool that serves it; sorted by id. May be empty.
    #[serde(default)]
    pub backends: Vec<Backend>,
}

/// A part came without items, and none with its digest is held: ask again for
/// the whole snapshot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MissingSection;

impl fmt::Display for MissingSection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the snapshot omits a section that this gateway does not hold")
    }
}

impl std::error::Error for MissingSection {}

impl Snapshot {
    /// Completes a snapshot whose unchanged parts were left out with those of
    /// `held`. Shared parts are not copied.
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

    /// This snapshot without the parts whose digests `held` has, too.
    #[must_use]
    pub fn without_sections_of(&self, held: &Snapshot) -> Self {
        let mut delta = self.clone();
        if held.models.digest == delta.models.digest {
            delta.models.items = None;
        }
        if held.principals.digest == delta.principals.digest {
            delta.principals.items = None;
        }
        // An empty part is not written, so there is nothing to leave out.
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

    /// The same versions and digests without any items: what control keeps of
    /// a version to answer later requests with a difference.
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
