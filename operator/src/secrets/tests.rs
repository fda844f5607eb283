use std::collections::BTreeMap;

use fastllm_crds::Reason;

use super::{Keyed, SecretValue, preflight};
use crate::observe::{Read, ReadFailure};
use crate::world::{KEY, World};

fn key(text: &str) -> SecretValue {
    SecretValue::new(text.as_bytes().to_vec())
}

#[test]
fn three_things_wrong_are_listed_at_once_in_the_order_of_the_fields() {
    let mut world = World::new();
    world.secrets.remove("db");
    world.secrets.insert("token".to_owned(), BTreeMap::new());
    world.set_secret("key", "key", "not hexadecimal");
    let problems = preflight(&world.proxy, &world.observe().secrets, false).unwrap_err();
    let found: Vec<_> = problems
        .iter()
        .map(|p| (p.reason, p.message.as_str()))
        .collect();
    assert_eq!(
        found,
        [
            (
                Reason::SecretNotFound,
                "spec.database: Secret \"db\" does not exist (key \"uri\" is wanted)"
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
fn a_value_of_the_wrong_form_is_refused_without_being_shown() {
    for (name, key, value) in [
        ("db", "uri", "mysql://canary@db/x"),
        ("db", "uri", "canary"),
        ("db", "uri", "postgres://canary@db/x\n"),
        ("token", "token", "two canary words"),
        ("token", "token", " "),
        ("key", "key", "canary"),
        ("login", "password", " canary"),
    ] {
        let mut world = World::new();
        world.set_secret(name, key, value);
        let problems = preflight(&world.proxy, &world.observe().secrets, false).unwrap_err();
        assert_eq!(problems.len(), 1, "{value:?}");
        assert_eq!(problems[0].reason, Reason::InvalidValue, "{value:?}");
        assert!(!format!("{problems:?}").contains("canary"), "{problems:?}");
    }
}

#[test]
fn an_empty_value_counts_as_missing() {
    let mut world = World::new();
    world.set_secret("db", "uri", "");
    let problems = preflight(&world.proxy, &world.observe().secrets, false).unwrap_err();
    assert_eq!(problems[0].reason, Reason::KeyNotFound);
}

#[test]
fn what_could_not_be_read_is_not_reported_as_missing() {
    let world = World::new();
    for (failure, reason) in [
        (ReadFailure::Forbidden, Reason::Forbidden),
        (
            ReadFailure::Failed("the API server did not answer in time"),
            Reason::ReadFailed,
        ),
    ] {
        let mut secrets = world.observe().secrets;
        secrets.insert("db".to_owned(), Read::Unknown(failure));
        let problems = preflight(&world.proxy, &secrets, false).unwrap_err();
        assert_eq!(problems[0].reason, reason);
        assert!(problems[0].is_unknown());
    }
}

#[test]
fn the_first_logins_password_is_not_needed_once_it_exists() {
    let mut world = World::new();
    world.secrets.remove("login");
    let secrets = world.observe().secrets;
    assert!(preflight(&world.proxy, &secrets, false).is_err());
    assert!(preflight(&world.proxy, &secrets, true).is_ok());
}

#[test]
fn parts_of_a_hash_are_delimited() {
    let keyed = Keyed::derive(&key(KEY));
    assert_ne!(keyed.digest(&[b"ab", b"c"]), keyed.digest(&[b"a", b"bc"]));
    assert_ne!(keyed.digest(&[b"ab"]), keyed.digest(&[b"ab", b""]));
}

#[test]
fn a_hash_needs_the_encryption_key() {
    let other = KEY.replace('0', "1");
    assert_ne!(
        Keyed::derive(&key(KEY)).digest(&[b"value"]),
        Keyed::derive(&key(&other)).digest(&[b"value"])
    );
}

#[test]
fn neither_values_nor_keys_are_shown() {
    let shown = format!("{:?} {:?}", key("canary"), Keyed::derive(&key("canary")));
    assert!(
        !shown.contains("canary") && !shown.contains("99"),
        "{shown}"
    );
}
