use fastllm_contract::{KeyId, PrincipalId, Timestamp};

use super::{Caller, identify};
use crate::fixture::{Key, key, principal, snapshot};
use crate::{Refusal, RoutingState, Tuning};

const NOW: Timestamp = Timestamp(1_000);

fn routing_state(keys: &[Key<'_>]) -> RoutingState {
    let snapshot = snapshot(Vec::new(), vec![principal(7, &["a"])], keys);
    RoutingState::build(&snapshot, None, &Tuning::default())
        .unwrap()
        .state
}

#[test]
fn valid_key_identifies_its_principal() {
    let state = routing_state(&[key("sk-one", 7)]);
    let caller = identify(&state, Some(b"sk-one"), NOW).unwrap();
    let identified = caller.identified().unwrap();
    assert_eq!(identified.principal.id(), PrincipalId(7));
    assert_eq!(identified.key, KeyId(70));
}

#[test]
fn missing_unknown_and_disabled_keys_are_refused_alike() {
    let mut disabled = key("sk-disabled", 7);
    disabled.disabled = true;
    let state = routing_state(&[disabled, key("sk-orphan", 8)]);
    for presented in [
        None,
        Some("sk-unknown"),
        Some("sk-disabled"),
        Some("sk-orphan"),
        Some(""),
    ] {
        let refusal = identify(&state, presented.map(str::as_bytes), NOW).unwrap_err();
        assert_eq!(refusal, Refusal::InvalidKey, "{presented:?}");
    }
}

#[test]
fn key_expires_exactly_at_its_expiry() {
    let mut expiring = key("sk-one", 7);
    expiring.expires_at = Some(1_000);
    let state = routing_state(&[expiring]);
    assert!(identify(&state, Some(b"sk-one"), Timestamp(999)).is_ok());
    assert_eq!(
        identify(&state, Some(b"sk-one"), NOW).unwrap_err(),
        Refusal::ExpiredKey
    );
}

#[test]
fn open_snapshot_requires_no_key() {
    let mut open = snapshot(Vec::new(), Vec::new(), &[]);
    open.open = true;
    let state = RoutingState::build(&open, None, &Tuning::default())
        .unwrap()
        .state;
    let caller = identify(&state, None, NOW).unwrap();
    assert!(matches!(caller, Caller::Anonymous));
    assert!(caller.may_use("anything"));
}

#[test]
fn keys_of_one_shard_are_distinguished() {
    let secrets: Vec<String> = (0..2_000).map(|number| format!("sk-{number}")).collect();
    let keys: Vec<Key<'_>> = secrets.iter().map(|secret| key(secret, 7)).collect();
    let state = routing_state(&keys);
    assert_eq!(state.key_count(), 2_000);
    for secret in &secrets {
        assert!(identify(&state, Some(secret.as_bytes()), NOW).is_ok());
    }
    assert!(identify(&state, Some(b"sk-2000"), NOW).is_err());
}
