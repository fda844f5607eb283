use std::collections::BTreeMap;

use fastllm_crds::Reason;

use super::preflight;
use crate::fake_cluster::FakeCluster;
use crate::observe::{ReadFailure, ReadOutcome};

#[test]
fn all_problems_are_listed_in_the_order_of_the_fields() {
    let mut cluster = FakeCluster::new();
    cluster.secrets.remove("db");
    cluster.secrets.insert("token".to_owned(), BTreeMap::new());
    cluster.set_secret("key", "key", "not hexadecimal");
    let problems = preflight(&cluster.proxy, &cluster.observe().secrets, false).unwrap_err();
    let found: Vec<_> = problems
        .iter()
        .map(|p| (p.reason, p.message.as_str()))
        .collect();
    assert_eq!(
        found,
        [
            (
                Reason::SecretNotFound,
                "spec.database: Secret \"db\" does not exist (required key: \"uri\")"
            ),
            (
                Reason::KeyNotFound,
                "spec.proxyToken: Secret \"token\" has no key \"token\""
            ),
            (
                Reason::InvalidValue,
                "spec.encryptionKey: key \"key\" of Secret \"key\" is not 64 hexadecimal digits"
            ),
        ]
    );
}

#[test]
fn an_invalid_value_is_rejected_without_being_printed() {
    for (name, key, value) in [
        ("db", "uri", "mysql://canary@db/x"),
        ("db", "uri", "canary"),
        ("db", "uri", "postgres://canary@db/x\n"),
        ("token", "token", "two canary words"),
        ("token", "token", " "),
        ("key", "key", "canary"),
        ("login", "password", " canary"),
    ] {
        let mut cluster = FakeCluster::new();
        cluster.set_secret(name, key, value);
        let problems = preflight(&cluster.proxy, &cluster.observe().secrets, false).unwrap_err();
        assert_eq!(problems.len(), 1, "{value:?}");
        assert_eq!(problems[0].reason, Reason::InvalidValue, "{value:?}");
        assert!(!format!("{problems:?}").contains("canary"), "{problems:?}");
    }
}

#[test]
fn an_invalid_reference_is_not_reported_as_a_failed_read() {
    for (name, key) in [
        ("../../other/secrets/x", "uri"),
        ("a..b", "uri"),
        ("db", "../uri"),
    ] {
        let mut cluster = FakeCluster::new();
        let secrets = cluster.observe().secrets;
        cluster.edit(|spec| {
            spec.database.name = name.to_owned();
            spec.database.key = key.to_owned();
        });
        let problems = preflight(&cluster.proxy, &secrets, false).unwrap_err();
        assert_eq!(problems[0].reason, Reason::InvalidValue);
        assert_eq!(
            problems[0].message,
            "spec.database: the reference is invalid"
        );
    }
}

#[test]
fn an_empty_value_counts_as_missing() {
    let mut cluster = FakeCluster::new();
    cluster.set_secret("db", "uri", "");
    let problems = preflight(&cluster.proxy, &cluster.observe().secrets, false).unwrap_err();
    assert_eq!(problems[0].reason, Reason::KeyNotFound);
}

#[test]
fn a_failed_read_is_not_reported_as_missing() {
    let cluster = FakeCluster::new();
    for (failure, reason) in [
        (ReadFailure::Forbidden, Reason::Forbidden),
        (
            ReadFailure::Failed("the API server did not respond in time"),
            Reason::ReadFailed,
        ),
    ] {
        let mut secrets = cluster.observe().secrets;
        secrets.insert("db".to_owned(), ReadOutcome::Unknown(failure));
        let problems = preflight(&cluster.proxy, &secrets, false).unwrap_err();
        assert_eq!(problems[0].reason, reason);
        assert!(problems[0].is_unknown());
    }
}

#[test]
fn the_bootstrap_password_is_not_required_once_the_admin_exists() {
    let mut cluster = FakeCluster::new();
    cluster.secrets.remove("login");
    let secrets = cluster.observe().secrets;
    assert!(preflight(&cluster.proxy, &secrets, false).is_err());
    assert!(preflight(&cluster.proxy, &secrets, true).is_ok());
}
