mod include;
mod litellm;
mod restrictions;

use std::fmt::Write;
use std::path::Path;

use fastllm_contract::{
    Concurrency, Model, PolicyKind, RequestOptions, Secret, Snapshot, SplitBy, Timestamp,
    WindowLength,
};
use fastllm_engine::hash_key;

use super::{FileContents, ReadOutcome, Surroundings, read};

fn environment(name: &str) -> Option<String> {
    match name {
        "SET" => Some("from-the-environment".to_owned()),
        "EMPTY" => Some(String::new()),
        _ => None,
    }
}

/// No file can be included.
fn no_file(_: &Path) -> Result<String, String> {
    Err("no such file".to_owned())
}

fn reading(text: &str) -> ReadOutcome {
    let surroundings = Surroundings {
        environment: &environment,
        included: &no_file,
        master_key: None,
        policy: PolicyKind::RoundRobin,
        max_body_bytes: 64 << 20,
    };
    read(text, &surroundings)
}

/// One line per problem.
fn problems(reading: &ReadOutcome) -> Vec<String> {
    let listed = reading.problems.listed().iter();
    listed.map(ToString::to_string).collect()
}

/// Contents of a file that has no problems except the expected ones.
fn contents(text: &str, expected: &[&str]) -> FileContents {
    let reading = reading(text);
    assert_eq!(problems(&reading), expected);
    reading.contents.unwrap()
}

fn models(snapshot: &Snapshot) -> &[Model] {
    snapshot.models.items.as_deref().unwrap()
}

const OPEN: &str = "1:1: warning: no auth.keys and no master key: the gateway is open to everyone";

const ONE: &str = "
model_list:
- model_name: small
  litellm_params: {api_base: 'http://a/v1/'}
";

#[test]
fn entries_of_one_name_are_a_pool_and_fields_have_defaults() {
    let text = "
model_list:
- model_name: small
  policy: least-loaded
  litellm_params: {model: openai/gpt, api_base: 'http://a/v1/', api_key: os.environ/SET, weight: 3}
- model_name: large
  context_length: 8192
  cache_ttl_seconds: 60
  litellm_params:
    api_base: https://b
    api_key: not-needed
    auth_header: X-Key
    auth_scheme: ''
    default_max_tokens: 77
- model_name: small
  litellm_params: {model: Qwen/Q, api_base: 'http://c', api_key: 'null'}
";
    let FileContents { snapshot, tuning } = contents(text, &[OPEN]);
    assert!(snapshot.open);
    assert_eq!(tuning.policy, PolicyKind::RoundRobin);
    let [large, small] = models(&snapshot) else {
        panic!("two models");
    };
    assert_eq!(large.context_length.unwrap().0, 8192);
    assert_eq!(large.cache_ttl_seconds, Some(60));
    let backend = &large.backends[0];
    assert_eq!(backend.api_base, "https://b");
    assert_eq!(backend.upstream_model, "large");
    assert_eq!((&backend.api_key, &backend.auth_scheme), (&None, &None));
    assert_eq!(backend.auth_header, "x-key");
    assert_eq!((backend.default_max_tokens, backend.weight), (Some(77), 1));
    assert_eq!(small.policy, Some(PolicyKind::LeastLoaded));
    assert_eq!(small.backends.len(), 2);
    assert!(small.backends[0].id < small.backends[1].id);
    let first = small.backends.iter().find(|one| one.weight == 3).unwrap();
    assert_eq!(first.api_base, "http://a/v1");
    assert_eq!(first.upstream_model, "gpt");
    assert_eq!(first.api_key, Some(Secret::new("from-the-environment")));
    assert_eq!(first.auth_scheme.as_deref(), Some("Bearer"));
}

#[test]
fn limits_options_and_probes_of_a_backend_follow_its_entry() {
    let text = "
model_list:
- model_name: small
  litellm_params:
    api_base: http://a
    draining: true
    max_concurrency: 4
    max_queue: 0
    queue_timeout_ms: 250
    extra_headers: {X-Team: os.environ/SET}
    extra_query: {api-version: '2024-10-21'}
    path_template: '/openai/deployments/{upstream_model}{sub_path}'
    health_check: false
    health_path: //health
    health_method: HEAD
    health_expect: 2xx,401
- model_name: small
  litellm_params: {api_base: 'http://b', enabled: false}
fastllm: {unhealthy_after: 5}
";
    let FileContents { snapshot, tuning } = contents(text, &[OPEN]);
    let [backend] = &models(&snapshot)[0].backends[..] else {
        panic!("one backend");
    };
    assert!(backend.draining);
    let Concurrency {
        max,
        max_queue,
        queue_timeout_ms,
    } = backend.concurrency;
    assert_eq!((max, max_queue, queue_timeout_ms), (Some(4), 0, 250));
    let RequestOptions {
        headers,
        query,
        path_template,
    } = &backend.request_options;
    let header = headers.iter().next().unwrap();
    assert_eq!(header.0, "x-team");
    assert_eq!(header.1.expose(), "from-the-environment");
    assert_eq!(query["api-version"], "2024-10-21");
    assert!(path_template.as_ref().unwrap().starts_with("/openai"));
    let health = &backend.health;
    assert_eq!((health.enabled, health.path.as_str()), (false, "//health"));
    assert_eq!(
        (health.method.as_str(), health.expect.as_str()),
        ("HEAD", "2xx,401")
    );
    assert_eq!(tuning.unhealthy_after, 5);
}

#[test]
fn a_backend_keeps_its_id_when_others_and_its_credential_change() {
    let id = |text: &str, base: &str| {
        let snapshot = contents(text, &[OPEN]).snapshot;
        let mut backends = models(&snapshot)[0].backends.iter();
        backends.find(|one| one.api_base == base).unwrap().id
    };
    let more = "
model_list:
- {model_name: small, litellm_params: {api_base: 'http://0/v1'}}
- {model_name: small, litellm_params: {api_base: 'http://a/v1', api_key: other}}
";
    assert_eq!(id(ONE, "http://a/v1"), id(more, "http://a/v1"));
    assert_ne!(id(more, "http://0/v1"), id(more, "http://a/v1"));
    // Two credentials for one address are two backends.
    let twins = "
model_list:
- {model_name: small, litellm_params: {api_base: 'http://a', api_key: one}}
- {model_name: small, litellm_params: {api_base: 'http://a', api_key: two}}
";
    let snapshot = contents(twins, &[OPEN]).snapshot;
    let backends = &models(&snapshot)[0].backends;
    assert_ne!(backends[0].id, backends[1].id);
}

#[test]
fn equal_content_has_equal_digests_and_the_version_follows_the_text() {
    let one = contents(ONE, &[OPEN]).snapshot;
    let commented = contents(&format!("# new\n{ONE}"), &[OPEN]).snapshot;
    assert_eq!(one.models, commented.models);
    assert_ne!(one.version, commented.version);
    let sum = ring::digest::digest(&ring::digest::SHA256, ONE.as_bytes());
    let first = sum.as_ref()[..8].try_into().unwrap();
    assert_eq!(one.version, u64::from_le_bytes(first));
    let tuned = contents(&format!("{ONE}\nfastllm: {{balance_abs: 3}}"), &[OPEN]);
    assert_ne!(one.models.digest, tuned.snapshot.models.digest);
    assert_eq!(tuned.tuning.balance_abs, 3);
}

#[test]
fn the_tuning_block_is_read() {
    let text = format!("{ONE}\nfastllm: {{balance_rel: 2.25, affinity_slots: 100}}");
    let tuning = contents(&text, &[OPEN]).tuning;
    assert_eq!(
        (tuning.balance_rel_percent, tuning.affinity_slots),
        (125, 100)
    );
    for wrong in [
        "balance_rel: 0.9",
        "balance_rel: x",
        "balance_abs: -1",
        "affinity_slots: .5",
    ] {
        let reading = reading(&format!("{ONE}\nfastllm: {{{wrong}}}"));
        assert_eq!(reading.problems.errors(), 1, "{wrong}");
        assert!(reading.contents.is_none(), "{wrong}");
    }
}

#[test]
fn keys_are_principals_with_grants_roles_and_expiry() {
    let hash = hash_key(b"sk-two");
    let text = format!(
        "{ONE}
auth:
  keys:
  - {{name: everything, key: sk-one, models: ['*']}}
  - {{name: some, key_hash: {hash}, models: [small], roles: [b, a], expires_at: 2026-01-02}}
  - {{name: nothing, key: sk-three, expires_at: '1970-01-01T00:00:01.5+00:00'}}
  - {{name: everything, key: os.environ/SET, models: ['*']}}
"
    );
    let snapshot = contents(&text, &[]).snapshot;
    assert!(!snapshot.open);
    let principals = snapshot.principals.items.as_deref().unwrap();
    let ids: Vec<_> = principals
        .iter()
        .map(|one| (one.id.0, one.name.as_str()))
        .collect();
    assert_eq!(ids, [(1, "everything"), (2, "some"), (3, "nothing")]);
    assert!(principals[0].allow_all && !principals[1].allow_all);
    assert_eq!(principals[1].allowed_models[0].as_str(), "small");
    assert_eq!(principals[1].roles, ["a", "b"]);
    assert!(principals[2].allowed_models.is_empty());
    let key = |key: &str| {
        let hash = hash_key(key.as_bytes());
        let mut shards = snapshot.key_shards.iter();
        shards
            .find_map(|shard| shard.keys.items.as_ref()?.0.get(&hash).cloned())
            .unwrap()
    };
    assert_eq!(
        key("sk-one").principal,
        key("from-the-environment").principal
    );
    assert_ne!(key("sk-one").id, key("from-the-environment").id);
    assert_eq!(
        key("sk-two").expires_at,
        Some(Timestamp(1_767_312_000_000_000))
    );
    assert_eq!(key("sk-three").expires_at, Some(Timestamp(1_500_000)));
}

#[test]
fn keys_of_a_principal_share_its_limits_and_its_budget() {
    let text = "
model_list: [{model_name: small, litellm_params: {api_base: 'http://a/v1'}}]
auth:
  keys:
  - &one
    name: app
    key: sk-app-one
    models: ['*']
    limits: {requests_per_min: 60, tokens_per_min: 9000, concurrency: 4}
    budget: {tokens_total: 1000, tokens_used: 400, window: weekly, time_zone: europe/berlin}
  - {<<: *one, key: sk-app-two}
  - {name: other, key: sk-other, models: ['*'], budget: {tokens_total: 5}}
";
    let snapshot = contents(text, &[]).snapshot;
    let [app, other] = &snapshot.principals.items.as_ref().unwrap()[..] else {
        panic!("two principals");
    };
    let limits = app.limits.unwrap();
    let limits = [
        limits.requests_per_min,
        limits.tokens_per_min,
        limits.concurrency,
    ];
    assert_eq!(limits.map(|limit| limit.unwrap().get()), [60, 9000, 4]);
    let budget = app.budget.as_ref().unwrap();
    assert_eq!(budget.tokens_total.unwrap().0, 600);
    assert_eq!(budget.window, WindowLength::Weekly);
    assert_eq!(budget.time_zone.as_deref(), Some("Europe/Berlin"));
    let usual = other.budget.as_ref().unwrap();
    assert_eq!(usual.window, WindowLength::Monthly);
    assert_eq!(usual.time_zone.as_deref(), Some("UTC"));
    assert!(other.limits.is_none() && usual.id != budget.id);
}

#[test]
fn a_master_key_grants_everything_and_flags_override_the_file() {
    let text = format!("{ONE}\ngeneral_settings: {{master_key: sk-file}}");
    let snapshot = contents(&text, &[]).snapshot;
    assert!(!snapshot.open);
    let principals = snapshot.principals.items.as_deref().unwrap();
    assert!(principals[0].allow_all && principals[0].id.0 == 0);
    let flag = Secret::new("sk-flag");
    let surroundings = Surroundings {
        environment: &environment,
        included: &no_file,
        master_key: Some(&flag),
        policy: PolicyKind::RoundRobin,
        max_body_bytes: 64 << 20,
    };
    let reading = read(&text, &surroundings);
    assert_eq!(reading.problems.warnings(), 1);
    let shards = reading.contents.unwrap().snapshot.key_shards;
    let keys = shards[0].keys.items.as_ref().unwrap();
    assert!(keys.0.contains_key(&hash_key(b"sk-flag")));
}

#[test]
fn an_unusable_key_never_opens_the_gateway() {
    for auth in [
        "auth: {keys: [{name: a, key: os.environ/UNSET, models: ['*']}]}",
        "auth: {keys: [{name: a, key: os.environ/EMPTY, models: ['*']}]}",
        "auth: {keys: [{name: a, models: ['*']}]}",
        "auth: {keys: ['sk-a']}",
    ] {
        let reading = reading(&format!("{ONE}\n{auth}"));
        assert_eq!(reading.problems.errors(), 1, "{auth}");
        let snapshot = reading.contents.unwrap().snapshot;
        assert!(!snapshot.open && snapshot.key_shards.is_empty(), "{auth}");
    }
    // Nothing is served if it is unclear who may send requests.
    for auth in [
        "general_settings: {master_key: os.environ/UNSET}",
        "general_settings: {master_key: 'with space'}",
        "auth: {keys: sk-a}",
        "auth: [sk-a]",
        "auth: {key: [{name: a, key: sk-a, models: ['*']}]}",
        "auth: {keys: }",
        "auth: {keys: [], required: true}",
    ] {
        let reading = reading(&format!("{ONE}\n{auth}"));
        assert!(reading.problems.errors() > 0, "{auth}");
        assert!(reading.contents.is_none(), "{auth}");
    }
}

#[test]
fn virtual_models_have_rules_targets_and_defaults() {
    let text = format!(
        "{ONE}
- {{model_name: large, litellm_params: {{api_base: 'http://b'}}}}
auth: {{keys: [{{name: batch, key: k, models: ['*'], roles: [offline]}}]}}
fastllm:
  fallback_model: large
  virtual_models:
  - name: auto
    split_by: caller
    rules:
    - principals: [batch]
      roles: [offline]
      min_prompt_tokens: 1
      max_prompt_tokens: 2
      min_max_tokens: 3
      max_max_tokens: 4
      stream: true
      headers: {{X-Tier: batch}}
      max_inflight_per_backend: 5
      after: 22:00
      before: '06:30'
      days: [7, 1]
      utc_offset_minutes: -60
      targets: [{{model: large, weight: 7}}, small]
    default_targets: [small]
"
    );
    let snapshot = contents(&text, &[]).snapshot;
    let fallback = snapshot.fallback_model.as_ref();
    assert_eq!(fallback.unwrap().as_str(), "large");
    check_auto(&snapshot);
}

fn check_auto(snapshot: &Snapshot) {
    let [auto] = snapshot.virtual_models.items.as_deref().unwrap().as_slice() else {
        panic!("one virtual model");
    };
    assert_eq!(auto.split_by, SplitBy::Caller);
    let rule = &auto.rules[0];
    assert_eq!(rule.caller.principals[0].0, 1);
    assert_eq!(rule.caller.roles, ["offline"]);
    let shape = &rule.shape;
    let prompt = (shape.min_prompt_tokens, shape.max_prompt_tokens);
    assert_eq!(prompt, (Some(1), Some(2)));
    assert_eq!(
        (shape.min_max_tokens, shape.max_max_tokens),
        (Some(3), Some(4))
    );
    assert_eq!(shape.stream, Some(true));
    assert_eq!(rule.headers["x-tier"], "batch");
    assert_eq!(rule.max_inflight_per_backend, Some(5));
    assert_eq!(
        (rule.after_minute, rule.before_minute),
        (Some(1320), Some(390))
    );
    assert_eq!(
        (rule.days.as_slice(), rule.utc_offset_minutes),
        (&[1, 7][..], -60)
    );
    let targets: Vec<_> = rule
        .targets
        .iter()
        .map(|one| (one.model.as_str(), one.weight))
        .collect();
    assert_eq!(targets, [("large", 7), ("small", 100)]);
    assert_eq!(auto.default_targets[0].model.as_str(), "small");
}

#[test]
fn a_virtual_model_with_an_error_is_skipped_entirely() {
    for wrong in [
        "rules: [{targets: []}]",
        "rules: [{targets: [nobody]}]",
        "rules: [{targets: [{weight: 1}]}]",
        "rules: [{targets: [{model: small, weight: -1}]}]",
        "rules: [{principals: [nobody], targets: [small]}]",
        "rules: [{stream: maybe, targets: [small]}]",
        "rules: [{after: '24:00', targets: [small]}]",
        "rules: [{after: '8:00', targets: [small]}]",
        "rules: [{after: '08:00', before: '08:00', targets: [small]}]",
        "rules: [{before: '00:00', targets: [small]}]",
        "rules: [{days: [0], targets: [small]}]",
        "rules: [{utc_offset_minutes: 1441, targets: [small]}]",
        "rules: [{min_max_tokens: 2, max_max_tokens: 1, targets: [small]}]",
        "rules: [{max_inflight_per_backend: 0, targets: [small]}]",
        "rules: [{headers: {authorization: x}, targets: [small]}]",
        "rules: [{headers: {'a b': x}, targets: [small]}]",
        "rules: [{headers: {X: a, x: a}, targets: [small]}]",
        "rules: [{headers: {x: ' a'}, targets: [small]}]",
        "split_by: weather, default_targets: [small]",
        "split_by: prompt",
        "rulez: [], default_targets: [small]",
        "rules: [{header: {x: a}, targets: [small]}]",
        "rules: [{targets: [{model: small, wait: 1}]}]",
    ] {
        let lists = format!("[{{name: v, {wrong}}}, {{name: w, default_targets: [small]}}]");
        let reading = reading(&format!("{ONE}\nfastllm: {{virtual_models: {lists}}}"));
        assert_eq!(
            reading.problems.errors(),
            1,
            "{wrong}: {:?}",
            problems(&reading)
        );
        let snapshot = reading.contents.unwrap().snapshot;
        let names: Vec<_> = snapshot
            .virtual_models
            .items
            .as_deref()
            .unwrap()
            .iter()
            .map(|one| one.name.as_str())
            .collect();
        assert_eq!(names, ["w"], "{wrong}");
    }
}

#[test]
fn every_problem_is_reported_with_its_position() {
    let text = "\
model_list:
- model_name: small
  polizy: round-robin
  model_info: {id: 7}
  litellm_params:
    model: openai/gpt
    api_base: http://a
    temperatures: 1
    rpm: 60
- model_name: small
  policy: fastest
  litellm_params: {api_base: ftp://a, protocol: opena1, weight: -3}
- litellm_params: {model: gpt}
- model_name: large
  litellm_params: {api_base: 'http://b', api_key: os.environ/UNSET}
- {model_name: 'gpt-*', litellm_params: {api_base: 'http://c', auth_header: 'a b', api_key: k}}
litellm_settings: {drop_params: true}
router_settings: {}
models: []
general_settings: {alerting: [slack], masterkey: x}
auth:
  keys:
  - name: one
    key: k
    models: [small, auto, nobody]
    limits: {requests_per_min: 0, tokens: 7}
    budget: {tokens_total: many, window: hourly, time_zone: Moon/Sea}
  - {name: two, key: k}
  - {name: one, key: l, models: ['*']}
  - {name: two, key: m, key_hash: n, expires_at: tomorrow}
fastllm:
  prefix_bytes: 2048
  fallback_model: nobody
  virtual_models:
  - {name: auto, rules: [{class: code, roles: [x], min_budget_used_percent: 80, targets: [small]}]}
  - {name: small, default_targets: [small]}
  - {name: auto, default_targets: [small]}
";
    let reading = reading(text);
    let mut lines = String::new();
    for problem in problems(&reading) {
        writeln!(lines, "{problem}").unwrap();
    }
    insta::assert_snapshot!(lines);
    // The fallback model is not an entry of a list.
    assert!(reading.contents.is_none());
}

#[test]
fn one_invalid_backend_does_not_affect_the_others() {
    for wrong in [
        "api_base: ftp://a",
        "api_base: a",
        "api_base: 'http://user:canary@a'",
        "api_base: 'http://a?canary'",
        "api_base: os.environ/UNSET",
        "model: openai/, api_base: 'http://a'",
        "model: [], api_base: 'http://a'",
        "api_base: 'http://a', protocol: Openai",
        "api_base: 'http://a', api_key: canary, auth_header: 'a b'",
        "api_base: 'http://a', api_key: canary, auth_header: host",
        "api_base: 'http://a', api_key: \"canary\\n\"",
        "api_base: 'http://a', weight: heavy",
        "api_base: 'http://a', weight: {}",
    ] {
        let text = format!(
            "{ONE}
- {{model_name: small, litellm_params: {{{wrong}}}}}
- {{model_name: alone, litellm_params: {{{wrong}}}}}
"
        );
        let reading = reading(&text);
        assert_eq!(
            reading.problems.errors(),
            2,
            "{wrong}: {:?}",
            problems(&reading)
        );
        let snapshot = reading.contents.unwrap().snapshot;
        let backends = models(&snapshot).iter().map(|model| model.backends.len());
        assert_eq!(backends.collect::<Vec<_>>(), [0, 1], "{wrong}");
    }
}

#[test]
fn problems_contain_no_secrets() {
    let text = "
model_list:
- {model_name: a, litellm_params: {api_base: 'http://u:canary@a', api_key: canary, protocol: canary}}
- {model_name: b, litellm_params: {api_base: 'canary', api_key: {a: canary}, auth_header: 'canary 1'}}
- {model_name: c, policy: canary, litellm_params: {api_base: 'http://a', api_key: \"canary\\n\"}}
- {model_name: d, litellm_params: canary}
general_settings: {master_key: 'canary with spaces'}
auth:
  keys:
  - {name: a, key: 'canary with spaces'}
  - {name: b, key: canary, key_hash: canary}
  - {name: c, key_hash: canary}
  - {name: d, key: [canary], expires_at: canary}
  - {name: e, key: canary}
  - {name: f, key: canary}
  - canary
fastllm:
  balance_rel: canary
  balance_abs: canary
  fallback_model: canary
  virtual_models:
  - {name: v, split_by: canary, rules: [{headers: {x: 'canary\\t'}, after: canary, targets: [canary]}]}
";
    let reading = reading(text);
    assert!(reading.problems.errors() > 15);
    let said = format!("{reading:?}");
    assert!(!said.contains("canary"), "{said}");
    let syntax = super::tests::reading("a: *canary\n");
    assert_eq!(syntax.problems.errors(), 1);
    assert!(!format!("{syntax:?}").contains("canary"));
}

#[test]
fn unusable_yaml_is_rejected_with_its_position() {
    for (text, expected) in [
        ("", "1:1: error: the file is empty"),
        ("# nothing\n", "1:1: error: the file is empty"),
        ("[]", "1:1: error: expected a mapping"),
        ("model_list: {}", "1:13: error: model_list: expected a list"),
        ("a: 1\nb: [1\n", "2:4: error: b[0]: not YAML"),
        ("a: 1\n---\nb: 1\n", "2:1: error: a second document"),
        ("a: !include b\n", "1:13: error: a: tags other"),
        ("? [a]\n: b\n", "1:3: error: a name must be a text"),
        ("a: &a [*a]\n", "1:8: error: a[0]: an alias inside"),
        ("<<: 1\n", "1:1: error: `<<` wants"),
        (
            "model_list: []\nauth: null\nmodel_list: canary\n",
            "3:1: error: model_list: given twice",
        ),
        (
            "auth: {keys: []}\nmodel_list: []\nauth: {keys: []}\n",
            "3:8: error: auth.keys: given twice",
        ),
        ("a:\n  b: 1\n  b: 2\n", "3:3: error: a.b: given twice"),
    ] {
        let reading = reading(text);
        let found = problems(&reading);
        assert!(
            found.iter().any(|problem| problem.starts_with(expected)),
            "{text:?}: {found:?}"
        );
        assert!(reading.contents.is_none(), "{text:?}");
    }
}

#[test]
fn aliases_and_merged_mappings_are_followed_within_bounds() {
    let text = "
defaults: &defaults {api_base: 'http://a', api_key: k}
model_list:
- {model_name: small, litellm_params: {<<: *defaults, api_base: 'http://b', weight: 2}}
- {model_name: large, litellm_params: {<<: [*defaults, {weight: 9}]}}
";
    let snapshot = contents(text, &[OPEN, "2:1: warning: defaults: unknown field"]).snapshot;
    let backends: Vec<_> = models(&snapshot)
        .iter()
        .map(|model| &model.backends[0])
        .collect();
    assert_eq!(
        (backends[0].weight, backends[0].api_base.as_str()),
        (9, "http://a")
    );
    assert_eq!(
        (backends[1].weight, backends[1].api_base.as_str()),
        (2, "http://b")
    );
    assert!(backends.iter().all(|backend| backend.api_key.is_some()));

    let mut laughs = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n".to_owned();
    let mut deep = "a0: &a0 [x]\n".to_owned();
    let mut merges = "a0: &a0 {".to_owned();
    for number in 0..2000 {
        write!(merges, "x{number}: 1,").unwrap();
    }
    merges.push_str("}\n");
    for number in 1..2000 {
        let before = number - 1;
        let ten = format!("*a{before}, ").repeat(10);
        writeln!(laughs, "a{number}: &a{number} [{ten}]").unwrap();
        writeln!(deep, "a{number}: &a{number} [*a{before}]").unwrap();
        writeln!(merges, "a{number}: {{<<: *a0}}").unwrap();
    }
    for (bomb, expected) in [
        (laughs, "values, aliases followed"),
        (merges, "values, aliases followed"),
        (deep, "levels, aliases followed"),
        ("[".repeat(100) + &"]".repeat(100), "nested deeper"),
        ("{a: ".repeat(100) + &"}".repeat(100), "nested deeper"),
        ("- ".repeat(100), "nested deeper"),
    ] {
        let reading = reading(&bomb);
        let found = problems(&reading);
        assert!(found[0].contains(expected), "{found:?}");
        assert!(reading.contents.is_none());
    }
}

#[test]
fn a_file_with_many_problems_lists_some_and_counts_all() {
    let mut text = ONE.to_owned();
    for number in 0..5000 {
        writeln!(text, "unknown{number}: 1").unwrap();
    }
    let reading = reading(&text);
    assert_eq!(reading.problems.listed().len(), 1000);
    assert_eq!(reading.problems.warnings(), 5001);
    assert!(reading.contents.is_some());
}

#[test]
fn names_cannot_break_the_line_format() {
    let reading = reading(&format!("{ONE}\n\"a\\nb\": 1\n"));
    let last = problems(&reading).pop().unwrap();
    assert_eq!(last, "6:1: warning: \"a\\nb\": unknown field");
}

#[test]
fn every_sample_has_no_problems() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../config/samples");
    let mut read_samples = 0;
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap();
        if !name.starts_with("gateway") {
            continue;
        }
        let environment = |name: &str| (name != "LITELLM_MASTER_KEY").then(|| name.to_owned());
        let surroundings = Surroundings {
            environment: &environment,
            included: &no_file,
            master_key: None,
            policy: PolicyKind::default(),
            max_body_bytes: 64 << 20,
        };
        let reading = read(&std::fs::read_to_string(&path).unwrap(), &surroundings);
        let open = ["gateway.yaml"].contains(&name);
        let expected: &[&str] = if open { &[OPEN] } else { &[] };
        assert_eq!(problems(&reading), expected, "{name}");
        let snapshot = reading.contents.unwrap().snapshot;
        assert!(!models(&snapshot).is_empty() && snapshot.open == open);
        read_samples += 1;
    }
    assert_eq!(read_samples, 2);
}
