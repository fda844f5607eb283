//! `router_settings` and `litellm_settings`: what has an equivalent here.

use fastllm_contract::PolicyKind;

use super::sections;
use super::settings;
use super::value::{MappingReader, Value};

/// Settings that apply to all models, and what refers to models by name.
#[derive(Default)]
pub(super) struct RouterSettings<'a> {
    /// The policy of models that name none.
    pub(super) policy: Option<PolicyKind>,
    /// What applies to models whose entries do not set it.
    pub(super) defaults: AttemptSettings,
    /// How long responses may be cached, seconds.
    pub(super) cache_ttl: Option<u64>,
    /// Maximum number of requests in flight to a backend.
    pub(super) max_concurrency: Option<u32>,
    /// Names that stand for models.
    pub(super) aliases: Vec<Value<'a>>,
    /// Lists of mappings from models to models.
    pub(super) fallbacks: Vec<Value<'a>>,
    pub(super) context_fallbacks: Vec<Value<'a>>,
    /// Lists of models.
    pub(super) default_fallbacks: Vec<Value<'a>>,
}

/// How often and how long a model is tried.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct AttemptSettings {
    /// Further attempts.
    pub(super) max_retries: Option<u32>,
    /// How long an attempt waits for a response, milliseconds.
    pub(super) timeout_ms: Option<u64>,
    /// The same for streams.
    pub(super) stream_timeout_ms: Option<u64>,
}

impl AttemptSettings {
    /// Reads the members that an entry and both sections have.
    pub(super) fn read(fields: &mut MappingReader<'_>) -> Self {
        let retries = fields.take_any(&["num_retries", "max_retries"]);
        let timeout = fields.take_any(&["timeout", "request_timeout"]);
        let stream_timeout = fields.take("stream_timeout");
        Self {
            max_retries: retries.and_then(|value| retry_count(&value)),
            timeout_ms: timeout.and_then(|value| milliseconds(&value)),
            stream_timeout_ms: stream_timeout.and_then(|value| milliseconds(&value)),
        }
    }

    /// These settings, and those of `other` for what is not set.
    pub(super) fn or(self, other: Self) -> Self {
        Self {
            max_retries: self.max_retries.or(other.max_retries),
            timeout_ms: self.timeout_ms.or(other.timeout_ms),
            stream_timeout_ms: self.stream_timeout_ms.or(other.stream_timeout_ms),
        }
    }
}

/// A number of retries.
fn retry_count(value: &Value<'_>) -> Option<u32> {
    /// As `--max-retries`.
    const MAX_RETRIES: u32 = 16;
    let count: u32 = value.number(0..=u64::from(u32::MAX))?;
    if count > MAX_RETRIES {
        value.warning(format!(
            "{MAX_RETRIES} retries are used, the most that are supported"
        ));
    }
    Some(count.min(MAX_RETRIES))
}

/// A duration in seconds, which need not be whole.
fn milliseconds(value: &Value<'_>) -> Option<u64> {
    const MAX_SECONDS: f64 = 86_400.0;
    let seconds = value.decimal(0.001..=MAX_SECONDS)?;
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "from 1 to 86,400,000"
    )]
    Some((seconds * 1000.0).round() as u64)
}

impl<'a> RouterSettings<'a> {
    /// Reads both sections; `router_settings` takes precedence.
    pub(super) fn read(fields: &mut MappingReader<'a>) -> Self {
        let mut settings = Self::default();
        if let Some(section) = fields.take("router_settings") {
            section.fields(|fields| settings.read_router(fields));
        }
        if let Some(section) = fields.take("litellm_settings") {
            section.fields(|fields| settings.read_litellm(fields));
        }
        settings
    }

    fn read_router(&mut self, fields: &mut MappingReader<'a>) {
        let strategy = fields.take("routing_strategy");
        self.policy = strategy.and_then(|value| policy(&value));
        let concurrency = fields.take("default_max_parallel_requests");
        self.max_concurrency = concurrency.and_then(|value| value.number(1..=1_000_000));
        self.aliases.extend(fields.take("model_group_alias"));
        self.read_shared(fields);
        settings::rest_of_router(fields);
    }

    fn read_litellm(&mut self, fields: &mut MappingReader<'a>) {
        self.read_shared(fields);
        self.cache_ttl = cache_ttl(fields);
        settings::rest_of_litellm(fields);
    }

    /// Members that both sections have.
    fn read_shared(&mut self, fields: &mut MappingReader<'a>) {
        self.defaults = self.defaults.or(AttemptSettings::read(fields));
        self.fallbacks.extend(fields.take("fallbacks"));
        let larger = fields.take("context_window_fallbacks");
        self.context_fallbacks.extend(larger);
        let default = fields.take("default_fallbacks");
        self.default_fallbacks.extend(default);
        fields.unsupported(&sections::FALLBACKS);
    }
}

/// The policy that corresponds to a strategy of LiteLLM.
fn policy(value: &Value<'_>) -> Option<PolicyKind> {
    match value.text()? {
        "simple-shuffle" => Some(PolicyKind::RoundRobin),
        "least-busy" => Some(PolicyKind::LeastLoaded),
        "latency-based-routing" => Some(PolicyKind::LowestLatency),
        "usage-based-routing" | "usage-based-routing-v2" => {
            value.warning("least-loaded is used: backends are chosen by their requests in flight");
            Some(PolicyKind::LeastLoaded)
        }
        "cost-based-routing" => {
            value.warning("has no effect: backends are not chosen by price; use weight or order");
            None
        }
        text => {
            let parsed = text.parse();
            if parsed.is_err() {
                value.error("the strategy is unknown: use simple-shuffle, least-busy or latency-based-routing");
            }
            parsed.ok()
        }
    }
}

/// The time for which responses may be cached: `cache` and `cache_params`.
fn cache_ttl(fields: &mut MappingReader<'_>) -> Option<u64> {
    let cache = fields.take("cache");
    let params = fields.take("cache_params");
    let enabled = cache.as_ref().and_then(Value::flag)?;
    if !enabled {
        return None;
    }
    let read = params.and_then(|params| params.fields(CacheParams::read));
    let CacheParams {
        ttl,
        always,
        completions,
    } = read.unwrap_or_default();
    if ttl.is_none() || !always || !completions {
        let cache = cache?;
        cache.warning(
            "has no effect: set cache_ttl_seconds of the models whose responses may be cached",
        );
        return None;
    }
    ttl
}

struct CacheParams {
    ttl: Option<u64>,
    /// Requests need not ask for it.
    always: bool,
    /// It is used for chat completions.
    completions: bool,
}

impl Default for CacheParams {
    fn default() -> Self {
        Self {
            ttl: None,
            always: true,
            completions: true,
        }
    }
}

impl CacheParams {
    fn read(fields: &mut MappingReader<'_>) -> Self {
        const MAX_SECONDS: f64 = 1e9;
        let ttl = fields
            .take("ttl")
            .and_then(|value| value.decimal(0.0..=MAX_SECONDS));
        let mode = fields.take("mode");
        let off = mode.and_then(|value| value.peek_text()) == Some("default_off");
        let types = fields.take("supported_call_types");
        let completions = types.is_none_or(|types| {
            !settings::named_in(&types, &["acompletion", "completion"]).is_empty()
        });
        for member in fields.drain(|_| true) {
            let context = member.value.context;
            context.warning(member.span, sections::CACHE);
        }
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "from 0 to 1,000,000,000"
        )]
        let ttl = ttl.map(|seconds| seconds.round() as u64);
        Self {
            ttl,
            always: !off,
            completions,
        }
    }
}
