//! A reference to a key of a Secret.
#![expect(
    unreachable_pub,
    reason = "the schema derive expands to items inside functions"
)]

use std::fmt;

use kube::KubeSchema;
use serde::{Deserialize, Serialize};

use crate::dns::is_subdomain;

/// Maximum length of the name of a Secret and of a key in it.
const MAX_SECRET_NAME: usize = 253;

/// Reference to a key of a Secret in the namespace of the resource.
#[derive(
    Clone, Debug, Default, Deserialize, Eq, Hash, KubeSchema, Ord, PartialEq, PartialOrd, Serialize,
)]
#[serde(rename_all = "camelCase")]
pub struct SecretKeyRef {
    /// Name of the Secret.
    #[schemars(length(max = "crate::schema::MAX_STRING"))]
    #[x_kube(validation = Rule::new("self.size() <= 253 && self.matches('^[a-z0-9]([-a-z0-9]*[a-z0-9])?([.][a-z0-9]([-a-z0-9]*[a-z0-9])?)*$')").message(crate::messages::SECRET_NAME))]
    pub name: String,
    /// Key in the Secret's data.
    #[schemars(length(max = "crate::schema::MAX_STRING"))]
    #[x_kube(validation = Rule::new("self.size() <= 253 && self != '.' && !self.startsWith('..') && self.matches('^[-._a-zA-Z0-9]+$')").message(crate::messages::SECRET_KEY))]
    pub key: String,
}

impl fmt::Display for SecretKeyRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.name, self.key)
    }
}

impl SecretKeyRef {
    /// Whether a Secret can have this name and key. The name becomes part of a
    /// request path, so one that was stored before the rules must not be requested.
    #[must_use]
    pub fn is_valid(&self) -> bool {
        is_secret_name(&self.name) && is_secret_key(&self.key)
    }
}

pub(crate) fn is_secret_name(name: &str) -> bool {
    name.len() <= MAX_SECRET_NAME && is_subdomain(name)
}

pub(crate) fn is_secret_key(key: &str) -> bool {
    let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    !key.is_empty()
        && key.len() <= MAX_SECRET_NAME
        && key != "."
        && !key.starts_with("..")
        && key.chars().all(allowed)
}
