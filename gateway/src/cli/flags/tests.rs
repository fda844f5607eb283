use clap::Parser;

use super::{Flags, PolicyKind, SourceConfig, SourceError};

#[derive(Debug, Parser)]
struct TestCommand {
    #[command(flatten)]
    flags: Flags,
}

fn parse(more: &[&str]) -> Result<Flags, clap::Error> {
    let base = [
        "fastllm-gateway",
        "--control-url=http://control:4001/snapshot",
        "--proxy-token=canary-token",
    ];
    TestCommand::try_parse_from(base.iter().chain(more)).map(|command| command.flags)
}

#[test]
fn hosts_are_addresses_or_localhost() {
    for (given, parsed) in [
        ("localhost", "127.0.0.1"),
        ("0.0.0.0", "0.0.0.0"),
        ("::", "::"),
        ("[::1]", "::1"),
    ] {
        let config = parse(&["--host", given]).unwrap();
        assert_eq!(config.host.to_string(), parsed);
    }
    assert!(parse(&["--host", "example.com"]).is_err());
}

#[test]
fn intervals_of_zero_are_refused_where_they_would_spin() {
    for flag in [
        "health-interval",
        "health-timeout",
        "health-report-interval",
        "body-timeout",
        "body-total-timeout",
        "send-timeout",
        "header-timeout",
        "request-timeout",
        "stream-idle-timeout",
        "sse-heartbeat",
        "max-connections",
    ] {
        assert!(parse(&[&format!("--{flag}=0")]).is_err(), "{flag}");
        assert!(parse(&[&format!("--{flag}=1")]).is_ok(), "{flag}");
    }
    assert!(parse(&["--shutdown-grace=0", "--shutdown-delay=0"]).is_ok());
    assert!(parse(&["--shutdown-grace=-1"]).is_err());
}

#[test]
fn flags_name_exactly_one_source() {
    const URL: &str = "--control-url=http://control:4001";
    const TOKEN: &str = "--proxy-token=t";
    const FILE: &str = "--config=gateway.yaml";
    let is_file = |flags: &[&str]| -> Result<bool, SourceError> {
        let all = std::iter::once("gateway").chain(flags.iter().copied());
        let flags = TestCommand::try_parse_from(all).unwrap().flags;
        let config = flags.config()?;
        Ok(matches!(config.source, SourceConfig::File { .. }))
    };
    for (flags, expected) in [
        (&[FILE][..], Ok(true)),
        (&[FILE, "--config-poll=0", "--master-key=k"][..], Ok(true)),
        (&[URL, TOKEN][..], Ok(false)),
        (&[][..], Err(SourceError::Missing)),
        (&[FILE, URL, TOKEN][..], Err(SourceError::Both)),
        (&[FILE, TOKEN][..], Err(SourceError::Both)),
        (&[URL][..], Err(SourceError::Half)),
        (&[TOKEN][..], Err(SourceError::Half)),
        (
            &[URL, TOKEN, "--master-key=k"][..],
            Err(SourceError::MasterKey),
        ),
        (&[URL, TOKEN, "--config-poll=0"][..], Err(SourceError::Poll)),
    ] {
        assert_eq!(is_file(flags), expected, "{flags:?}");
    }
}

#[test]
fn optional_features_are_off_by_default() {
    let config = parse(&[]).unwrap();
    assert!(config.request_timeout.is_none() && config.sse_heartbeat.is_none());
    assert!(config.cors_origins.is_empty() && !config.hide_ungranted_models);
    let config = parse(&[
        "--hide-ungranted-models",
        "--cors-origin=https://a.example,https://b.example",
        "--cors-origin=http://localhost:3000",
    ])
    .unwrap();
    assert!(config.hide_ungranted_models);
    assert_eq!(config.cors_origins.len(), 3);
    assert!(parse(&["--cors-origin=a.example"]).is_err());
    let config = parse(&["--forward-header=x-team,anthropic-beta"]).unwrap();
    assert_eq!(config.forwarding.headers.len(), 2);
    assert!(parse(&["--forward-header=authorization"]).is_err());
    let config = parse(&["--forward-query=beta,include[]"]).unwrap();
    assert_eq!(config.forwarding.query.len(), 2);
    assert!(parse(&["--forward-query=api_key"]).is_err());
    let config = parse(&["--forward-response-header=x-ratelimit-reset,x-team"]).unwrap();
    assert_eq!(config.forwarding.response_headers.len(), 2);
    assert!(parse(&["--forward-response-header=set-cookie"]).is_err());
}

#[test]
fn policies_have_four_names() {
    assert_eq!(parse(&[]).unwrap().policy, PolicyKind::CacheAffinity);
    for policy in PolicyKind::ALL {
        let flag = format!("--policy={policy}");
        assert_eq!(parse(&[&flag]).unwrap().policy, policy);
    }
    let error = parse(&["--policy=fastest"]).unwrap_err().to_string();
    assert!(error.contains("lowest-latency"), "{error}");
}

#[test]
fn tracing_is_off_and_its_flags_are_checked() {
    let config = parse(&[]).unwrap();
    assert!(config.otel_endpoint.is_none());
    assert_eq!(config.otel_sample_one_in.get(), 100);
    assert_eq!(config.otel_service_name, "fastllm-proxy");
    assert!(parse(&["--otel-sample-one-in=0"]).is_err());
    assert!(parse(&["--otel-protocol=http/protobuf"]).is_ok());
    assert!(parse(&["--otel-endpoint=http://collector:4317"]).is_ok());
    assert!(parse(&["--otel-headers="]).is_ok());
    for address in ["collector:4317", "ftp://collector", "http://u:p@collector"] {
        assert!(parse(&["--otel-endpoint", address]).is_err(), "{address}");
    }
    let config = parse(&["--otel-headers=authorization=canary"]).unwrap();
    assert!(!format!("{config:?}").contains("canary"));
}

#[test]
fn errors_do_not_contain_the_password_of_an_address() {
    for flag in ["--control-url", "--otel-endpoint"] {
        for address in ["http://u:canary@host", "ftp://u:canary@host", "canary"] {
            let command = ["gateway", flag, address];
            let error = TestCommand::try_parse_from(command)
                .unwrap_err()
                .to_string();
            assert!(error.contains(flag), "{error}");
            assert!(!error.contains("canary"), "{error}");
        }
    }
}

#[test]
fn debug_output_does_not_contain_the_token() {
    let config = parse(&[]).unwrap();
    assert!(!format!("{config:?}").contains("canary"));
    let error = parse(&["--help"]).unwrap_err().to_string();
    assert!(error.contains("--proxy-token") && !error.contains("canary"));
    let error = parse(&["--port=x"]).unwrap_err().to_string();
    assert!(!error.contains("canary"));
}

#[test]
fn labels_of_metadata_are_checked_before_anything_starts() {
    assert_eq!(parse(&[]).unwrap().metadata_labels.to_string(), "");
    let given = parse(&["--metadata-labels=team, cost-center"]).unwrap();
    assert_eq!(given.metadata_labels.to_string(), "team,cost-center");
    for wrong in ["team,", "model", "a-b,a.b"] {
        let flag = format!("--metadata-labels={wrong}");
        assert!(parse(&[&flag]).is_err(), "{wrong}");
    }
}

#[test]
fn the_spill_file_has_a_size_limit() {
    let usual = parse(&[]).unwrap();
    assert_eq!((usual.usage_spill, usual.usage_spill_max_mb), (None, 256));
    assert!(parse(&["--usage-spill-max-mb=0"]).is_err());
}
