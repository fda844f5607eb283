//! Which parts of a backend's requests are secrets, which no response to a client
//! may repeat.

use std::cmp::Reverse;
use std::sync::Arc;

use fastllm_contract::{Backend as Described, Secret};

/// The shortest credential that is a secret, in bytes: shorter ones are
/// placeholders such as `EMPTY`, and common words.
const SHORTEST_CREDENTIAL: usize = 6;

/// The shortest value of another header or parameter that is a secret, in bytes.
const SHORTEST_VALUE: usize = 8;

/// Headers whose values are no secrets.
const PUBLIC: [&str; 16] = [
    "accept",
    "accept-language",
    "anthropic-beta",
    "anthropic-version",
    "cache-control",
    "http-referer",
    "openai-beta",
    "openai-organization",
    "openai-project",
    "origin",
    "prefer",
    "referer",
    "traceparent",
    "tracestate",
    "user-agent",
    "x-title",
];

/// The secrets of a backend, the longest first: its credential, the values of its
/// additional headers, and query parameters that are named like credentials.
pub(super) fn secrets(described: &Described) -> Arc<[Secret]> {
    let options = &described.request_options;
    let credential = described.api_key.iter().map(Secret::expose);
    let credential = credential.map(|text| (text, SHORTEST_CREDENTIAL));
    let headers = options.headers.iter();
    let headers = headers
        .filter(|(name, _)| !PUBLIC.contains(&name.to_ascii_lowercase().as_str()))
        .map(|(_, value)| (value.expose(), SHORTEST_VALUE));
    let query = options.query.iter();
    let query = query
        .filter(|(name, _)| is_credential_parameter(name))
        .map(|(_, value)| (value.as_str(), SHORTEST_VALUE));
    let mut secrets: Vec<Secret> = credential
        .chain(headers)
        .chain(query)
        .map(|(text, shortest)| (without_scheme(text), shortest))
        .filter(|(secret, shortest)| secret.len() >= *shortest)
        .map(|(secret, _)| Secret::new(secret))
        .collect();
    secrets.sort_by_key(|secret| Reverse(secret.expose().len()));
    secrets.into()
}

/// The credential after a scheme such as `Bearer`.
fn without_scheme(value: &str) -> &str {
    let value = value.trim();
    match value.split_once(' ') {
        Some((scheme, rest)) if scheme.bytes().all(|byte| byte.is_ascii_alphabetic()) => {
            rest.trim_start()
        }
        _ => value,
    }
}

/// Whether a query parameter of this name usually carries a credential. Case,
/// hyphens and underscores make no difference.
pub fn is_credential_parameter(name: &str) -> bool {
    const NAMES: [&str; 28] = [
        "accesskey",
        "accesstoken",
        "apikey",
        "apisecret",
        "apitoken",
        "auth",
        "authorization",
        "authtoken",
        "bearer",
        "bearertoken",
        "clientsecret",
        "credential",
        "idtoken",
        "jwt",
        "key",
        "passwd",
        "password",
        "pwd",
        "refreshtoken",
        "secret",
        "secretkey",
        "sig",
        "signature",
        "subscriptionkey",
        "token",
        "xapikey",
        "xgoogapikey",
        "xamzsecuritytoken",
    ];
    let letters = || {
        let bytes = name.bytes();
        bytes.filter(|byte| !matches!(byte, b'-' | b'_'))
    };
    let is = |known: &&str| {
        letters()
            .map(|byte| byte.to_ascii_lowercase())
            .eq(known.bytes())
    };
    NAMES.iter().any(is)
}

#[cfg(test)]
mod tests {
    use fastllm_contract::Secret;

    use super::{is_credential_parameter, secrets};
    use crate::fixture::backend;

    #[test]
    fn secrets_are_what_identifies_the_operator() {
        let mut described = backend(1);
        described.api_key = Some(Secret::new("sk-upstream"));
        let options = &mut described.request_options;
        for (name, value) in [
            ("x-tenant-key", "Bearer tenant-secret"),
            ("cf-access-client-secret", "another-long-secret"),
            ("x-short", "1234567"),
            ("accept", "application/json"),
            ("anthropic-version", "2023-06-01"),
        ] {
            options.headers.insert(name.to_owned(), Secret::new(value));
        }
        for (name, value) in [("api-version", "2024-10-21"), ("key", "AIza-secret")] {
            options.query.insert(name.to_owned(), value.to_owned());
        }
        let found = secrets(&described);
        let found: Vec<_> = found.iter().map(Secret::expose).collect();
        assert_eq!(
            found,
            [
                "another-long-secret",
                "tenant-secret",
                "sk-upstream",
                "AIza-secret"
            ]
        );
        described.request_options = <_>::default();
        for (credential, expected) in [
            ("EMPTY", None),
            ("secret", Some("secret")),
            ("Basic dXNlcjpwYXNz", Some("dXNlcjpwYXNz")),
        ] {
            described.api_key = Some(Secret::new(credential));
            let found = secrets(&described);
            assert_eq!(found.first().map(Secret::expose), expected);
        }
    }

    #[test]
    fn names_of_credentials_are_recognized_in_every_spelling() {
        for name in [
            "key",
            "api_key",
            "Api-Key",
            "APIKEY",
            "access_token",
            "x-goog-api-key",
        ] {
            assert!(is_credential_parameter(name), "{name}");
        }
        for name in ["", "api-version", "max_tokens", "keys", "tokens", "key.x"] {
            assert!(!is_credential_parameter(name), "{name}");
        }
    }
}
