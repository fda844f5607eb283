//! Who is asking: from a presented key to a principal.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::Arc;

use fastllm_contract::{
    KeyEntry, KeyHash, KeyId, KeyMap, KeyShard, PrincipalId, Subject, Timestamp,
};

use crate::refusal::Refusal;
use crate::reserve::{Account, Accounts};
use crate::state::{Principal, RoutingState};

/// Who a request is from.
#[derive(Debug, Clone)]
pub enum Caller {
    /// The snapshot is open: nobody has to say who they are.
    Anonymous,
    /// The bearer of a valid key.
    Identified(Identified),
}

/// A principal, known by one of its keys.
#[derive(Debug, Clone)]
pub struct Identified {
    /// Who it is, with its grants.
    pub principal: Arc<Principal>,
    /// Which of its keys was presented.
    pub key: KeyId,
    key_account: Option<Arc<Account>>,
    team_account: Option<Arc<Account>>,
}

impl Identified {
    /// What it counts for, whatever the model.
    pub(crate) fn accounts(&self) -> [Option<&Arc<Account>>; 3] {
        [
            self.key_account.as_ref(),
            self.principal.account(),
            self.team_account.as_ref(),
        ]
    }
}

impl Caller {
    /// The principal, unless the snapshot is open.
    pub fn identified(&self) -> Option<&Identified> {
        match self {
            Self::Anonymous => None,
            Self::Identified(identified) => Some(identified),
        }
    }

    /// The used share of its tightest budget, in percent; nothing without a
    /// budget.
    pub fn budget_used_percent(&self, now: Timestamp) -> Option<u8> {
        let accounts = self.identified()?.accounts().into_iter().flatten();
        accounts
            .filter_map(|account| account.budget_used_percent(now))
            .max()
    }

    /// Whether it may use a concrete model.
    pub fn may_use(&self, model: &str) -> bool {
        match self {
            Self::Anonymous => true,
            Self::Identified(identified) => identified.principal.may_use(model),
        }
    }
}

/// Finds out who presents `key` (the secret itself) at the time `now`.
///
/// An open snapshot asks for nothing. A key whose principal is not in the
/// snapshot is as unknown as one that is not there at all.
pub fn identify(
    state: &RoutingState,
    key: Option<&[u8]>,
    now: Timestamp,
) -> Result<Caller, Refusal> {
    if state.open() {
        return Ok(Caller::Anonymous);
    }
    let hash = hash_key(key.ok_or(Refusal::InvalidKey)?);
    let entry = state.keys().get(&hash).ok_or(Refusal::InvalidKey)?;
    if entry.disabled {
        return Err(Refusal::InvalidKey);
    }
    if entry.expires_at.is_some_and(|expiry| expiry <= now) {
        return Err(Refusal::ExpiredKey);
    }
    let principal = state
        .principal(entry.principal)
        .ok_or(Refusal::InvalidKey)?;
    Ok(Caller::Identified(Identified {
        principal: Arc::clone(principal),
        key: entry.id,
        key_account: entry.account.clone(),
        team_account: state.team_account(principal),
    }))
}

/// SHA-256 of a presented key.
pub fn hash_key(key: &[u8]) -> KeyHash {
    let digest = ring::digest::digest(&ring::digest::SHA256, key);
    let mut hash = [0; 32];
    hash.copy_from_slice(digest.as_ref());
    KeyHash(hash)
}

/// What is kept of a key, in a table of its shard.
#[derive(Debug, Clone)]
pub(crate) struct KeyRecord {
    id: KeyId,
    principal: PrincipalId,
    expires_at: Option<Timestamp>,
    disabled: bool,
    account: Option<Arc<Account>>,
}

impl KeyRecord {
    fn build(entry: &KeyEntry, accounts: &Accounts) -> Self {
        let KeyEntry {
            id,
            principal,
            expires_at,
            disabled,
            limits,
            budget,
        } = entry;
        Self {
            id: *id,
            principal: *principal,
            expires_at: *expires_at,
            disabled: *disabled,
            account: accounts.open(Subject::Key(*id), limits.as_deref(), budget.as_deref()),
        }
    }
}

/// A SHA-256 value is as random as a hash can be: eight of its bytes do.
#[derive(Debug, Default)]
struct SomeBytes(u64);

impl Hasher for SomeBytes {
    fn write(&mut self, bytes: &[u8]) {
        // The array's length comes first, in a shorter write; the shard has
        // used up the first byte.
        if let Some((_, tail)) = bytes.split_first_chunk::<8>()
            && let Some(middle) = tail.first_chunk::<8>()
        {
            self.0 = u64::from_be_bytes(*middle);
        }
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

#[derive(Debug)]
struct ShardTable {
    digest: String,
    records: HashMap<KeyHash, KeyRecord, BuildHasherDefault<SomeBytes>>,
}

impl ShardTable {
    fn build(digest: &str, keys: &KeyMap, accounts: &Accounts) -> Self {
        Self {
            digest: digest.to_owned(),
            records: keys
                .0
                .iter()
                .map(|(hash, entry)| (*hash, KeyRecord::build(entry, accounts)))
                .collect(),
        }
    }
}

/// Every key of a snapshot, by the first byte of its hash.
#[derive(Debug)]
pub(crate) struct Keys {
    shards: Box<[Option<Arc<ShardTable>>; 256]>,
    count: usize,
}

impl Keys {
    /// Builds the state of the shards that `held` does not have yet. Shards
    /// without items or with a malformed prefix hold no keys.
    pub(crate) fn build(shards: &[KeyShard], held: Option<&Self>, accounts: &Accounts) -> Self {
        let mut state = Box::new([const { None }; 256]);
        for shard in shards {
            let Ok(index) = u8::from_str_radix(&shard.prefix, 16) else {
                continue;
            };
            let index = usize::from(index);
            let same = held
                .and_then(|held| held.shards[index].as_ref())
                .filter(|table| table.digest == shard.keys.digest);
            state[index] = match (same, &shard.keys.items) {
                (Some(table), _) => Some(Arc::clone(table)),
                (None, Some(keys)) => Some(Arc::new(ShardTable::build(
                    &shard.keys.digest,
                    keys,
                    accounts,
                ))),
                (None, None) => None,
            };
        }
        let count = state
            .iter()
            .flatten()
            .map(|table| table.records.len())
            .sum();
        Self {
            shards: state,
            count,
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.count
    }

    pub(crate) fn get(&self, hash: &KeyHash) -> Option<&KeyRecord> {
        self.shards[usize::from(hash.0[0])]
            .as_ref()?
            .records
            .get(hash)
    }

    #[cfg(test)]
    pub(crate) fn shares_shard(&self, other: &Self, index: u8) -> bool {
        match (
            &self.shards[usize::from(index)],
            &other.shards[usize::from(index)],
        ) {
            (Some(mine), Some(theirs)) => Arc::ptr_eq(mine, theirs),
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests;
