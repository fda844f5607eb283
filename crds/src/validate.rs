//! The validation rules of the CRD in Rust.
//!
//! The API server validates changed objects by the CEL rules of the types. This
//! module applies the same rules to objects that were stored before a rule
//! existed. A test against a real API server compares the two.

mod image;
mod resources;

use std::collections::BTreeSet;
use std::fmt;
use std::ops::RangeInclusive;

use kube::ResourceExt as _;

use crate::{FastllmProxy, SecretKeyRef};

use crate::dns::is_label;
use crate::messages::{
    ACCOUNT_NAME, IMAGE, LOG_LEVEL, PULL_SECRETS, REPLICAS, SECRET_KEY, SECRET_NAME,
};
use crate::reference::{is_secret_key, is_secret_name};
use image::is_image;

/// Maximum length of a resource's name. `NAME-bootstrap` is its longest child's
/// name, which may have 63 characters.
pub const MAX_NAME_LENGTH: usize = 63 - "-bootstrap".len();

/// Maximum length of the bootstrap admin's name, in bytes.
const MAX_ACCOUNT_NAME: usize = 128;

/// Maximum length of the log level.
const MAX_LOG_LEVEL: usize = 1024;

/// Maximum number of Secrets with registry credentials.
const MAX_PULL_SECRETS: usize = 32;

/// Allowed numbers of pods of a plane. Without a maximum, the API server would store
/// numbers that the operator cannot parse.
const POD_COUNTS: RangeInclusive<i32> = 0..=10_000;

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
    require("spec.image", is_image(&spec.image), IMAGE);
    require(
        "spec.imagePullSecrets",
        are_distinct_names(&spec.image_pull_secrets),
        PULL_SECRETS,
    );
    for (field, reference) in references(proxy) {
        require(field, is_secret_name(&reference.name), SECRET_NAME);
        require(field, is_secret_key(&reference.key), SECRET_KEY);
    }
    let bootstrap = spec.bootstrap.as_ref();
    require(
        "spec.bootstrap.name",
        bootstrap.is_none_or(|b| is_account_name(&b.name)),
        ACCOUNT_NAME,
    );
    require(
        "spec.control.replicas",
        POD_COUNTS.contains(&spec.control.replicas),
        REPLICAS,
    );
    require(
        "spec.proxy.replicas",
        POD_COUNTS.contains(&spec.proxy.replicas),
        REPLICAS,
    );
    require(
        "spec.observability.logLevel",
        is_log_level(&spec.observability.log_level),
        LOG_LEVEL,
    );
    found.extend(resources::violations(
        "spec.control.resources",
        spec.control.resources.as_ref(),
    ));
    found.extend(resources::violations(
        "spec.proxy.resources",
        spec.proxy.resources.as_ref(),
    ));
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

fn are_distinct_names(names: &[String]) -> bool {
    let distinct: BTreeSet<_> = names.iter().collect();
    distinct.len() == names.len()
        && names.len() <= MAX_PULL_SECRETS
        && names.iter().all(|name| is_secret_name(name))
}

/// The control plane's rule for names of principals.
fn is_account_name(name: &str) -> bool {
    (1..=MAX_ACCOUNT_NAME).contains(&name.len())
        && name.trim() == name
        && !name.chars().any(char::is_control)
}

fn is_log_level(filter: &str) -> bool {
    (1..=MAX_LOG_LEVEL).contains(&filter.len())
        && filter.bytes().all(|b| b == b' ' || b.is_ascii_graphic())
}

fn is_service_name(name: &str) -> bool {
    name.starts_with(|c: char| c.is_ascii_lowercase()) && is_label(name)
}

#[cfg(test)]
mod tests;
