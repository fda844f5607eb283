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

use image::is_image;

/// Maximum length of a resource's name. `NAME-bootstrap` is its longest child's
/// name, which may have 63 characters.
pub const MAX_NAME_LENGTH: usize = 63 - "-bootstrap".len();

/// Maximum length of the name of a Secret and of a key in it.
const MAX_SECRET_NAME: usize = 253;

/// Maximum length of the bootstrap admin's name, in bytes.
const MAX_ACCOUNT_NAME: usize = 128;

/// Maximum length of the log level.
const MAX_LOG_LEVEL: usize = 1024;

/// Maximum number of Secrets with registry credentials.
const MAX_PULL_SECRETS: usize = 32;

/// Allowed numbers of pods of a plane. Without a maximum, the API server would store
/// numbers that the operator cannot parse.
const POD_COUNTS: RangeInclusive<i32> = 0..=10_000;

// The messages of the rules, in the schema and here.
pub(crate) const IMAGE: &str = "must be an image reference without spaces and, except for the \
    registry and the tag, without capitals, such as registry.example.com/team/fastllm-proxy:1.0, \
    of at most 255 characters and a digest";
pub(crate) const PULL_SECRETS: &str = "must contain at most 32 distinct names of Secrets";
pub(crate) const SECRET_NAME: &str = "the name of the Secret must have 1 to 253 characters and \
    consist of lowercase letters, digits and hyphens, in parts that are separated by single dots \
    and begin and end with a letter or digit";
pub(crate) const SECRET_KEY: &str = "the key in the Secret must have 1 to 253 characters, which \
    are letters, digits, hyphens, underscores and dots, and must not be \".\" or begin with \"..\"";
pub(crate) const ACCOUNT_NAME: &str = "must have 1 to 128 bytes, and must not begin or end with \
    a space or contain control characters such as line breaks";
pub(crate) const REPLICAS: &str = "must be between 0 and 10000";
pub(crate) const LOG_LEVEL: &str =
    "must have 1 to 1024 characters, which are visible ASCII characters and spaces";
pub(crate) const RESOURCE_NAMES: &str = "names must be cpu, memory, ephemeral-storage, or an \
    extended resource such as example.com/device";
pub(crate) const AMOUNTS: &str =
    "amounts must be quantities that are not negative, such as 500m or 2Gi";
pub(crate) const WHOLE_NUMBERS: &str = "amounts of extended resources must be whole numbers";
pub(crate) const WITHIN_LIMITS: &str = "requests must not exceed limits";
pub(crate) const EXTENDED_LIMITS: &str =
    "a request of an extended resource requires a limit with the same amount";

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

/// Whether a Secret can have this name. The name becomes part of a request path.
fn is_secret_name(name: &str) -> bool {
    name.len() <= MAX_SECRET_NAME && is_subdomain(name)
}

fn is_secret_key(key: &str) -> bool {
    let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    !key.is_empty()
        && key.len() <= MAX_SECRET_NAME
        && key != "."
        && !key.starts_with("..")
        && key.chars().all(allowed)
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

/// Whether each part between dots is a label.
fn is_subdomain(name: &str) -> bool {
    name.split('.').all(is_label)
}

/// Whether a text consists of lowercase letters, digits and inner hyphens.
fn is_label(text: &str) -> bool {
    let alphanumeric = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
    text.starts_with(alphanumeric)
        && text.ends_with(alphanumeric)
        && text.chars().all(|c| alphanumeric(c) || c == '-')
}
