//! The providers of LiteLLM, by the prefix of a model's name.

mod table;

use self::table::PROVIDERS;

/// A provider.
#[derive(Debug)]
pub(super) struct Provider {
    /// Its prefixes, without the slash.
    names: &'static [&'static str],
    pub(super) api: Api,
    /// Its address, if there is one for everybody.
    pub(super) address: Option<&'static str>,
    /// Environment variables that LiteLLM reads the address from.
    pub(super) address_variables: &'static [&'static str],
    /// Environment variables that LiteLLM reads the credential from.
    pub(super) key_variables: &'static [&'static str],
    /// Whether it lists its models, so that it can be probed.
    pub(super) lists_models: bool,
}

/// How requests reach a provider.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Api {
    /// OpenAI's API at the address.
    OpenAi,
    /// OpenAI's API below `/v1`, which LiteLLM leaves out of the address.
    OpenAiBelowV1,
    /// Deployments of Azure OpenAI.
    Azure,
    /// Fireworks, whose model names have a path.
    Fireworks,
    /// Cohere, whose rerank endpoint has an address of its own.
    Cohere,
    /// Hugging Face's router, or an inference server.
    HuggingFace,
    /// No API of OpenAI's; what to do instead.
    Foreign(&'static str),
}

impl Provider {
    /// A service with one address.
    const fn service(
        names: &'static [&'static str],
        address: &'static str,
        key_variables: &'static [&'static str],
    ) -> Self {
        Self {
            names,
            api: Api::OpenAi,
            address: Some(address),
            address_variables: &[],
            key_variables,
            lists_models: true,
        }
    }

    /// A server or a service whose address each file has to name.
    const fn addressed(
        names: &'static [&'static str],
        address_variables: &'static [&'static str],
        key_variables: &'static [&'static str],
    ) -> Self {
        Self {
            names,
            api: Api::OpenAi,
            address: None,
            address_variables,
            key_variables,
            lists_models: true,
        }
    }

    const fn foreign(names: &'static [&'static str], instead: &'static str) -> Self {
        Self {
            names,
            api: Api::Foreign(instead),
            address: None,
            address_variables: &[],
            key_variables: &[],
            lists_models: false,
        }
    }

    const fn with_api(self, api: Api) -> Self {
        Self { api, ..self }
    }

    const fn keyed(self, key_variables: &'static [&'static str]) -> Self {
        Self {
            key_variables,
            ..self
        }
    }

    const fn at(self, address: &'static str) -> Self {
        Self {
            address: Some(address),
            ..self
        }
    }

    const fn address_from(self, address_variables: &'static [&'static str]) -> Self {
        Self {
            address_variables,
            ..self
        }
    }

    const fn without_list(self) -> Self {
        Self {
            lists_models: false,
            ..self
        }
    }

    /// Its usual prefix, without the slash.
    pub(super) fn name(&self) -> &'static str {
        self.names.first().copied().unwrap_or_default()
    }

    /// Whether its prefix is removed whatever the address is.
    pub(super) fn is_generic(&self) -> bool {
        const GENERIC: [&str; 3] = ["openai", "hosted_vllm", "openrouter"];
        GENERIC.contains(&self.name())
    }

    /// Whether requests at an address reach it.
    pub(super) fn is_at(&self, address: &str) -> bool {
        self.address.is_some_and(|own| host(own) == host(address))
    }
}

/// The provider of a prefix, without the slash.
pub(super) fn named(name: &str) -> Option<&'static Provider> {
    PROVIDERS.iter().find(|one| one.names.contains(&name))
}

/// The provider of a model's name, and the rest of the name.
pub(super) fn of_model(model: &str) -> Option<(&'static Provider, &str)> {
    let (prefix, rest) = model.split_once('/')?;
    Some((named(prefix)?, rest))
}

/// The provider that LiteLLM finds by a name without a prefix.
pub(super) fn of_bare_name(model: &str) -> Option<&'static Provider> {
    const KNOWN: [(&str, &str); 16] = [
        ("gpt-", "openai"),
        ("chatgpt-", "openai"),
        ("o1", "openai"),
        ("o3", "openai"),
        ("o4-", "openai"),
        ("codex-", "openai"),
        ("computer-use-", "openai"),
        ("text-embedding-3-", "openai"),
        ("text-embedding-ada-", "openai"),
        ("dall-e-", "openai"),
        ("whisper-1", "openai"),
        ("tts-1", "openai"),
        ("omni-moderation-", "openai"),
        ("claude-", "anthropic"),
        ("gemini-", "gemini"),
        ("command-", "cohere"),
    ];
    let known = KNOWN.iter().find(|(start, _)| model.starts_with(start));
    known.and_then(|(_, provider)| named(provider))
}

/// The provider with this address.
pub(super) fn at_address(address: &str) -> Option<&'static Provider> {
    PROVIDERS.iter().find(|one| one.is_at(address))
}

/// The host of an `http` or `https` address; empty if there is none.
fn host(address: &str) -> &str {
    let Some((_, rest)) = address.split_once("://") else {
        return "";
    };
    let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
    authority.split(':').next().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::table::PROVIDERS;
    use super::{Api, at_address, of_bare_name, of_model};

    #[test]
    fn no_prefix_occurs_twice_and_addresses_are_bases() {
        let mut names = HashSet::new();
        for provider in &PROVIDERS {
            for name in provider.names {
                assert!(names.insert(name), "{name}");
            }
            if let Some(address) = provider.address {
                assert!(
                    address.starts_with("http") && !address.ends_with('/'),
                    "{address}"
                );
            }
        }
    }

    #[test]
    fn a_model_belongs_to_the_provider_of_its_prefix() {
        let name = |model| of_model(model).map(|(provider, rest)| (provider.name(), rest));
        assert_eq!(name("openai/gpt-4o"), Some(("openai", "gpt-4o")));
        assert_eq!(name("vllm/a/b"), Some(("hosted_vllm", "a/b")));
        assert_eq!(name("Qwen/Qwen3"), None);
        assert_eq!(name("gpt-4o"), None);
        assert!(of_bare_name("gpt-4o").is_some_and(|one| one.name() == "openai"));
        let claude = of_bare_name("claude-sonnet-4").map(|one| one.api);
        assert!(matches!(claude, Some(Api::Foreign(_))));
        assert!(of_bare_name("llama").is_none());
    }

    #[test]
    fn an_address_belongs_to_the_provider_of_its_host() {
        let name = |address| at_address(address).map(super::Provider::name);
        assert_eq!(name("https://openrouter.ai/api/v1"), Some("openrouter"));
        assert_eq!(name("https://api.groq.com:443?x"), Some("groq"));
        assert_eq!(name("https://openrouter.ai.example.com"), None);
        assert_eq!(name("openrouter.ai"), None);
    }
}
