//! Snapshots for the tests of this crate.

use std::collections::BTreeMap;

use fastllm_contract::{
    Backend, BackendId, Concurrency, FORMAT, Failover, HealthCheck, KeyEntry, KeyId, KeyMap,
    KeyShard, Model, ModelName, Principal, PrincipalId, Protocol, RequestOptions, Rule, Section,
    Snapshot, SplitBy, Target, Timestamp, VirtualModel, shard_prefix,
};
use http::HeaderMap;

use crate::caller::hash_key;
use crate::pool::{EndpointIndex, Tuning};
use crate::state::RoutingState;
use crate::virtual_model::RouteQuery;

pub(crate) fn name(text: &str) -> ModelName {
    ModelName::new(text).unwrap()
}

pub(crate) fn backend(id: u64) -> Backend {
    Backend {
        id: BackendId(id),
        api_base: format!("http://10.0.0.{id}:8000/v1"),
        upstream_model: "served".to_owned(),
        api_key: None,
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

pub(crate) fn model(model: &str, backends: &[u64]) -> Model {
    Model {
        cache_ttl_seconds: None,
        failover: Failover::default(),
        name: name(model),
        policy: None,
        context_length: None,
        backends: backends.iter().map(|id| backend(*id)).collect(),
    }
}

pub(crate) fn principal(id: u64, allowed: &[&str]) -> Principal {
    Principal {
        team: None,
        limits: None,
        budget: None,
        models: Vec::new(),
        id: PrincipalId(id),
        name: format!("principal-{id}"),
        allow_all: false,
        allowed_models: allowed.iter().map(|model| name(model)).collect(),
        roles: Vec::new(),
    }
}

/// A key of a principal; `expires_at` in microseconds.
pub(crate) struct Key<'a> {
    pub(crate) secret: &'a str,
    pub(crate) principal: u64,
    pub(crate) expires_at: Option<i64>,
    pub(crate) disabled: bool,
}

pub(crate) fn key(secret: &str, principal: u64) -> Key<'_> {
    Key {
        secret,
        principal,
        expires_at: None,
        disabled: false,
    }
}

/// Digests follow the debug output, so equal content has equal digests.
pub(crate) fn snapshot(
    models: Vec<Model>,
    principals: Vec<Principal>,
    keys: &[Key<'_>],
) -> Snapshot {
    let mut shards: BTreeMap<String, KeyMap> = BTreeMap::new();
    for key in keys {
        let hash = hash_key(key.secret.as_bytes());
        let entry = KeyEntry {
            limits: None,
            budget: None,
            id: KeyId(key.principal * 10),
            principal: PrincipalId(key.principal),
            expires_at: key.expires_at.map(Timestamp),
            disabled: key.disabled,
        };
        shards
            .entry(shard_prefix(&hash))
            .or_default()
            .0
            .insert(hash, entry);
    }
    Snapshot {
        teams: Section::default(),
        format: FORMAT,
        version: 1,
        open: false,
        models: Section::complete(format!("{models:?}"), models),
        principals: Section::complete(format!("{principals:?}"), principals),
        virtual_models: Section::default(),
        fallback_model: None,
        key_shards: shards
            .into_iter()
            .map(|(prefix, keys)| KeyShard {
                prefix,
                keys: Section::complete(format!("{keys:?}"), keys),
            })
            .collect(),
    }
}

/// A query for tests that do not depend on its values.
pub(crate) fn ask(headers: &HeaderMap) -> RouteQuery<'_> {
    RouteQuery {
        stream: false,
        endpoint: EndpointIndex::default(),
        prompt_tokens: 10,
        max_tokens: None,
        headers,
        at: Timestamp(0),
        prompt_hash: 0,
        budget_used_percent: None,
    }
}

pub(crate) fn targets(targets: &[(&str, u32)]) -> Vec<Target> {
    targets
        .iter()
        .map(|(model, weight)| Target {
            model: name(model),
            weight: *weight,
        })
        .collect()
}

/// A virtual model with these rules and default targets.
pub(crate) fn virtual_model(
    model: &str,
    rules: Vec<Rule>,
    defaults: &[(&str, u32)],
) -> VirtualModel {
    VirtualModel {
        name: name(model),
        rules,
        default_targets: targets(defaults),
        split_by: SplitBy::Prompt,
    }
}

/// The snapshot with these virtual models.
pub(crate) fn with_virtual(mut snapshot: Snapshot, models: Vec<VirtualModel>) -> Snapshot {
    snapshot.virtual_models = Section::complete(format!("{models:?}"), models);
    snapshot
}

pub(crate) fn routing_state(snapshot: &Snapshot) -> RoutingState {
    RoutingState::build(snapshot, None, &Tuning::default())
        .unwrap()
        .state
}
