//! Where the requests of an entry go: address, model, credential and path, from
//! the members that LiteLLM reads for them.

use std::collections::BTreeMap;

use fastllm_contract::{ModelName, Protocol};

use super::provider::{self, Api, Provider};
use super::value::{Context, MappingReader, Value};

/// Version of Azure's API for deployments without one.
const AZURE_VERSION: &str = "2024-10-21";

/// What an entry says about its upstream.
#[derive(Debug)]
pub(super) struct Upstream {
    pub(super) api_base: String,
    pub(super) model: String,
    pub(super) api_key: Option<String>,
    pub(super) protocol: Protocol,
    pub(super) auth: AuthStyle,
    pub(super) path_template: Option<&'static str>,
    /// Additional query parameters.
    pub(super) query: BTreeMap<String, String>,
    /// The path of the health probe.
    pub(super) health_path: Option<&'static str>,
    /// Whether the upstream can be probed.
    pub(super) probed: bool,
}

/// How the credential is sent unless an entry states it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum AuthStyle {
    /// `authorization: Bearer KEY`.
    Bearer,
    /// `api-key: KEY`, as Azure expects it.
    ApiKey,
}

/// The members of an entry that name its upstream.
struct Given<'a> {
    context: &'a Context<'a>,
    model: String,
    /// Where problems of the model are reported.
    at: Value<'a>,
    api_base: Option<String>,
    api_key: Option<Value<'a>>,
    protocol: Option<Protocol>,
    custom_provider: Option<Value<'a>>,
    api_version: Option<Value<'a>>,
    azure_ad_token: Option<String>,
    signs_in: bool,
    has_headers: bool,
}

/// Reads the members; `None` if requests could not be sent.
pub(super) fn read(params: &mut MappingReader<'_>, name: &ModelName) -> Option<Upstream> {
    Given::read(params, name)?.resolve()
}

impl<'a> Given<'a> {
    fn read(params: &mut MappingReader<'a>, name: &ModelName) -> Option<Self> {
        let entry = params.value();
        let text = |value: Option<Value<'a>>| match value {
            Some(value) => Some(Some(value.text()?.to_owned())),
            None => Some(None),
        };
        let has_headers = entry.member("extra_headers").is_some();
        let model = params.take("model");
        let at = model.clone().unwrap_or_else(|| entry.clone());
        let api_base = text(params.take_any(&["api_base", "base_url"]));
        let api_key = params.take("api_key");
        let protocol = params
            .take("protocol")
            .map(|value| super::backend::protocol(&value));
        let custom_provider = params.take("custom_llm_provider");
        let api_version = params.take("api_version");
        let azure_ad_token = text(params.take("azure_ad_token"));
        let sign_in = ["tenant_id", "client_id", "client_secret", "azure_username"];
        let sign_in = params.drain(|name| sign_in.contains(&name));
        let model = match text(model)? {
            Some(model) if model.contains('*') => {
                at.error(WILDCARD);
                return None;
            }
            Some(model) => model,
            None => name.as_str().to_owned(),
        };
        Some(Self {
            context: at.context,
            model,
            api_base: api_base?.map(|base| trimmed(&base).to_owned()),
            api_key,
            protocol,
            custom_provider,
            api_version,
            azure_ad_token: azure_ad_token?,
            signs_in: !sign_in.is_empty(),
            has_headers,
            at,
        })
    }

    fn resolve(self) -> Option<Upstream> {
        let (provider, model) = self.provider()?;
        if let Some(version) = &self.api_version
            && provider.is_none_or(|provider| provider.api != Api::Azure)
        {
            version.warning("has no effect: only azure/ models have one; use extra_query");
        }
        let Some(provider) = provider else {
            return self.unnamed(model);
        };
        match provider.api {
            Api::Foreign(instead) => {
                let prefix = self.model.split_once('/').map(|(prefix, _)| prefix);
                let prefix = prefix.filter(|prefix| provider::named(prefix).is_some());
                let name = prefix.unwrap_or_else(|| provider.name());
                self.at.error(format!("{name}: {instead}"));
                None
            }
            Api::Azure => self.azure(provider, &model),
            Api::OpenAi | Api::OpenAiBelowV1 | Api::Fireworks | Api::Cohere | Api::HuggingFace => {
                self.open_ai(provider, &model)
            }
        }
    }

    /// The provider, if LiteLLM would send the request to one of them, and the
    /// name without its prefix.
    fn provider(&self) -> Option<(Option<&'static Provider>, String)> {
        if let Some(custom) = &self.custom_provider {
            let name = custom.text()?;
            let rest = self.model.strip_prefix(name);
            let rest = rest.and_then(|rest| rest.strip_prefix('/'));
            let model = rest.unwrap_or(&self.model).to_owned();
            let provider = provider::named(name);
            match (provider, &self.api_base) {
                (None, None) => {
                    custom.error(UNKNOWN_PROVIDER);
                    return None;
                }
                (None, Some(_)) => custom.warning(
                    "has no effect: the provider is unknown, and api_base is used in OpenAI's format",
                ),
                (Some(_), _) => {}
            }
            return Some((provider, model));
        }
        let model = self.model.clone();
        let Some(api_base) = &self.api_base else {
            return Some(match provider::of_model(&self.model) {
                Some((provider, rest)) => (Some(provider), rest.to_owned()),
                None => (provider::of_bare_name(&self.model), model),
            });
        };
        // A prefix that is no provider's, as in `Qwen/Qwen3`, belongs to the
        // name; so does one at the address of another provider, or where the
        // protocol is stated.
        Some(match provider::of_model(&self.model) {
            Some((provider, rest)) if provider.is_generic() => (Some(provider), rest.to_owned()),
            Some((provider, rest))
                if self.protocol.is_none()
                    && provider::at_address(api_base)
                        .is_none_or(|at| at.name() == provider.name()) =>
            {
                (Some(provider), rest.to_owned())
            }
            _ => (None, self.native_name().unwrap_or(model)),
        })
    }

    /// The name without the prefix of the stated protocol.
    fn native_name(&self) -> Option<String> {
        let prefix = match self.protocol? {
            Protocol::Anthropic => "anthropic/",
            Protocol::Gemini => "gemini/",
            Protocol::Openai | Protocol::Unknown => return None,
        };
        self.model.strip_prefix(prefix).map(str::to_owned)
    }

    /// The upstream of a name without a provider.
    fn unnamed(&self, model: String) -> Option<Upstream> {
        let Some(api_base) = &self.api_base else {
            self.at.error(NO_ADDRESS);
            return None;
        };
        let at = provider::at_address(api_base);
        let mut upstream = self.plain(api_base, model)?;
        if let (Some(at), None) = (at, &self.api_key) {
            upstream.api_key = self.variable(at.key_variables);
        }
        upstream.probed = at.is_none_or(|at| at.lists_models);
        Some(upstream)
    }

    /// An upstream with OpenAI's API at an address.
    fn plain(&self, api_base: &str, model: String) -> Option<Upstream> {
        Some(Upstream {
            api_base: without_endpoint(api_base).to_owned(),
            model,
            api_key: self.given_key()?,
            protocol: self.protocol.unwrap_or(Protocol::Openai),
            auth: AuthStyle::Bearer,
            path_template: None,
            query: BTreeMap::new(),
            health_path: None,
            probed: true,
        })
    }

    /// The address of the entry, else of the environment, else the provider's;
    /// and whether it is one that the provider's key may be sent to.
    fn address(&self, provider: &Provider) -> Option<(String, bool)> {
        if let Some(api_base) = &self.api_base {
            let own = provider.address.is_none() || provider.is_at(api_base);
            return Some((api_base.clone(), own));
        }
        let found = self.variable(provider.address_variables);
        let found = found.map(|address| trimmed(&address).to_owned());
        let found = found.or_else(|| provider.address.map(str::to_owned));
        if found.is_none() {
            let name = provider.name();
            self.at.error(format!(
                "api_base is missing: {name} has no address of its own"
            ));
        }
        Some((found?, true))
    }

    fn open_ai(&self, provider: &Provider, model: &str) -> Option<Upstream> {
        let (mut api_base, own) = self.address(provider)?;
        if provider.api == Api::Cohere && model.starts_with("rerank") && self.api_base.is_none() {
            "https://api.cohere.com/v2".clone_into(&mut api_base);
        }
        let api_base = without_endpoint(&api_base);
        let below_v1 = match provider.api {
            Api::OpenAiBelowV1 => true,
            Api::HuggingFace => self.api_base.is_some(),
            _ => false,
        };
        let api_base = if below_v1 && path(api_base).is_empty() {
            format!("{api_base}/v1")
        } else {
            api_base.to_owned()
        };
        if self.model.starts_with("text-completion-openai/") {
            self.at
                .warning("serves /v1/completions only: chat requests are not converted");
        }
        let probed = match &self.api_base {
            Some(api_base) => provider::at_address(api_base).is_none_or(|at| at.lists_models),
            None => provider.lists_models,
        };
        Some(Upstream {
            probed,
            api_key: self.key(provider, own)?,
            ..self.plain(&api_base, model_at(provider, model))?
        })
    }

    fn azure(&self, provider: &Provider, model: &str) -> Option<Upstream> {
        let (api_base, _) = self.address(provider)?;
        let (address, in_address) = match api_base.split_once("?api-version=") {
            Some((address, version)) => (address.to_owned(), Some(version.to_owned())),
            None => (api_base, None),
        };
        let version = match &self.api_version {
            Some(version) => Some(version.text()?.to_owned()),
            None => in_address,
        };
        let version = version.or_else(|| self.variable(&["AZURE_API_VERSION"]));
        let address = trimmed(without_endpoint(&address));
        // Parts of a name by which LiteLLM chooses how to form a request.
        let hints = ["o_series/", "gpt5_series/", "responses/"];
        let model = hints
            .iter()
            .find_map(|hint| model.strip_prefix(hint))
            .unwrap_or(model);
        let mut upstream = self.plain(address, model.to_owned())?;
        if let Some(token) = &self.azure_ad_token {
            upstream.api_key = Some(token.clone());
        } else {
            upstream.api_key = self.key(provider, true)?;
            upstream.auth = AuthStyle::ApiKey;
        }
        let (path, version) = (path(address), version.as_deref());
        if path.starts_with("/openai/deployments/") {
            upstream.health_path = Some("//openai/models");
            let version = version.unwrap_or(AZURE_VERSION).to_owned();
            upstream.query.insert("api-version".to_owned(), version);
            return Some(upstream);
        }
        let root = trimmed(address.strip_suffix("/openai").unwrap_or(address));
        match version {
            _ if path.ends_with("/openai/v1") => {}
            Some("preview" | "latest" | "v1") | None => {
                upstream.api_base = format!("{root}/openai/v1");
            }
            Some(version) => {
                root.clone_into(&mut upstream.api_base);
                upstream.path_template = Some("/openai/deployments/{upstream_model}{sub_path}");
                upstream.health_path = Some("/openai/models");
                upstream
                    .query
                    .insert("api-version".to_owned(), version.to_owned());
                return Some(upstream);
            }
        }
        if version == Some("preview") {
            upstream
                .query
                .insert("api-version".to_owned(), "preview".to_owned());
        }
        Some(upstream)
    }

    /// The credential of the entry; `None` if it is not usable.
    #[expect(clippy::option_option, reason = "an entry may need no credential")]
    fn given_key(&self) -> Option<Option<String>> {
        match &self.api_key {
            Some(key) => {
                let key = key.text()?;
                Some((!is_placeholder(key)).then(|| key.to_owned()))
            }
            None => Some(None),
        }
    }

    /// The credential of the entry, else of the environment. A provider's key is
    /// sent to the provider only.
    #[expect(clippy::option_option, reason = "an entry may need no credential")]
    fn key(&self, provider: &Provider, own_address: bool) -> Option<Option<String>> {
        if self.api_key.is_some() || !own_address {
            return self.given_key();
        }
        let found = self.variable(provider.key_variables);
        let needed = provider.api == Api::Azure || provider.address.is_some_and(is_remote);
        if found.is_some() || !needed || self.has_headers {
            return Some(found);
        }
        if self.signs_in {
            self.at
                .error("signing in with Microsoft Entra ID is not supported: set api_key");
        } else {
            let variable = provider.key_variables.first().copied().unwrap_or_default();
            self.at.error(format!(
                "api_key is missing, and {variable} is not set either"
            ));
        }
        None
    }

    fn variable(&self, names: &[&str]) -> Option<String> {
        names.iter().find_map(|name| self.context.variable(name))
    }
}

/// The problem of a model without an address.
const NO_ADDRESS: &str = "api_base is missing: set it, or begin model with the prefix of a provider \
                          with a known address, such as openai/ or groq/";

/// The problem of a provider without an address.
const UNKNOWN_PROVIDER: &str =
    "the provider is unknown: set api_base to its OpenAI-compatible address";

/// The problem of a pattern in place of a name.
pub(super) const WILDCARD: &str =
    "wildcards are not supported: write an entry for each model that clients request";

fn is_remote(address: &str) -> bool {
    address.starts_with("https://")
}

fn trimmed(address: &str) -> &str {
    address.trim_end_matches('/')
}

/// The path of an address; empty if there is none.
fn path(address: &str) -> &str {
    let rest = address.split_once("://").map_or(address, |(_, rest)| rest);
    rest.find('/').map_or("", |at| &rest[at..])
}

/// An address without the path of an endpoint, which the gateway appends.
fn without_endpoint(address: &str) -> &str {
    const ENDPOINTS: [&str; 8] = [
        "/chat/completions",
        "/completions",
        "/embeddings",
        "/responses",
        "/rerank",
        "/audio/transcriptions",
        "/audio/speech",
        "/images/generations",
    ];
    let address = trimmed(address);
    let base = ENDPOINTS
        .iter()
        .find_map(|endpoint| address.strip_suffix(endpoint));
    trimmed(base.unwrap_or(address))
}

/// The provider's own name of a model.
fn model_at(provider: &Provider, model: &str) -> String {
    match provider.api {
        Api::Fireworks if !model.starts_with("accounts/") && !model.contains('#') => {
            format!("accounts/fireworks/models/{model}")
        }
        // `PROVIDER/ORGANISATION/MODEL` is `ORGANISATION/MODEL:PROVIDER` there.
        Api::HuggingFace => match model.split_once('/') {
            Some((inference, rest)) if rest.contains('/') => format!("{rest}:{inference}"),
            _ => model.to_owned(),
        },
        _ => model.to_owned(),
    }
}

/// Values that mean that no credential is needed.
fn is_placeholder(key: &str) -> bool {
    key.is_empty()
        || ["none", "not-needed", "null"]
            .iter()
            .any(|word| key.eq_ignore_ascii_case(word))
}
