use std::collections::BTreeMap;

use anyhow::Context;
use fastllm_contract::{
    FORMAT, KeyEntry, KeyId, KeyShard, PrincipalId, Section, Snapshot, VirtualModel, shard_prefix,
};
use fastllm_engine::hash_key;
use fastllm_engine::{RoutingState, Tuning};
use serde_json::json;

use crate::bodies::{key, model};

/// How much a snapshot holds.
#[derive(Debug, Clone, Copy)]
pub struct Size {
    /// API keys, ten of each principal.
    pub keys: u32,
    /// Models with one backend each; a principal may use ten of them.
    pub models: u32,
}

/// A snapshot of a size; its virtual model is called `smart`.
///
/// # Errors
/// Where this and the contract do not fit together.
pub fn snapshot(size: Size) -> anyhow::Result<Snapshot> {
    Ok(Snapshot {
        teams: Section::default(),
        format: FORMAT,
        version: 1,
        open: false,
        models: part("models", models(size))?,
        principals: part("principals", principals(size))?,
        virtual_models: Section::complete("virtual", vec![smart()?]),
        fallback_model: None,
        key_shards: shards(size),
    })
}

/// The tables of such a snapshot.
///
/// # Errors
/// As [`snapshot`]'s.
pub fn tables(size: Size) -> anyhow::Result<RoutingState> {
    let built = RoutingState::build(&snapshot(size)?, None, &Tuning::default());
    Ok(built.context("the snapshot is refused")?.state)
}

fn part<T: serde::de::DeserializeOwned + Default>(
    digest: &str,
    items: serde_json::Value,
) -> anyhow::Result<Section<T>> {
    Ok(Section::complete(digest, serde_json::from_value(items)?))
}

fn models(size: Size) -> serde_json::Value {
    let described = |number: u32| {
        let backend = json!({
            "id": number + 1,
            "api_base": "http://127.0.0.1:9000/v1",
            "upstream_model": model(number),
            "api_key": "upstream-credential",
            "protocol": "openai",
            "auth_header": "authorization",
            "auth_scheme": "Bearer",
        });
        json!({"name": model(number), "backends": [backend]})
    };
    (0..size.models).map(described).collect()
}

fn principals(size: Size) -> serde_json::Value {
    let described = |number: u32| {
        let granted = (0..10).map(|grant| model((number * 10 + grant) % size.models));
        json!({
            "id": number,
            "name": format!("principal-{number}"),
            "allow_all": false,
            "allowed_models": granted.collect::<Vec<_>>(),
            "roles": ["inference"],
        })
    };
    (0..size.keys.div_ceil(10)).map(described).collect()
}

/// Three rules, of which the last one holds; its two targets share by weight.
fn smart() -> anyhow::Result<VirtualModel> {
    let target = |number: u32| json!({"model": model(number), "weight": 50});
    Ok(serde_json::from_value(json!({
        "name": "smart",
        "rules": [
            {"caller": {"roles": ["premium"]}, "targets": [target(0)]},
            {"shape": {"min_prompt_tokens": 100_000}, "headers": {"x-tier": "batch"},
             "targets": [target(1)]},
            {"shape": {"stream": false}, "targets": [target(2), target(3)]},
        ],
        "default_targets": [target(0)],
    }))?)
}

fn shards(size: Size) -> Vec<KeyShard> {
    let mut shards: BTreeMap<String, fastllm_contract::KeyMap> = BTreeMap::new();
    for number in 0..size.keys {
        let hash = hash_key(key(number).as_bytes());
        let entry = KeyEntry {
            limits: None,
            budget: None,
            id: KeyId(u64::from(number)),
            principal: PrincipalId(u64::from(number / 10)),
            expires_at: None,
            disabled: false,
        };
        let shard = shards.entry(shard_prefix(&hash)).or_default();
        shard.0.insert(hash, entry);
    }
    shards
        .into_iter()
        .map(|(prefix, keys)| KeyShard {
            keys: Section::complete(format!("keys-{prefix}"), keys),
            prefix,
        })
        .collect()
}
