//! What was meant to close or to limit, and names of LiteLLM for what this
//! program has.

use std::num::NonZeroU64;

use fastllm_contract::{KeyHash, Limits, ModelName, PolicyKind, Snapshot};
use fastllm_engine::hash_key;

use super::super::{ReadOutcome, Severity, Surroundings, read};
use super::{ONE, OPEN, contents, models, no_file, problems, reading};

/// The problems that make a file unusable, without positions.
fn refusals(text: &str) -> Vec<String> {
    let reading = reading(text);
    assert!(reading.contents.is_none(), "{text}");
    let problems = reading.problems.listed().iter();
    let errors = problems.filter(|problem| problem.severity == Severity::Error);
    errors
        .map(|problem| format!("{}: {}", problem.path, problem.message))
        .collect()
}

/// Restrictions, and the beginning of their problems.
const RESTRICTIONS: &[(&str, &str)] = &[
    (
        "general_settings: {custom_auth: a.b}",
        "general_settings.custom_auth: ",
    ),
    (
        "general_settings: {enable_jwt_auth: true}",
        "general_settings.enable_jwt_auth: ",
    ),
    (
        "general_settings: {enable_oauth2_auth: True}",
        "general_settings.enable_oauth2_auth: ",
    ),
    (
        "general_settings: {enable_oauth2_proxy_auth: true}",
        "general_settings.enable_oauth2_proxy",
    ),
    (
        "general_settings: {allowed_ips: [10.0.0.1]}",
        "general_settings.allowed_ips: ",
    ),
    (
        "general_settings: {allowed_routes: [/a]}",
        "general_settings.allowed_routes: ",
    ),
    (
        "general_settings: {enforce_user_param: true}",
        "general_settings.enforce_user_param: ",
    ),
    (
        "general_settings: {global_max_parallel_requests: 5}",
        "general_settings.global_max",
    ),
    (
        "general_settings: {max_request_size_mb: 63}",
        "general_settings.max_request_size_mb: ",
    ),
    (
        "general_settings: {max_users: 63}",
        "general_settings.max_users: unknown field",
    ),
    (
        "general_settings: {masterkey: a}",
        "general_settings.masterkey: unknown field: is master_key",
    ),
    (
        "general_setting: {master_key: a}",
        "general_setting: unknown field: is general_settings",
    ),
    ("auths: {keys: []}", "auths: unknown field: is auth meant?"),
    ("master_key: sk-1", "master_key: a restriction"),
    (
        "guardrails: [{litellm_params: {mode: pre_call}}]",
        "guardrails[0]: a restriction",
    ),
    ("guardrails: {a: b}", "guardrails: a restriction"),
    (
        "litellm_settings: {max_budget: 5}",
        "litellm_settings.max_budget: a restriction",
    ),
    (
        "litellm_settings: {max_end_user_budget: 5}",
        "litellm_settings.max_end_user_budget: ",
    ),
    (
        "litellm_settings: {guardrails: [a]}",
        "litellm_settings.guardrails: a restriction",
    ),
    (
        "litellm_settings: {callbacks: [presidio, x]}",
        "litellm_settings.callbacks[0]: a restriction",
    ),
    (
        "litellm_settings: {callbacks: hide_secrets}",
        "litellm_settings.callbacks: a restriction",
    ),
    (
        "router_settings: {provider_budget_config: {a: b}}",
        "router_settings.provider_budget",
    ),
    (
        "router_settings: {enable_tag_filtering: true}",
        "router_settings.enable_tag_filtering: ",
    ),
    (
        "router_settings: {optional_pre_call_checks: [a, enforce_model_rate_limits]}",
        "router_settings.optional_pre_call_checks[1]: a restriction",
    ),
];

#[test]
fn a_restriction_that_cannot_be_enforced_refuses_the_file() {
    for (text, expected) in RESTRICTIONS {
        let refusals = refusals(&format!("{ONE}\n{text}"));
        assert_eq!(refusals.len(), 1, "{text}: {refusals:?}");
        assert!(refusals[0].starts_with(expected), "{text}: {refusals:?}");
    }
}

#[test]
fn an_unknown_limit_of_a_key_refuses_the_file() {
    for (key, expected) in [
        ("max_budget: 5", "max_budget: a restriction"),
        ("budget_duration: 30d", "budget_duration: a restriction"),
        ("duration: 30d", "duration: a restriction"),
        (
            "allowed_routes: [/v1/embeddings]",
            "allowed_routes: unknown field",
        ),
        ("requests: 5", "requests: unknown field"),
        ("team_id: a", "team_id: a restriction"),
        (
            "limits: {request_per_min: 5}",
            "limits.request_per_min: unknown field",
        ),
        (
            "budget: {tokens_total: 5, max_budget: 5}",
            "budget.max_budget: a restriction",
        ),
        (
            "budget: {tokens_total: 5, per: day}",
            "budget.per: unknown field",
        ),
        (
            "model_rpm_limit: {other: 5}",
            "model_rpm_limit.other: no model",
        ),
    ] {
        let text = format!("{ONE}\nauth: {{keys: [{{name: a, key: k, models: [small], {key}}}]}}");
        let refusals = refusals(&text);
        assert_eq!(refusals.len(), 1, "{key}: {refusals:?}");
        let expected = format!("auth.keys[0].{expected}");
        assert!(refusals[0].starts_with(&expected), "{key}: {refusals:?}");
    }
}

#[test]
fn a_restriction_that_is_off_or_kept_anyway_does_not_refuse_the_file() {
    for text in [
        "general_settings: {enable_jwt_auth: false, allowed_ips: [], custom_auth: null}",
        "general_settings: {max_request_size_mb: 64}",
        "guardrails: []",
        "auth: {keys: [{name: a, key: k, max_budget: null, team_id: null}]}",
    ] {
        let reading = reading(&format!("{ONE}\n{text}"));
        assert!(
            reading.contents.is_some(),
            "{text}: {:?}",
            problems(&reading)
        );
    }
}

#[test]
fn limits_of_a_key_have_the_names_of_litellm_too() {
    let text = format!(
        "{ONE}
auth:
  keys:
  - {{name: one, key: k1, rpm: 10, tpm_limit: 20, max_parallel_requests: 3}}
  - {{name: two, key: k2, limits: {{rpm_limit: 10, tpm: 20}}, requests_per_min: 5}}
  - {{name: three, key: k3, blocked: true}}
  - {{name: four, key: k4, enabled: false, model_rpm_limit: {{small: 7}}, model_tpm_limit: {{small: 8}}}}
"
    );
    let snapshot = contents(&text, &[]).snapshot;
    let principals = snapshot.principals.items.as_deref().unwrap();
    let limits = |limits: Option<Limits>| {
        let limits = limits.unwrap();
        let all = [
            limits.requests_per_min,
            limits.tokens_per_min,
            limits.concurrency,
        ];
        all.map(|limit| limit.map(NonZeroU64::get))
    };
    assert_eq!(limits(principals[0].limits), [Some(10), Some(20), Some(3)]);
    // The stricter one of two.
    assert_eq!(limits(principals[1].limits), [Some(5), Some(20), None]);
    let of_model = &principals[3].models[0];
    assert_eq!(of_model.model.as_str(), "small");
    assert_eq!(limits(of_model.limits), [Some(7), Some(8), None]);
    let mut disabled: Vec<_> = snapshot
        .key_shards
        .iter()
        .flat_map(|shard| shard.keys.items.as_ref().unwrap().0.values())
        .map(|entry| (entry.principal.0, entry.disabled))
        .collect();
    disabled.sort_unstable();
    assert_eq!(disabled, [(1, false), (2, false), (3, true), (4, true)]);
    let twice = reading(&format!(
        "{ONE}\nauth: {{keys: [{{name: a, key: k, rpm: 5, rpm_limit: 6}}]}}"
    ));
    assert_eq!(twice.problems.errors(), 1);
    assert!(twice.contents.unwrap().snapshot.key_shards.is_empty());
}

fn with_variables(text: &str, variables: &[(&str, &str)]) -> ReadOutcome {
    let environment = |name: &str| {
        let found = variables.iter().find(|(variable, _)| *variable == name);
        found.map(|(_, value)| (*value).to_owned())
    };
    let surroundings = Surroundings {
        environment: &environment,
        included: &no_file,
        master_key: None,
        policy: PolicyKind::RoundRobin,
        max_body_bytes: 64 << 20,
    };
    read(text, &surroundings)
}

fn keys(snapshot: &Snapshot) -> Vec<KeyHash> {
    let shards = snapshot.key_shards.iter();
    shards
        .flat_map(|shard| shard.keys.items.as_ref().unwrap().0.keys().copied())
        .collect()
}

#[test]
fn the_master_key_of_litellm_closes_the_gateway() {
    let given = [("LITELLM_MASTER_KEY", "sk-env")];
    let snapshot = with_variables(ONE, &given).contents.unwrap().snapshot;
    assert!(!snapshot.open);
    assert_eq!(keys(&snapshot), [hash_key(b"sk-env")]);
    // The file's own key takes precedence, and the file may set the variable.
    let own = format!("{ONE}\ngeneral_settings: {{master_key: sk-own}}");
    let snapshot = with_variables(&own, &given).contents.unwrap().snapshot;
    assert_eq!(keys(&snapshot), [hash_key(b"sk-own")]);
    let set = format!("{ONE}\nenvironment_variables: {{LITELLM_MASTER_KEY: sk-file}}");
    let snapshot = with_variables(&set, &given).contents.unwrap().snapshot;
    assert_eq!(keys(&snapshot), [hash_key(b"sk-file")]);
    // It is added to other keys.
    let more = format!("{ONE}\nauth: {{keys: [{{name: a, key: sk-a}}]}}");
    let snapshot = with_variables(&more, &given).contents.unwrap().snapshot;
    assert_eq!(keys(&snapshot).len(), 2);
    for unusable in ["", "with space"] {
        let reading = with_variables(ONE, &[("LITELLM_MASTER_KEY", unusable)]);
        assert!(reading.contents.is_none());
        let expected = "1:1: error: the variable LITELLM_MASTER_KEY: a key is printable ASCII \
                        without spaces, and not empty";
        assert_eq!(problems(&reading), [expected]);
    }
}

#[test]
fn variables_of_the_file_precede_the_environment() {
    let text = "
environment_variables: {BASE: 'http://file/v1', NUMBER: 3, COPY: os.environ/BASE, LOST: os.environ/X}
model_list:
- model_name: os.environ/NAME
  litellm_params: {model: os.environ/MODEL, api_base: os.environ/BASE, weight: os.environ/NUMBER}
- model_name: copy
  litellm_params: {api_base: os.environ/COPY, api_key: os.environ/LOST}
- model_name: last
  litellm_params: {model: os.environ/LOST, api_base: os.environ/BASE}
";
    let environment = [
        ("NAME", "small"),
        ("MODEL", "openai/gpt"),
        ("BASE", "http://env/v1"),
    ];
    let reading = with_variables(text, &environment);
    assert_eq!(
        problems(&reading),
        [
            OPEN,
            "2:89: warning: environment_variables.LOST: has no effect: the environment variable \
             that it names is not set",
            "7:56: error: model_list[1].litellm_params.api_key: the environment variable LOST is \
             not set",
            "9:27: error: model_list[2].litellm_params.model: the environment variable LOST is \
             not set",
        ]
    );
    let snapshot = reading.contents.unwrap().snapshot;
    let small = models(&snapshot)
        .iter()
        .find(|model| model.name.as_str() == "small");
    let backend = &small.unwrap().backends[0];
    assert_eq!(backend.api_base, "http://file/v1");
    assert_eq!(
        (backend.upstream_model.as_str(), backend.weight),
        ("gpt", 3)
    );
}

#[test]
fn a_section_that_is_given_twice_is_used_twice() {
    let text = format!(
        "{ONE}
general_settings: {{master_key: sk-1}}
model_list:
- {{model_name: large, litellm_params: {{api_base: 'http://b'}}}}
general_settings:
litellm_settings:
litellm_settings: {{json_logs: true}}
"
    );
    let twice = |place: &str, section: &str| {
        format!(
            "{place}: warning: {section}: given twice: both are used, whereas LiteLLM ignores the \
             first"
        )
    };
    let reading = reading(&text);
    let listed = problems(&reading);
    assert_eq!(listed[0], twice("7:1", "model_list"));
    assert_eq!(listed[1], twice("9:1", "general_settings"));
    assert_eq!(listed[2], twice("11:1", "litellm_settings"));
    let snapshot = reading.contents.unwrap().snapshot;
    assert_eq!(models(&snapshot).len(), 2);
    assert!(!snapshot.open);
    // Not without end.
    let again = "fastllm: {}\n".repeat(100);
    assert!(
        super::reading(&format!("{ONE}\n{again}"))
            .contents
            .is_none()
    );
}

#[test]
fn grants_are_names_patterns_and_access_groups() {
    let text = "
model_list:
- {model_name: a/one, litellm_params: {api_base: 'http://a'}, model_info: {access_groups: [beta]}}
- {model_name: a/two, litellm_params: {api_base: 'http://a'}}
- {model_name: b, litellm_params: {api_base: 'http://a'}, model_info: {access_groups: [beta]}}
auth:
  keys:
  - {name: pattern, key: k1, models: ['a/*']}
  - {name: group, key: k2, models: [beta]}
  - {name: all, key: k3, models: [all-proxy-models]}
  - {name: none, key: k4, models: [no-default-models, 'c*']}
";
    let expected = "11:55: warning: auth.keys[3].models[1]: no model in model_list has such a name";
    let snapshot = contents(text, &[expected]).snapshot;
    let principals = snapshot.principals.items.as_deref().unwrap();
    let allowed = |index: usize| -> Vec<&str> {
        let models = principals[index].allowed_models.iter();
        models.map(ModelName::as_str).collect()
    };
    assert_eq!(allowed(0), ["a/one", "a/two"]);
    assert_eq!(allowed(1), ["a/one", "b"]);
    assert!(principals[2].allow_all);
    assert!(allowed(3).is_empty() && !principals[3].allow_all);
}
