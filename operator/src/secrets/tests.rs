use super::{KeyedHasher, SecretValue};
use crate::fake_cluster::KEY;

fn key(text: &str) -> SecretValue {
    SecretValue::new(text.as_bytes().to_vec())
}

#[test]
fn parts_of_a_hash_are_delimited() {
    let hasher = KeyedHasher::derive(&key(KEY));
    assert_ne!(hasher.digest(&[b"ab", b"c"]), hasher.digest(&[b"a", b"bc"]));
    assert_ne!(hasher.digest(&[b"ab"]), hasher.digest(&[b"ab", b""]));
}

#[test]
fn a_hash_depends_on_the_encryption_key() {
    let other = KEY.replace('0', "1");
    assert_ne!(
        KeyedHasher::derive(&key(KEY)).digest(&[b"value"]),
        KeyedHasher::derive(&key(&other)).digest(&[b"value"])
    );
}

#[test]
fn debug_prints_neither_values_nor_keys() {
    let shown = format!(
        "{:?} {:?}",
        key("canary"),
        KeyedHasher::derive(&key("canary"))
    );
    assert!(
        !shown.contains("canary") && !shown.contains("99"),
        "{shown}"
    );
}
