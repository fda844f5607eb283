//! The admission rules, once more in Rust.
//!
//! The API server holds new objects to the CEL rules of the types; objects
//! that were stored before a rule existed meet the same rules here. A test
//! against a real API server keeps the two in step.

use std::collections::BTreeSet;
use std::fmt;
use std::ops::RangeInclusive;

use kube::ResourceExt as _;

use crate::{FastllmProxy, SecretKeyRef};

/// Longest name of a resource: `NAME-bootstrap` is the longest name of a child,
/// and a child's name may have 63 characters.
pub const MAX_NAME_LENGTH: usize = 63 - "-bootstrap".len();

/// Longest name of a Secret, and of a key in it, as Kubernetes has it.
const MAX_SECRET_NAME: usize = 253;

/// How many Secrets with registry credentials there may be.
const MAX_PULL_SECRETS: usize = 32;

/// How many pods a plane may have. Without an upper bound, a number that does
/// not fit would be stored, and the operator could not read it.
const REPLICAS: RangeInclusive<i32> = 0..=10_000;

/// A rule that a resource breaks.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Violation {
    /// Path of the field, as in `spec.database.name`.
    pub field: &'static str,
    /// What is wrong with it.
    pub message: &'static str,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.field, self.message)
    }
}

/// Every rule that the resource breaks, in the order of the fields.
#[must_use]
pub fn validate(proxy: &FastllmProxy) -> Vec<Violation> {
    let mut found = Vec::new();
    let mut hold = |field, rule: bool, message| {
        if !rule {
            found.push(Violation { field, message });
        }
    };
    let name = proxy.name_any();
    let spec = &proxy.spec;
    hold(
        "metadata.name",
        name.len() <= MAX_NAME_LENGTH,
        "has more than 53 characters",
    );
    hold(
        "metadata.name",
        is_service_name(&name),
        "is not a name for a Service",
    );
    hold("spec.image", !spec.image.is_empty(), "is empty");
    hold(
        "spec.imagePullSecrets",
        are_distinct_names(&spec.image_pull_secrets),
        "has a name twice, an empty one, or too many",
    );
    for (field, reference) in references(proxy) {
        hold(
            field,
            is_secret_name(&reference.name),
            "names no Secret: that is not a name for one",
        );
        hold(
            field,
            is_secret_key(&reference.key),
            "names no key of the Secret: that is not a name for one",
        );
    }
    let login = spec.bootstrap.as_ref();
    hold(
        "spec.bootstrap.name",
        login.is_none_or(|b| !b.name.is_empty()),
        "is empty",
    );
    hold(
        "spec.control.replicas",
        REPLICAS.contains(&spec.control.replicas),
        "is not between 0 and 10000",
    );
    hold(
        "spec.proxy.replicas",
        REPLICAS.contains(&spec.proxy.replicas),
        "is not between 0 and 10000",
    );
    hold(
        "spec.observability.logLevel",
        !spec.observability.log_level.is_empty(),
        "is empty",
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

/// What can be the name of a Secret. It becomes part of a request's path, so
/// nothing else may pass.
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
