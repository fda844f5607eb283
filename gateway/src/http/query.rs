//! The query strings of clients, and which of their parameters are forwarded.

use std::borrow::Cow;
use std::str::FromStr;

use fastllm_engine::{InvalidQuery, is_credential_parameter};
use http::uri::PathAndQuery;

use super::endpoint::decoded;

/// The query parameters that upstreams see: `api-version` of Azure's clients,
/// and the version that some clients send of themselves.
const UPSTREAM: [&str; 2] = ["api-version", "client_version"];

/// The longest name of a parameter that an error repeats.
const LONGEST_NAME: usize = 64;

/// A query parameter that is forwarded in addition.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ForwardedParameter(String);

impl FromStr for ForwardedParameter {
    type Err = String;

    /// Credentials are never forwarded, nor is `model`: an upstream that reads it
    /// might serve another model than the authorised one.
    fn from_str(text: &str) -> Result<Self, String> {
        let name = text.trim();
        if !is_presentable(name) {
            return Err("expected the name of a query parameter".to_owned());
        }
        if is_credential_parameter(name) || name.eq_ignore_ascii_case("model") {
            return Err(format!("{name} is never forwarded"));
        }
        Ok(Self(name.to_owned()))
    }
}

/// The query of a client, all of whose parameters are forwarded.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct ClientQuery<'a>(&'a str);

impl<'a> ClientQuery<'a> {
    /// Checks a query: it is one list of pairs for every parser, and each of its
    /// parameters is forwarded, by default or because it is in `forwarded`.
    pub(crate) fn new(
        query: &'a str,
        forwarded: &[ForwardedParameter],
    ) -> Result<Self, InvalidQuery> {
        let query = Self(query);
        for pair in query.pairs() {
            let name = name(pair).ok_or(InvalidQuery::Malformed)?;
            let value = pair.split_once('=').map_or("", |(_, value)| value);
            // Some parsers take a semicolon for a separator.
            if name.is_empty() || decoded(value).is_none() || pair.contains(';') {
                return Err(InvalidQuery::Malformed);
            }
            let is = |known: &str| name.eq_ignore_ascii_case(known);
            if UPSTREAM.into_iter().any(is) || forwarded.iter().any(|known| is(&known.0)) {
                continue;
            }
            return Err(match name {
                name if is_credential_parameter(&name) => InvalidQuery::Credential(name.into()),
                name if is_presentable(&name) => InvalidQuery::Unsupported(name.into()),
                _ => InvalidQuery::Unnamed,
            });
        }
        Ok(query)
    }

    /// The pairs as received; empty ones are omitted.
    pub(crate) fn pairs(self) -> impl Iterator<Item = &'a str> {
        self.0.split('&').filter(|pair| !pair.is_empty())
    }

    /// The target of an upstream with the pairs that the backend does not set
    /// itself; `None` if there are none.
    pub(crate) fn target(
        self,
        target: &PathAndQuery,
        backend_sets: impl Fn(&str) -> bool,
    ) -> Option<String> {
        let mut added = String::new();
        let mut mark = if target.query().is_some() { '&' } else { '?' };
        for pair in self.pairs() {
            if name(pair).is_some_and(|name| !backend_sets(&name)) {
                added.push(mark);
                added.push_str(pair);
                mark = '&';
            }
        }
        (!added.is_empty()).then(|| [target.as_str(), &added].concat())
    }
}

/// The decoded name of a pair; `None` if its encoding is not valid.
fn name(pair: &str) -> Option<Cow<'_, str>> {
    decoded(pair.split_once('=').map_or(pair, |(name, _)| name))
}

/// Whether a name may be repeated in a text.
fn is_presentable(name: &str) -> bool {
    let of_name = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~[]$".contains(&byte);
    (1..=LONGEST_NAME).contains(&name.len()) && name.bytes().all(of_name)
}

#[cfg(test)]
mod tests {
    use fastllm_engine::InvalidQuery;
    use http::uri::PathAndQuery;

    use super::{ClientQuery, ForwardedParameter};

    fn forwarded(names: &[&str]) -> Vec<ForwardedParameter> {
        names.iter().map(|name| name.parse().unwrap()).collect()
    }

    /// The target for a backend that has this target and sets `api-version`.
    fn target(query: &str, base: &str) -> Option<String> {
        let query = ClientQuery::new(query, &forwarded(&["include[]", "x"])).unwrap();
        let base = PathAndQuery::try_from(base).unwrap();
        let sets = base.query().is_some();
        query.target(&base, |name| {
            sets && name.eq_ignore_ascii_case("api-version")
        })
    }

    #[test]
    fn parameters_are_appended_as_received() {
        for (query, base, expected) in [
            ("", "/v1/a", None),
            ("&&", "/v1/a", None),
            ("api-version=1", "/v1/a", Some("/v1/a?api-version=1")),
            (
                "api%2dversion=%31+%2F&",
                "/v1/a",
                Some("/v1/a?api%2dversion=%31+%2F"),
            ),
            ("x", "/v1/a", Some("/v1/a?x")),
            ("x=&x=a=b?c", "/v1/a", Some("/v1/a?x=&x=a=b?c")),
            (
                "include%5B%5D=a&&include[]=b",
                "/a",
                Some("/a?include%5B%5D=a&include[]=b"),
            ),
            // The backend's own value wins, in every spelling of the name.
            ("api-version=2", "/a?api-version=1", None),
            (
                "x=1&Api%2DVersion=2&x=3",
                "/a?api-version=1",
                Some("/a?api-version=1&x=1&x=3"),
            ),
        ] {
            assert_eq!(target(query, base).as_deref(), expected, "{query}");
        }
    }

    #[test]
    fn other_parameters_are_rejected_by_name() {
        let unsupported = |name: &str| InvalidQuery::Unsupported(name.into());
        let credential = |name: &str| InvalidQuery::Credential(name.into());
        for (query, expected) in [
            ("beta=true", unsupported("beta")),
            ("api-version=1&model=m", unsupported("model")),
            ("include%5B%5D=a", unsupported("include[]")),
            ("key=sk-canary", credential("key")),
            ("api_key=sk-canary", credential("api_key")),
            ("X-Goog-Api%2DKey=sk-canary", credential("X-Goog-Api-Key")),
            ("%0a=1", InvalidQuery::Unnamed),
            ("a%20b=1", InvalidQuery::Unnamed),
            ("=1", InvalidQuery::Malformed),
            ("api-version=%", InvalidQuery::Malformed),
            ("api-version=%g0", InvalidQuery::Malformed),
            ("%=1", InvalidQuery::Malformed),
            ("api-version=1;model=m", InvalidQuery::Malformed),
        ] {
            let rejected = ClientQuery::new(query, &[]).unwrap_err();
            assert_eq!(rejected, expected, "{query}");
            assert!(!rejected.to_string().contains("canary"));
        }
        let long = format!("{}=1", "a".repeat(65));
        assert_eq!(
            ClientQuery::new(&long, &[]).unwrap_err(),
            InvalidQuery::Unnamed
        );
    }

    #[test]
    fn credentials_and_the_model_cannot_be_added() {
        for name in ["", "a b", "a=b", "key", "Access-Token", "model", "MODEL"] {
            assert!(name.parse::<ForwardedParameter>().is_err(), "{name}");
        }
        assert!(" beta ".parse::<ForwardedParameter>().is_ok());
    }
}
