//! One backend: the only place that maps members of the file to fields of a
//! [`Backend`].

use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::str::FromStr;

use fastllm_contract::{
    Backend, BackendId, Concurrency, HealthCheck, ModelName, Protocol, RequestOptions, Secret,
};

use super::router::AttemptSettings;
use super::sections;
use super::share::Share;
use super::upstream::{self, AuthStyle, Upstream};
use super::value::{MappingReader, Value};

/// A backend as it is in the file.
#[derive(Debug)]
pub(super) struct ListedBackend {
    /// Without its ID and its weight.
    pub(super) backend: Backend,
    pub(super) share: Share,
    pub(super) attempts: AttemptSettings,
}

/// Reads `litellm_params`. The caller assigns ID and weight.
pub(super) fn read(params: &mut MappingReader<'_>, model: &ModelName) -> Option<ListedBackend> {
    let upstream = upstream::read(params, model);
    let default_max_tokens = params
        .take("default_max_tokens")
        .and_then(|value| value.number(1..=u64::from(u32::MAX)));
    let share = Share::read(params);
    let attempts = AttemptSettings::read(params);
    let draining = params.take("draining").and_then(|value| value.flag());
    let mut concurrency = concurrency(params);
    // As in LiteLLM, a minute's requests may be in flight at once.
    concurrency.max = concurrency.max.or(share.concurrency());
    let auth_header = params.take("auth_header");
    let auth_scheme = params.take("auth_scheme");
    let options = request_options(params);
    let health = Probing::read(params);
    for made_up in params.drain(|name| name.starts_with("mock_")) {
        let message =
            "responses are not made up: remove the entry, or set api_base to a mock server";
        made_up.value.error(message);
    }
    params.unsupported(&sections::PARAMS_RESTRICTIONS);
    params.unsupported(&sections::PARAMS);
    params.ignore_prices();
    let Upstream {
        api_base,
        model,
        api_key,
        protocol,
        auth: style,
        path_template,
        query,
        health_path,
        probed,
    } = upstream?;
    let (auth_header, auth_scheme) = auth_style(auth_header, auth_scheme, style);
    Some(ListedBackend {
        backend: Backend {
            id: BackendId::default(),
            api_base,
            upstream_model: model,
            api_key: api_key.map(Secret::new),
            protocol,
            auth_header,
            auth_scheme,
            default_max_tokens,
            weight: 1,
            draining: draining.unwrap_or(false),
            concurrency,
            request_options: RequestOptions {
                path_template: options.path_template.or(path_template.map(str::to_owned)),
                query: query.into_iter().chain(options.query).collect(),
                headers: options.headers,
            },
            health: health.check(health_path, probed),
        },
        share,
        attempts,
    })
}

/// The header of the credential, and its scheme.
fn auth_style(
    header: Option<Value<'_>>,
    scheme: Option<Value<'_>>,
    usual: AuthStyle,
) -> (String, Option<String>) {
    let header = header.and_then(|value| value.text());
    let (usual_header, usual_scheme) = match usual {
        AuthStyle::Bearer => ("authorization", Some("Bearer")),
        AuthStyle::ApiKey => ("api-key", None),
    };
    let scheme = match scheme {
        Some(value) => value.text().filter(|scheme| !scheme.is_empty()),
        None => usual_scheme,
    };
    let header = header.unwrap_or(usual_header).to_ascii_lowercase();
    (header, scheme.map(str::to_owned))
}

fn concurrency(params: &mut MappingReader<'_>) -> Concurrency {
    let usual = Concurrency::default();
    let mut number = |names: &[&str], range: RangeInclusive<u64>| {
        let value = params.take_any(names);
        value.and_then(|value| value.number::<u64>(range))
    };
    let small = |number: u64| u32::try_from(number).unwrap_or(u32::MAX);
    Concurrency {
        max: number(&["max_concurrency", "max_parallel_requests"], 1..=1_000_000).map(small),
        max_queue: number(&["max_queue"], 0..=1_000_000).map_or(usual.max_queue, small),
        queue_timeout_ms: number(&["queue_timeout_ms"], 1..=3_600_000)
            .unwrap_or(usual.queue_timeout_ms),
    }
}

fn request_options(params: &mut MappingReader<'_>) -> RequestOptions {
    let mut named = |name: &str| -> Vec<(String, String)> {
        let members = params.take(name).map(|value| value.members());
        members
            .unwrap_or_default()
            .into_iter()
            .filter_map(|(name, value)| Some((name.to_owned(), value.text()?.to_owned())))
            .collect()
    };
    let mut headers: BTreeMap<_, _> = named("extra_headers")
        .into_iter()
        .map(|(name, value)| (name.to_ascii_lowercase(), Secret::new(value)))
        .collect();
    let query = named("extra_query").into_iter().collect();
    let organization = params.take("organization").and_then(|value| value.text());
    if let Some(organization) = organization {
        let header = headers.entry("openai-organization".to_owned());
        header.or_insert_with(|| Secret::new(organization));
    }
    let path_template = params.take("path_template").and_then(|value| value.text());
    RequestOptions {
        headers,
        query,
        path_template: path_template.map(str::to_owned),
    }
}

/// The members of the health probe.
struct Probing {
    enabled: Option<bool>,
    path: Option<String>,
    method: Option<String>,
    expect: Option<String>,
}

impl Probing {
    fn read(params: &mut MappingReader<'_>) -> Self {
        let enabled = params.take("health_check").and_then(|value| value.flag());
        let mut text = |name: &str| {
            let value = params.take(name).and_then(|value| value.text());
            value.map(str::to_owned)
        };
        Self {
            enabled,
            path: text("health_path"),
            method: text("health_method"),
            expect: text("health_expect"),
        }
    }

    /// The health check; `path` and `probed` apply if the entry states nothing.
    fn check(self, path: Option<&str>, probed: bool) -> HealthCheck {
        let usual = HealthCheck::default();
        let stated = self.path.is_some() || self.enabled == Some(true);
        HealthCheck {
            enabled: self.enabled.unwrap_or(probed || stated),
            path: self.path.or(path.map(str::to_owned)).unwrap_or(usual.path),
            method: self.method.unwrap_or(usual.method),
            expect: self.expect.unwrap_or(usual.expect),
        }
    }
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

pub(super) fn protocol(value: &Value<'_>) -> Protocol {
    value
        .parsed()
        .map_or(Protocol::Unknown, |Named(protocol)| protocol)
}
