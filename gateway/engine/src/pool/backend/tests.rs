use std::sync::Arc;

use fastllm_contract::{
    Backend as Described, BackendId, Concurrency, HealthCheck, Protocol, RequestOptions, Secret,
};

use super::{Backend, InvalidBackend};
use crate::pool::{BackendState, InvalidHealthCheck};

fn described(api_base: &str) -> Described {
    Described {
        id: BackendId(1),
        api_base: api_base.to_owned(),
        upstream_model: "served".to_owned(),
        api_key: Some(Secret::new("canary-credential")),
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

fn build(described: &Described) -> Result<Backend, InvalidBackend> {
    Backend::build(described, Arc::new(BackendState::default()))
}

#[test]
fn address_is_split_into_origin_host_and_path() {
    let cases = [
        (
            "http://10.0.0.1:8000/v1",
            "http://10.0.0.1:8000",
            "10.0.0.1:8000",
            "/v1/x",
        ),
        (
            "https://api.example.com/v1/",
            "https://api.example.com:443",
            "api.example.com",
            "/v1/x",
        ),
        ("http://[::1]:8000", "http://[::1]:8000", "[::1]:8000", "/x"),
        (
            "https://API.Example.com",
            "https://api.example.com:443",
            "API.Example.com",
            "/x",
        ),
    ];
    for (api_base, origin, host, path) in cases {
        let backend = build(&described(api_base)).unwrap();
        assert_eq!(backend.origin().to_string(), origin);
        assert_eq!(backend.host(), host);
        assert_eq!(backend.path("/x").unwrap().as_str(), path);
    }
}

#[test]
fn invalid_addresses_have_distinct_errors() {
    let cases = [
        ("", InvalidBackend::Address),
        ("localhost", InvalidBackend::Address),
        ("/v1", InvalidBackend::Address),
        ("ftp://a/v1", InvalidBackend::Address),
        ("http://", InvalidBackend::Address),
        ("http://a:0/v1", InvalidBackend::Address),
        ("http://a:99999/v1", InvalidBackend::Address),
        ("http://a b/v1", InvalidBackend::Address),
        ("http://user:word@a/v1", InvalidBackend::Userinfo),
        ("http://a/v1?key=1", InvalidBackend::Query),
    ];
    for (api_base, reason) in cases {
        assert_eq!(
            build(&described(api_base)).err(),
            Some(reason),
            "{api_base}"
        );
    }
}

#[test]
fn invalid_credential_is_rejected() {
    let mut bad_value = described("http://a/v1");
    bad_value.api_key = Some(Secret::new("line\nbreak"));
    assert_eq!(build(&bad_value).err(), Some(InvalidBackend::Credential));

    for name in ["content-length", "Host", "two words", ""] {
        let mut bad_name = described("http://a/v1");
        bad_name.auth_header = name.to_owned();
        assert_eq!(
            build(&bad_name).err(),
            Some(InvalidBackend::AuthHeader),
            "{name}"
        );
    }
}

#[test]
fn auth_header_is_as_configured_and_not_printed() {
    let mut raw = described("http://a/v1");
    raw.auth_header = "X-Api-Key".to_owned();
    raw.auth_scheme = None;
    let backend = build(&raw).unwrap();
    let (name, value) = backend.auth().unwrap();
    assert_eq!(name, "x-api-key");
    assert_eq!(value, "canary-credential");
    assert!(!format!("{backend:?}").contains("canary"));

    let mut open = described("http://a/v1");
    open.api_key = None;
    assert!(build(&open).unwrap().auth().is_none());
}

#[test]
fn extra_headers_are_sensitive_and_validated() {
    let with = |name: &str, value: &str| {
        let mut described = described("http://a/v1");
        let header = (name.to_owned(), Secret::new(value));
        described.request_options.headers.extend([header]);
        build(&described)
    };
    let backend = with("X-Team", "canary-team").unwrap();
    let [(name, value)] = backend.extra_headers() else {
        panic!("one header");
    };
    assert_eq!(
        (name.as_str(), value.to_str().unwrap()),
        ("x-team", "canary-team")
    );
    assert!(!format!("{backend:?}").contains("canary"));
    for (name, value) in [
        ("Authorization", "x"),
        ("host", "x"),
        ("Content-Length", "1"),
        ("Connection", "close"),
        ("proxy-authorization", "x"),
        ("two words", "x"),
        ("", "x"),
        ("x-a", "line\nbreak"),
    ] {
        assert_eq!(
            with(name, value).err(),
            Some(InvalidBackend::ExtraHeader),
            "{name}"
        );
    }
}

#[test]
fn health_check_is_as_configured() {
    let check = |change: fn(&mut HealthCheck)| {
        let mut described = described("http://a/v1");
        change(&mut described.health);
        build(&described)
    };
    let backend = check(|_| {}).unwrap();
    let probe = backend.probe().unwrap();
    assert_eq!(
        (probe.method().as_str(), probe.target().as_str()),
        ("GET", "/v1/models")
    );
    assert!(probe.expects(204) && !probe.expects(301));
    let backend = check(|health| {
        health.path = "//health".to_owned();
        health.method = "HEAD".to_owned();
        health.expect = "200,401".to_owned();
    })
    .unwrap();
    let probe = backend.probe().unwrap();
    assert_eq!(
        (probe.method().as_str(), probe.target().as_str()),
        ("HEAD", "/health")
    );
    assert!(probe.expects(401) && !probe.expects(204));
    assert!(
        check(|health| health.enabled = false)
            .unwrap()
            .probe()
            .is_none()
    );
    for (change, reason) in [
        (
            (|health| health.path = "models".to_owned()) as fn(&mut HealthCheck),
            InvalidHealthCheck::Path,
        ),
        (
            |health| health.path = "/a?b".to_owned(),
            InvalidHealthCheck::Path,
        ),
        (
            |health| health.method = "DELETE".to_owned(),
            InvalidHealthCheck::Method,
        ),
        (
            |health| health.expect = "fine".to_owned(),
            InvalidHealthCheck::Expect,
        ),
    ] {
        assert_eq!(
            check(change).err(),
            Some(InvalidBackend::HealthCheck(reason))
        );
    }
}

#[test]
fn zero_concurrency_is_rejected() {
    let mut none = described("http://a/v1");
    none.concurrency.max = Some(0);
    assert_eq!(build(&none).err(), Some(InvalidBackend::Concurrency));
}

#[test]
fn other_protocols_are_rejected() {
    for protocol in [Protocol::Anthropic, Protocol::Gemini, Protocol::Unknown] {
        let mut native = described("http://a/v1");
        native.protocol = protocol;
        assert_eq!(build(&native).err(), Some(InvalidBackend::Protocol));
    }
}
