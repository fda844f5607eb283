//! One backend: the only place that maps members of the file to fields of a
//! [`Backend`].

use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::str::FromStr;

use fastllm_contract::{
    Backend, BackendId, Concurrency, HealthCheck, ModelName, Protocol, RequestOptions, Secret,
};

use super::value::{MappingReader, Value};

/// Members of `litellm_params` that LiteLLM supports and this program leaves to
/// the client, to command line flags or to the administrator.
const WITHOUT_EFFECT: [&str; 30] = [
    "additional_drop_params",
    "api_version",
    "aws_access_key_id",
    "aws_region_name",
    "aws_secret_access_key",
    "cooldown_time",
    "custom_llm_provider",
    "drop_params",
    "extra_body",
    "frequency_penalty",
    "input_cost_per_token",
    "litellm_credential_name",
    "max_parallel_requests",
    "max_retries",
    "max_tokens",
    "merge_reasoning_content_in_choices",
    "num_retries",
    "order",
    "organization",
    "output_cost_per_token",
    "presence_penalty",
    "rpm",
    "seed",
    "stream_timeout",
    "tags",
    "temperature",
    "timeout",
    "top_p",
    "tpm",
    "use_in_pass_through",
];

/// Reads `litellm_params`. The caller assigns the ID.
pub(super) fn read(params: &mut MappingReader<'_>, model: &ModelName) -> Option<Backend> {
    let api_base = params
        .required("api_base")
        .and_then(|value| value.resolved());
    let protocol = params.take("protocol").map(|value| protocol(&value));
    let protocol = protocol.unwrap_or(Protocol::Openai);
    let upstream_model = match params.take("model") {
        Some(value) => without_prefix(value.text()?, protocol).to_owned(),
        None => model.as_str().to_owned(),
    };
    let api_key = params.take("api_key").and_then(|value| value.resolved());
    let auth_header = params.take("auth_header").and_then(|value| value.text());
    let auth_scheme = match params.take("auth_scheme") {
        Some(value) => value.text().filter(|scheme| !scheme.is_empty()),
        None => Some("Bearer"),
    };
    let default_max_tokens = params
        .take("default_max_tokens")
        .and_then(|value| value.number(1..=u64::from(u32::MAX)));
    let weight = params
        .take("weight")
        .and_then(|value| value.number(0..=1_000_000));
    let draining = params.take("draining").and_then(|value| value.flag());
    let (concurrency, request_options, health) =
        (concurrency(params), request_options(params), health(params));
    params.without_effect(&WITHOUT_EFFECT);
    Some(Backend {
        id: BackendId::default(),
        api_base: api_base?.trim_end_matches('/').to_owned(),
        upstream_model,
        api_key: api_key.filter(|key| !is_placeholder(key)).map(Secret::new),
        protocol,
        auth_header: auth_header.unwrap_or("authorization").to_ascii_lowercase(),
        auth_scheme: auth_scheme.map(str::to_owned),
        default_max_tokens,
        weight: weight.unwrap_or(1),
        draining: draining.unwrap_or(false),
        concurrency,
        request_options,
        health,
    })
}

fn concurrency(params: &mut MappingReader<'_>) -> Concurrency {
    let usual = Concurrency::default();
    let mut number = |name: &str, range: RangeInclusive<u64>| {
        let value = params.take(name);
        value.and_then(|value| value.number::<u64>(range))
    };
    let small = |number: u64| u32::try_from(number).unwrap_or(u32::MAX);
    Concurrency {
        max: number("max_concurrency", 1..=1_000_000).map(small),
        max_queue: number("max_queue", 0..=1_000_000).map_or(usual.max_queue, small),
        queue_timeout_ms: number("queue_timeout_ms", 1..=3_600_000)
            .unwrap_or(usual.queue_timeout_ms),
    }
}

fn request_options(params: &mut MappingReader<'_>) -> RequestOptions {
    let mut named = |name: &str| -> Vec<(String, String)> {
        let members = params.take(name).map(|value| value.members());
        members
            .unwrap_or_default()
            .into_iter()
            .filter_map(|(name, value)| Some((name.to_owned(), value.resolved()?)))
            .collect()
    };
    let headers: BTreeMap<_, _> = named("extra_headers")
        .into_iter()
        .map(|(name, value)| (name.to_ascii_lowercase(), Secret::new(value)))
        .collect();
    let query = named("extra_query").into_iter().collect();
    let path_template = params.take("path_template").and_then(|value| value.text());
    RequestOptions {
        headers,
        query,
        path_template: path_template.map(str::to_owned),
    }
}

fn health(params: &mut MappingReader<'_>) -> HealthCheck {
    let usual = HealthCheck::default();
    let enabled = params.take("health_check").and_then(|value| value.flag());
    let mut text = |name: &str, usual: String| {
        let value = params.take(name).and_then(|value| value.text());
        value.map_or(usual, str::to_owned)
    };
    HealthCheck {
        enabled: enabled.unwrap_or(usual.enabled),
        path: text("health_path", usual.path),
        method: text("health_method", usual.method),
        expect: text("health_expect", usual.expect),
    }
}

/// Values that mean that no credential is needed.
fn is_placeholder(key: &str) -> bool {
    key.is_empty()
        || ["none", "not-needed", "null"]
            .iter()
            .any(|word| key.eq_ignore_ascii_case(word))
}

/// A wire format by name; an unknown name never falls back to OpenAI's format.
struct Named(Protocol);

impl FromStr for Named {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, &'static str> {
        match text {
            "openai" => Ok(Self(Protocol::Openai)),
            "anthropic" => Ok(Self(Protocol::Anthropic)),
            "gemini" => Ok(Self(Protocol::Gemini)),
            _ => Err("expected openai, anthropic or gemini"),
        }
    }
}

fn protocol(value: &Value<'_>) -> Protocol {
    value
        .parsed()
        .map_or(Protocol::Unknown, |Named(protocol)| protocol)
}

/// The upstream's model name, without LiteLLM's provider prefix; at most one
/// prefix is removed.
fn without_prefix(model: &str, protocol: Protocol) -> &str {
    const ALWAYS: [&str; 5] = [
        "openai/",
        "hosted_vllm/",
        "vllm/",
        "openai_like/",
        "openrouter/",
    ];
    let native = match protocol {
        Protocol::Anthropic => Some("anthropic/"),
        Protocol::Gemini => Some("gemini/"),
        Protocol::Openai | Protocol::Unknown => None,
    };
    ALWAYS
        .into_iter()
        .chain(native)
        .find_map(|prefix| model.strip_prefix(prefix))
        .unwrap_or(model)
}

#[cfg(test)]
mod tests {
    use fastllm_contract::Protocol;

    use super::without_prefix;

    #[test]
    fn one_prefix_is_removed_if_it_matches_the_protocol() {
        for (given, protocol, left) in [
            ("openai/gpt-4o", Protocol::Openai, "gpt-4o"),
            ("hosted_vllm/a", Protocol::Openai, "a"),
            ("vllm/a", Protocol::Openai, "a"),
            ("openai_like/a", Protocol::Openai, "a"),
            (
                "openrouter/anthropic/claude",
                Protocol::Openai,
                "anthropic/claude",
            ),
            ("anthropic/claude", Protocol::Openai, "anthropic/claude"),
            ("anthropic/claude", Protocol::Anthropic, "claude"),
            ("gemini/pro", Protocol::Gemini, "pro"),
            ("gemini/pro", Protocol::Anthropic, "gemini/pro"),
            ("azure/gpt", Protocol::Openai, "azure/gpt"),
            ("Qwen/Qwen3-1.7B", Protocol::Openai, "Qwen/Qwen3-1.7B"),
        ] {
            assert_eq!(without_prefix(given, protocol), left);
        }
    }
}
