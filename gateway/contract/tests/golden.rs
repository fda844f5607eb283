//! Golden snapshots and usage batches of every released format: a newer reader
//! must accept each of them, and this release must write its own format byte
//! for byte.

#![expect(clippy::unwrap_used, clippy::panic, reason = "a test may panic")]

use std::collections::BTreeMap;

use fastllm_contract::{
    Backend, BackendId, BudgetId, BudgetSettlement, Concurrency, FORMAT, Failover, HealthCheck,
    KeyEntry, KeyHash, KeyId, KeyMap, KeyShard, Micros, Model, ModelName, PolicyKind, Principal,
    PrincipalId, Protocol, RefusalKind, RequestOptions, Rule, RuleCaller, RuleShape, Secret,
    Section, Snapshot, SplitBy, Target, Timestamp, Tokens, UsageBatch, UsageEvent, VirtualModel,
    shard_prefix,
};

const FORMAT_1: &str = include_str!("golden/snapshot-format-1.json");
const FORMAT_1_ROUTING: &str = include_str!("golden/snapshot-format-1-routing.json");
const FORMAT_1_BACKENDS: &str = include_str!("golden/snapshot-format-1-backends.json");
const FORMAT_1_FAILOVER: &str = include_str!("golden/snapshot-format-1-failover.json");

const USAGE: &str = include_str!("golden/usage-batch.json");
const USAGE_DETAILS: &str = include_str!("golden/usage-batch-details.json");
const USAGE_SETTLED: &str = include_str!("golden/usage-batch-settled.json");

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
        weight: 1,
        draining: false,
        concurrency: Concurrency::default(),
        request_options: RequestOptions::default(),
        health: HealthCheck::default(),
    }
}

fn shard(first: u8, expires_at: Option<Timestamp>) -> KeyShard {
    let hash = KeyHash([first; 32]);
    let entry = KeyEntry {
        limits: None,
        budget: None,
        id: KeyId(u64::from(first)),
        principal: PrincipalId(1),
        expires_at,
        disabled: false,
    };
    KeyShard {
        prefix: shard_prefix(&hash),
        keys: Section::complete(
            format!("keys-{first}"),
            KeyMap(BTreeMap::from([(hash, entry)])),
        ),
    }
}

fn sample() -> Snapshot {
    let name = ModelName::new("qwen").unwrap();
    Snapshot {
        teams: Section::default(),
        format: FORMAT,
        version: 42,
        open: false,
        models: Section::complete(
            "models-1",
            vec![Model {
                cache_ttl_seconds: None,
                failover: Failover::default(),
                name: name.clone(),
                policy: None,
                context_length: None,
                backends: vec![backend(1, Some("upstream-secret")), backend(2, None)],
            }],
        ),
        principals: Section::complete(
            "principals-1",
            vec![Principal {
                team: None,
                limits: None,
                budget: None,
                models: Vec::new(),
                id: PrincipalId(1),
                name: "batch".to_owned(),
                allow_all: false,
                allowed_models: vec![name],
                roles: vec!["inference".to_owned()],
            }],
        ),
        virtual_models: Section::default(),
        fallback_model: None,
        key_shards: vec![
            shard(0x0a, None),
            shard(0xa0, Some(Timestamp(1_800_000_000_000_000))),
        ],
    }
}

fn target(model: &str, weight: u32) -> Target {
    Target {
        model: ModelName::new(model).unwrap(),
        weight,
    }
}

/// A rule with every condition.
fn full_rule() -> Rule {
    Rule {
        caller: RuleCaller {
            principals: vec![PrincipalId(1)],
            roles: vec!["inference".to_owned()],
        },
        shape: RuleShape {
            min_prompt_tokens: Some(1),
            max_prompt_tokens: Some(2000),
            min_max_tokens: Some(16),
            max_max_tokens: Some(4096),
            stream: Some(true),
        },
        headers: BTreeMap::from([("x-fastllm-tier".to_owned(), "batch".to_owned())]),
        min_budget_used_percent: Some(80),
        max_budget_used_percent: Some(100),
        max_inflight_per_backend: Some(2),
        after_minute: Some(22 * 60),
        before_minute: Some(6 * 60),
        days: vec![1, 5],
        utc_offset_minutes: -120,
        class: Some("code".to_owned()),
        targets: vec![target("qwen", 80), target("qwen-large", 20)],
    }
}

/// What format 1 has gained: virtual models, a fallback, and more about models
/// and backends.
fn sample_with_routing() -> Snapshot {
    let mut sample = sample();
    let mut models = sample.models.items.unwrap().to_vec();
    models[0].policy = Some(PolicyKind::LowestLatency);
    models[0].context_length = Some(Tokens(32_768));
    models[0].backends[1].weight = 3;
    sample.models = Section::complete("models-2", models);
    sample.virtual_models = Section::complete(
        "virtual-1",
        vec![VirtualModel {
            name: ModelName::new("auto").unwrap(),
            rules: vec![
                full_rule(),
                Rule {
                    targets: vec![target("qwen", 100)],
                    ..Rule::default()
                },
            ],
            default_targets: vec![target("qwen", 0)],
            split_by: SplitBy::Caller,
        }],
    );
    sample.fallback_model = Some(ModelName::new("qwen-small").unwrap());
    sample
}

/// What format 1 has gained: everything about backends.
fn sample_with_backends() -> Snapshot {
    let mut sample = sample();
    let mut models = sample.models.items.unwrap().to_vec();
    let [first, second] = models[0].backends.as_mut_slice() else {
        panic!("two backends");
    };
    first.draining = true;
    first.health.enabled = false;
    second.concurrency = Concurrency {
        max: Some(8),
        max_queue: 20,
        queue_timeout_ms: 500,
    };
    second.request_options = RequestOptions {
        headers: BTreeMap::from([("api-key".to_owned(), Secret::new("extra-secret"))]),
        query: BTreeMap::from([("api-version".to_owned(), "2024-10-21".to_owned())]),
        path_template: Some("/openai/deployments/{upstream_model}{sub_path}".to_owned()),
    };
    second.health = HealthCheck {
        enabled: true,
        path: "//health".to_owned(),
        method: "HEAD".to_owned(),
        expect: "2xx,401".to_owned(),
    };
    sample.models = Section::complete("models-3", models);
    sample
}

/// What format 1 has gained: the failover of models.
fn sample_with_failover() -> Snapshot {
    let mut sample = sample();
    let mut models = sample.models.items.unwrap().to_vec();
    models[0].failover = Failover {
        fallbacks: vec![ModelName::new("qwen-small").unwrap()],
        context_fallbacks: vec![ModelName::new("qwen-large").unwrap()],
        max_retries: Some(0),
        timeout_ms: Some(30_000),
        stream_timeout_ms: Some(2_500),
    };
    sample.models = Section::complete("models-4", models);
    sample
}

#[test]
fn this_release_writes_format_1() {
    for (sample, golden) in [
        (sample_with_failover(), FORMAT_1_FAILOVER),
        (sample(), FORMAT_1),
        (sample_with_routing(), FORMAT_1_ROUTING),
        (sample_with_backends(), FORMAT_1_BACKENDS),
    ] {
        let written = serde_json::to_string_pretty(&sample).unwrap();
        assert_eq!(written.trim(), golden.trim());
    }
}

#[test]
fn format_1_is_read() {
    for (golden, sample) in [
        (FORMAT_1_FAILOVER, sample_with_failover()),
        (FORMAT_1, sample()),
        (FORMAT_1_ROUTING, sample_with_routing()),
        (FORMAT_1_BACKENDS, sample_with_backends()),
    ] {
        let read: Snapshot = serde_json::from_str(golden).unwrap();
        assert_eq!(read, sample);
    }
}

fn event() -> UsageEvent {
    UsageEvent {
        cache_write_tokens: None,
        audio_prompt_tokens: None,
        audio_completion_tokens: None,
        images: None,
        input_characters: None,
        audio_ms: None,
        audio_bytes: None,
        cached: false,
        metadata: None,
        principal_id: PrincipalId(1),
        key_id: None,
        model: ModelName::new("qwen").unwrap(),
        requested_model: None,
        endpoint: None,
        request_id: None,
        attempts: None,
        prompt_tokens: Tokens(11),
        completion_tokens: Tokens(5),
        cached_tokens: None,
        reasoning_tokens: None,
        usage_reported: true,
        estimated: false,
        refusal: None,
        at: Timestamp(1_800_000_000_000_000),
        duration_ms: None,
        ttft_ms: None,
        status: None,
        cost_micros: None,
    }
}

fn batch(sequence: u64, events: Vec<UsageEvent>) -> UsageBatch {
    UsageBatch {
        replica: "gateway-0".to_owned(),
        boot_id: "b00t".to_owned(),
        sequence,
        events,
        settled: None,
    }
}

#[test]
fn usage_batch_has_a_stable_form() {
    let refused = UsageEvent {
        key_id: Some(KeyId(10)),
        requested_model: ModelName::new("auto").ok(),
        prompt_tokens: Tokens(0),
        completion_tokens: Tokens(0),
        refusal: Some(RefusalKind::NoBackend),
        at: Timestamp(1_800_000_000_000_001),
        duration_ms: Some(31),
        ttft_ms: Some(30),
        status: Some(502),
        cost_micros: Some(Micros(0)),
        ..event()
    };
    let detailed = UsageEvent {
        endpoint: Some("/chat/completions".into()),
        request_id: Some("b00t-7f".to_owned()),
        attempts: Some(2),
        cached_tokens: Some(Tokens(8)),
        reasoning_tokens: Some(Tokens(3)),
        usage_reported: false,
        estimated: true,
        ..event()
    };
    let settled = UsageBatch {
        settled: Some(vec![BudgetSettlement {
            budget: BudgetId(7),
            window_start: Timestamp(1_800_000_000_000_000),
            tokens: Tokens(16),
            cost_micros: Micros(48),
        }]),
        ..batch(9, vec![event()])
    };
    for (sample, golden) in [
        (batch(7, vec![event(), refused]), USAGE),
        (batch(8, vec![detailed]), USAGE_DETAILS),
        (settled, USAGE_SETTLED),
    ] {
        let written = serde_json::to_string_pretty(&sample).unwrap();
        assert_eq!(written.trim(), golden.trim());
        let read: UsageBatch = serde_json::from_str(golden).unwrap();
        assert_eq!(read, sample);
    }
    let newer = r#"{"principal_id": 1, "model": "qwen", "prompt_tokens": 11,
        "completion_tokens": 5, "at": 1800000000000000, "surprise": [1]}"#;
    assert_eq!(serde_json::from_str::<UsageEvent>(newer).unwrap(), event());
}

#[test]
fn held_virtual_models_are_omitted() {
    let held = sample_with_routing();
    let mut next = held.clone();
    next.version = 43;
    let delta = next.without_sections_of(&held.digests());
    assert!(delta.virtual_models.items.is_none());
    assert!(delta.clone().merge(Some(&sample())).is_err());
    assert_eq!(delta.merge(Some(&held)).unwrap(), next);

    // One that has none any more takes nothing over.
    let mut none = held.clone();
    none.virtual_models = Section::default();
    let sent = serde_json::to_string(&none.without_sections_of(&held.digests())).unwrap();
    let received: Snapshot = serde_json::from_str(&sent).unwrap();
    assert_eq!(received.merge(Some(&held)).unwrap(), none);
}

#[test]
fn unknown_names_fall_back_to_defaults() {
    let read: Model =
        serde_json::from_str(r#"{"name": "a", "policy": "psychic", "context_length": null}"#)
            .unwrap();
    assert_eq!(read.policy, None);
    let read: VirtualModel = serde_json::from_str(
        r#"{"name": "v", "split_by": "moon", "rules": [{"mood": 1}],
            "default_targets": [{"model": "a"}]}"#,
    )
    .unwrap();
    assert_eq!(read.split_by, SplitBy::Prompt);
    assert_eq!(read.rules, [Rule::default()]);
    assert_eq!(read.default_targets, [target("a", 100)]);
    for policy in PolicyKind::ALL {
        assert_eq!(policy.to_string().parse(), Ok(policy));
        let written = serde_json::to_string(&policy).unwrap();
        assert_eq!(written, format!("\"{policy}\""));
    }
}

#[test]
fn unknown_members_are_ignored_and_missing_ones_have_defaults() {
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
fn null_auth_scheme_sends_the_bare_credential() {
    let read: Backend = serde_json::from_str(
        r#"{"id": 1, "api_base": "http://b", "upstream_model": "a", "auth_scheme": null}"#,
    )
    .unwrap();
    assert_eq!(read.auth_scheme, None);
}

#[test]
fn new_key_changes_one_shard() {
    let held = sample();
    let mut next = held.clone();
    next.version = 43;
    next.key_shards.push(shard(0xff, None));
    let delta = next.without_sections_of(&held.digests());
    let with_items = delta.key_shards.iter().filter(|s| s.keys.items.is_some());
    assert_eq!(with_items.count(), 1);
    assert!(delta.models.items.is_none() && delta.principals.items.is_none());

    let sent = serde_json::to_string(&delta).unwrap();
    let received: Snapshot = serde_json::from_str(&sent).unwrap();
    assert_eq!(received.clone().merge(Some(&held)).unwrap(), next);
    assert!(received.merge(None).is_err());
}

#[test]
fn changed_section_is_not_filled_from_the_held_one() {
    let held = sample();
    let mut delta = held.digests();
    delta.models.digest = "models-2".to_owned();
    assert!(delta.merge(Some(&held)).is_err());
}
