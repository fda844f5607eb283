//! Secret values, the references to them, and the hashes that reveal changed values.

mod keyed_hasher;

use std::collections::BTreeMap;
use std::fmt;

use fastllm_crds::{FastllmProxy, SecretKeyRef};

use crate::names::Component;

pub use keyed_hasher::KeyedHasher;

/// A value of a Secret. `Debug` does not print it.
#[derive(Clone, Eq, PartialEq)]
pub struct SecretValue(Vec<u8>);

impl SecretValue {
    /// Wraps the bytes.
    #[must_use]
    pub fn new(bytes: Vec<u8>) -> Self {
        Self(bytes)
    }

    /// The bytes, for checks and hashes only.
    #[must_use]
    pub fn expose(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Debug for SecretValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SecretValue(…)")
    }
}

/// The data of one Secret.
pub type SecretData = BTreeMap<String, SecretValue>;

/// The hashes of the values that a resource references. It does not contain the values.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct InputHashes {
    values: BTreeMap<&'static str, String>,
    hasher: KeyedHasher,
}

impl InputHashes {
    /// Hashes each value with a key that is derived from the encryption key.
    #[must_use]
    pub fn new(encryption_key: &SecretValue, values: &BTreeMap<&'static str, SecretValue>) -> Self {
        let hasher = KeyedHasher::derive(encryption_key);
        let values = values
            .iter()
            .map(|(field, value)| (*field, hasher.digest(&[field.as_bytes(), value.expose()])))
            .collect();
        Self { values, hasher }
    }

    /// Hash of a field's value; empty if the field was not read.
    #[must_use]
    pub fn value_hash(&self, field: &str) -> &str {
        self.values.get(field).map_or("", String::as_str)
    }

    /// Hash of all values that a component reads. Other components' values are not
    /// included, so their changes do not restart its pods.
    #[must_use]
    pub fn plane_hash(&self, proxy: &FastllmProxy, component: Component) -> String {
        let fields = input_references(proxy, component);
        let mut parts: Vec<&[u8]> = vec![component.container().as_bytes()];
        for (field, _) in &fields {
            parts.push(field.as_bytes());
            parts.push(self.value_hash(field).as_bytes());
        }
        self.hasher.digest(&parts)
    }
}

/// The Secret references of a component, with the path of each field.
#[must_use]
pub fn input_references(
    proxy: &FastllmProxy,
    component: Component,
) -> Vec<(&'static str, &SecretKeyRef)> {
    let spec = &proxy.spec;
    match component {
        Component::Control => vec![
            ("database", &spec.database),
            ("encryptionKey", &spec.encryption_key),
            ("proxyToken", &spec.proxy_token),
        ],
        Component::Gateway => vec![("proxyToken", &spec.proxy_token)],
        Component::Bootstrap => {
            let mut inputs = vec![("database", &spec.database)];
            inputs.extend(
                spec.bootstrap
                    .iter()
                    .map(|b| ("bootstrap.password", &b.password)),
            );
            inputs
        }
    }
}

/// Every required reference, with the path of its field. The bootstrap admin's
/// password is required only until the account exists.
#[must_use]
pub fn required_references(
    proxy: &FastllmProxy,
    bootstrapped: bool,
) -> Vec<(&'static str, &SecretKeyRef)> {
    let spec = &proxy.spec;
    let mut all = vec![
        ("database", &spec.database),
        ("proxyToken", &spec.proxy_token),
        ("encryptionKey", &spec.encryption_key),
    ];
    if let Some(admin) = spec.bootstrap.as_ref().filter(|_| !bootstrapped) {
        all.push(("bootstrap.password", &admin.password));
    }
    all
}

#[cfg(test)]
mod tests;
