//! The validation rules of the CRD in Rust.
//!
//! The API server validates changed objects by the CEL rules of the types. This
//! module applies the same rules to objects that were stored before a rule
//! existed. A test against a real API server compares the two.

use std::collections::BTreeSet;
use std::fmt;
use std::ops::RangeInclusive;

use kube::ResourceExt as _;

use crate::{FastllmProxy, SecretKeyRef};

/// Maximum length of a resource's name. `NAME-bootstrap` is its longest child's
/// name, which may have 63 characters.
pub const MAX_NAME_LENGTH: usize = 63 - "-bootstrap".len();

/// Maximum length of the name of a Secret and of a key in it.
const MAX_SECRET_NAME: usize = 253;

/// Maximum number of Secrets with registry credentials.
const MAX_PULL_SECRETS: usize = 32;

/// Allowed numbers of pods of a plane. Without a maximum, the API server would store
/// numbers that the operator cannot parse.
const REPLICAS: RangeInclusive<i32> = 0..=10_000;

/// A violated rule.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Violation {
    /// Path of the field, as in `spec.database.name`.
    pub field: &'static str,
    /// The rule.
    pub message: &'static str,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.field, self.message)
    }
}

/// Returns the violated rules in the order of the fields.
#[must_use]
pub fn validate(proxy: &FastllmProxy) -> Vec<Violation> {
    let mut found = Vec::new();
    let mut require = |field, valid: bool, message| {
        if !valid {
            found.push(Violation { field, message });
        }
    };
    let name = proxy.name_any();
    let spec = &proxy.spec;
    require(
        "metadata.name",
        name.len() <= MAX_NAME_LENGTH,
        "must have at most 53 characters",
    );
    require(
        "metadata.name",
        is_service_name(&name),
        "must be a valid name of a Service",
    );
    require("spec.image", !spec.image.is_empty(), "must not be empty");
    require(
        "spec.imagePullSecrets",
        are_distinct_names(&spec.image_pull_secrets),
        "must contain at most 32 distinct, non-empty names",
    );
    for (field, reference) in references(proxy) {
        require(
            field,
            is_secret_name(&reference.name),
            "must contain a valid name of a Secret",
        );
        require(
            field,
            is_secret_key(&reference.key),
            "must contain a valid key of a Secret",
        );
    }
    let bootstrap = spec.bootstrap.as_ref();
    require(
        "spec.bootstrap.name",
        bootstrap.is_none_or(|b| !b.name.is_empty()),
        "must not be empty",
    );
    require(
        "spec.control.replicas",
        REPLICAS.contains(&spec.control.replicas),
        "must be between 0 and 10000",
    );
    require(
        "spec.proxy.replicas",
        REPLICAS.contains(&spec.proxy.replicas),
        "must be between 0 and 10000",
    );
    require(
        "spec.observability.logLevel",
        !spec.observability.log_level.is_empty(),
        "must not be empty",
    );
    found
}

/// Each Secret reference with the path of its field, in the order of the fields.
fn references(proxy: &FastllmProxy) -> impl Iterator<Item = (&'static str, &SecretKeyRef)> {
    let spec = &proxy.spec;
    [
        ("spec.database", &spec.database),
        ("spec.proxyToken", &spec.proxy_token),
        ("spec.encryptionKey", &spec.encryption_key),
    ]
    .into_iter()
    .chain(
        spec.bootstrap
            .iter()
            .map(|b| ("spec.bootstrap.password", &b.password)),
    )
}

/// Whether a Secret can have this name. The name becomes part of a request path.
fn is_secret_name(name: &str) -> bool {
    let alphanumeric = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
    name.len() <= MAX_SECRET_NAME
        && name.starts_with(alphanumeric)
        && name.ends_with(alphanumeric)
        && name
            .chars()
            .all(|c| alphanumeric(c) || matches!(c, '-' | '.'))
}

fn is_secret_key(key: &str) -> bool {
    let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    !key.is_empty() && key.len() <= MAX_SECRET_NAME && key.chars().all(allowed)
}

fn are_distinct_names(names: &[String]) -> bool {
    let distinct: BTreeSet<_> = names.iter().collect();
    distinct.len() == names.len()
        && names.len() <= MAX_PULL_SECRETS
        && names
            .iter()
            .all(|name| (1..=MAX_SECRET_NAME).contains(&name.chars().count()))
}

fn is_service_name(name: &str) -> bool {
    let alphanumeric = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
    name.starts_with(|c: char| c.is_ascii_lowercase())
        && name.ends_with(alphanumeric)
        && name.chars().all(|c| alphanumeric(c) || c == '-')
}
