//! Golden snapshots of every released format: a newer reader must accept each
//! of them, and this release must write its own format byte for byte.

#![expect(clippy::unwrap_used, reason = "a test may panic")]

use std::collections::BTreeMap;

use fastllm_contract::{
    Backend, BackendId, FORMAT, KeyEntry, KeyHash, KeyId, KeyMap, KeyShard, Model, ModelName, Part,
    Principal, PrincipalId, Protocol, Secret, Snapshot, Timestamp, shard_prefix,
};

const FORMAT_1: &str = include_str!("golden/snapshot-format-1.json");

fn backend(id: u64, api_key: Option<&str>) -> Backend {
    Backend {
        id: BackendId(id),
        api_base: format!("http://10.0.0.{id}:8000/v1"),
        upstream_model: "Qwen/Qwen3-1.7B".to_owned(),
        api_key: api_key.map(Secret::new),
        protocol: Protocol::Openai,
        auth_header: "authorization".to_owned(),
        auth_scheme: Some("Bearer".to_owned()),
        default_max_tokens: None,
    }
}

fn shard(first: u8, expires_at: Option<Timestamp>) -> KeyShard {
    let hash = KeyHash([first; 32]);
    let entry = KeyEntry {
        id: KeyId(u64::from(first)),
        principal: PrincipalId(1),
        expires_at,
        disabled: false,
    };
    KeyShard {
        prefix: shard_prefix(&hash),
        keys: Part::complete(
            format!("keys-{first}"),
            KeyMap(BTreeMap::from([(hash, entry)])),
        ),
    }
}

fn sample() -> Snapshot {
    let name = ModelName::new("qwen").unwrap();
    Snapshot {
        format: FORMAT,
        version: 42,
        open: false,
        models: Part::complete(
            "models-1",
            vec![Model {
                name: name.clone(),
                backends: vec![backend(1, Some("upstream-secret")), backend(2, None)],
            }],
        ),
        principals: Part::complete(
            "principals-1",
            vec![Principal {
                id: PrincipalId(1),
                name: "batch".to_owned(),
                allow_all: false,
                allowed_models: vec![name],
                roles: vec!["inference".to_owned()],
            }],
        ),
        key_shards: vec![
            shard(0x0a, None),
            shard(0xa0, Some(Timestamp(1_800_000_000_000_000))),
        ],
    }
}

#[test]
fn this_release_writes_format_1() {
    let written = serde_json::to_string_pretty(&sample()).unwrap();
    assert_eq!(written.trim(), FORMAT_1.trim());
}

#[test]
fn format_1_is_read() {
    let read: Snapshot = serde_json::from_str(FORMAT_1).unwrap();
    assert_eq!(read, sample());
}

#[test]
fn fields_of_a_newer_release_are_ignored_and_missing_ones_have_defaults() {
    let read: Snapshot = serde_json::from_str(
        r#"{"format": 7, "version": 1, "surprise": [1],
            "models": {"digest": "m", "items": [{"name": "a", "cost": 3, "backends": [
                {"id": 1, "api_base": "http://b", "upstream_model": "a", "protocol": "quantum"}]}]},
            "principals": {"digest": "p", "items": []},
            "key_shards": [{"prefix": "zz", "digest": "k", "items": {"no hash": {"id": 1, "principal": 1}}}]}"#,
    )
    .unwrap();
    let models = read.models.items.unwrap();
    assert_eq!(models[0].backends[0].protocol, Protocol::Unknown);
    assert_eq!(models[0].backends[0].auth_scheme.as_deref(), Some("Bearer"));
    assert!(read.key_shards[0].keys.items.as_ref().unwrap().0.is_empty());
}

#[test]
fn a_raw_credential_has_no_scheme() {
    let read: Backend = serde_json::from_str(
        r#"{"id": 1, "api_base": "http://b", "upstream_model": "a", "auth_scheme": null}"#,
    )
    .unwrap();
    assert_eq!(read.auth_scheme, None);
}

#[test]
fn one_new_key_costs_one_shard() {
    let held = sample();
    let mut next = held.clone();
    next.version = 43;
    next.key_shards.push(shard(0xff, None));
    let delta = next.without_parts_of(&held.digests());
    let with_items = delta.key_shards.iter().filter(|s| s.keys.items.is_some());
    assert_eq!(with_items.count(), 1);
    assert!(delta.models.items.is_none() && delta.principals.items.is_none());

    let sent = serde_json::to_string(&delta).unwrap();
    let received: Snapshot = serde_json::from_str(&sent).unwrap();
    assert_eq!(received.clone().merge(Some(&held)).unwrap(), next);
    assert!(received.merge(None).is_err());
}

#[test]
fn a_part_that_changed_is_never_filled_from_the_held_one() {
    let held = sample();
    let mut delta = held.digests();
    delta.models.digest = "models-2".to_owned();
    assert!(delta.merge(Some(&held)).is_err());
}
