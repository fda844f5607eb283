use std::collections::BTreeMap;

use fastllm_contract::{
    Backend, BackendId, Concurrency, FORMAT, Failover, HealthCheck, KeyEntry, KeyHash, KeyId,
    KeyMap, KeyShard, Model, ModelName, Principal, PrincipalId, Protocol, RequestOptions, Secret,
    Section, Snapshot, Timestamp, VirtualModel, shard_prefix,
};
use ring::digest::{SHA256, digest};

/// The key of principal 1, which may use `small` and `large`.
pub(crate) const KEY: &str = "sk-usual";

/// The content of a snapshot.
#[derive(Debug, Clone)]
pub(crate) struct SnapshotContent {
    pub(crate) version: u64,
    pub(crate) open: bool,
    pub(crate) models: Vec<Model>,
    pub(crate) virtual_models: Vec<VirtualModel>,
    pub(crate) fallback: Option<ModelName>,
    pub(crate) principals: Vec<Principal>,
    /// Secret, principal, expiry, disabled.
    pub(crate) keys: Vec<(String, u64, Option<i64>, bool)>,
}

pub(crate) fn backend(id: u64, api_base: &str) -> Backend {
    Backend {
        id: BackendId(id),
        api_base: api_base.to_owned(),
        upstream_model: "small".to_owned(),
        api_key: Some(Secret::new(format!("credential-{id}"))),
        protocol: Protocol::Openai,
        auth_header: "authorization".to_owned(),
        auth_scheme: Some("Bearer".to_owned()),
        default_max_tokens: None,
        weight: 1,
        draining: false,
        concurrency: Concurrency::default(),
        request_options: RequestOptions::default(),
        health: HealthCheck::default(),
    }
}

/// The model `small` on these addresses, `large` and `forbidden` on the first
/// of them, and the default key.
pub(crate) fn content(addresses: &[String]) -> SnapshotContent {
    let pool = addresses
        .iter()
        .zip(1..)
        .map(|(address, id)| backend(id, address))
        .collect();
    let model = |name: &str, backends| Model {
        cache_ttl_seconds: None,
        failover: Failover::default(),
        name: ModelName::new(name).unwrap(),
        policy: None,
        context_length: None,
        backends,
    };
    let first = addresses.first().map(|address| backend(9, address));
    SnapshotContent {
        version: 1,
        open: false,
        models: vec![
            model("forbidden", first.clone().into_iter().collect()),
            model("large", first.into_iter().collect()),
            model("small", pool),
        ],
        virtual_models: Vec::new(),
        fallback: None,
        principals: vec![Principal {
            team: None,
            limits: None,
            budget: None,
            models: Vec::new(),
            id: PrincipalId(1),
            name: "someone".to_owned(),
            allow_all: false,
            allowed_models: ["large", "small"]
                .map(|name| ModelName::new(name).unwrap())
                .to_vec(),
            roles: Vec::new(),
        }],
        keys: vec![(KEY.to_owned(), 1, None, false)],
    }
}

/// Digests are derived from the content, so equal sections have equal digests.
pub(crate) fn snapshot(content: &SnapshotContent) -> Snapshot {
    let mut shards: BTreeMap<String, KeyMap> = BTreeMap::new();
    for (secret, principal, expires_at, disabled) in &content.keys {
        let hash = digest(&SHA256, secret.as_bytes());
        let hash = KeyHash(hash.as_ref().try_into().unwrap());
        let entry = KeyEntry {
            limits: None,
            budget: None,
            id: KeyId(principal * 10),
            principal: PrincipalId(*principal),
            expires_at: expires_at.map(Timestamp),
            disabled: *disabled,
        };
        let shard = shards.entry(shard_prefix(&hash)).or_default();
        shard.0.insert(hash, entry);
    }
    Snapshot {
        teams: Section::default(),
        format: FORMAT,
        version: content.version,
        open: content.open,
        models: part(content.models.clone()),
        principals: part(content.principals.clone()),
        virtual_models: match content.virtual_models.as_slice() {
            [] => Section::default(),
            some => part(some.to_vec()),
        },
        fallback_model: content.fallback.clone(),
        key_shards: shards
            .into_iter()
            .map(|(prefix, keys)| KeyShard {
                prefix,
                keys: part(keys),
            })
            .collect(),
    }
}

fn part<T: serde::Serialize>(items: T) -> Section<T> {
    let text = serde_json::to_vec(&items).unwrap();
    let sum = digest(&SHA256, &text);
    let first = u64::from_be_bytes(sum.as_ref()[..8].try_into().unwrap());
    Section::complete(format!("{first:016x}"), items)
}
