//! A reference to one key of one Secret.
#![expect(
    unreachable_pub,
    reason = "the schema derive expands to items inside functions"
)]

use std::fmt;

use kube::KubeSchema;
use serde::{Deserialize, Serialize};

/// One key of one Secret in the namespace of the resource.
#[derive(
    Clone, Debug, Default, Deserialize, Eq, Hash, KubeSchema, Ord, PartialEq, PartialOrd, Serialize,
)]
#[serde(rename_all = "camelCase")]
pub struct SecretKeyRef {
    /// Name of the Secret.
    #[x_kube(validation = Rule::new("self.size() > 0").message("the name of the Secret must not be empty"))]
    pub name: String,
    /// Key inside the Secret's data.
    #[x_kube(validation = Rule::new("self.size() > 0").message("the key inside the Secret must not be empty"))]
    pub key: String,
}

impl fmt::Display for SecretKeyRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.name, self.key)
    }
}
