//! A reference to a key of a Secret.
#![expect(
    unreachable_pub,
    reason = "the schema derive expands to items inside functions"
)]

use std::fmt;

use kube::KubeSchema;
use serde::{Deserialize, Serialize};

/// Reference to a key of a Secret in the namespace of the resource.
#[derive(
    Clone, Debug, Default, Deserialize, Eq, Hash, KubeSchema, Ord, PartialEq, PartialOrd, Serialize,
)]
#[serde(rename_all = "camelCase")]
pub struct SecretKeyRef {
    /// Name of the Secret.
    #[schemars(length(max = "crate::schema::MAX_STRING"))]
    #[x_kube(validation = Rule::new("self.size() <= 253 && self.matches('^[a-z0-9]([-a-z0-9]*[a-z0-9])?([.][a-z0-9]([-a-z0-9]*[a-z0-9])?)*$')").message(crate::validate::SECRET_NAME))]
    pub name: String,
    /// Key in the Secret's data.
    #[schemars(length(max = "crate::schema::MAX_STRING"))]
    #[x_kube(validation = Rule::new("self.size() <= 253 && self != '.' && !self.startsWith('..') && self.matches('^[-._a-zA-Z0-9]+$')").message(crate::validate::SECRET_KEY))]
    pub key: String,
}

impl fmt::Display for SecretKeyRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.name, self.key)
    }
}
