use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::Arc;

use fastllm_contract::{
    KeyEntry, KeyHash, KeyId, KeyMap, KeyShard, PrincipalId, Subject, Timestamp,
};

use crate::accounts::{Account, Accounts};

/// SHA-256 of a presented key.
pub fn hash_key(key: &[u8]) -> KeyHash {
    let digest = ring::digest::digest(&ring::digest::SHA256, key);
    let mut hash = [0; 32];
    hash.copy_from_slice(digest.as_ref());
    KeyHash(hash)
}

/// A key, in the table of its shard.
#[derive(Debug, Clone)]
pub(crate) struct KeyRecord {
    pub(crate) id: KeyId,
    pub(crate) principal: PrincipalId,
    pub(crate) expires_at: Option<Timestamp>,
    pub(crate) disabled: bool,
    pub(crate) account: Option<Arc<Account>>,
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

/// A SHA-256 value is uniformly distributed, so 8 of its bytes are a good hash.
#[derive(Debug, Default)]
struct SomeBytes(u64);

impl Hasher for SomeBytes {
    fn write(&mut self, bytes: &[u8]) {
        // The length of the array comes first, in a shorter write. The first
        // byte selects the shard.
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
