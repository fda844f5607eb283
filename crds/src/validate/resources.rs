//! Resource requests and limits.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::ResourceRequirements;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

use super::Violation;
use crate::dns::is_subdomain;
use crate::messages::{AMOUNTS, EXTENDED_LIMITS, RESOURCE_NAMES, WHOLE_NUMBERS, WITHIN_LIMITS};
use crate::quantity_nanos;

/// Billionths in one unit.
const NANOS: i128 = 1_000_000_000;

/// Maximum length of a resource's name.
const MAX_NAME: usize = 253;

/// Maximum length of the part of an extended resource's name after the slash.
const MAX_SUFFIX: usize = 63;

type Amounts = BTreeMap<String, Quantity>;

/// The violated rules of a field with resources.
pub(super) fn violations(
    field: &'static str,
    resources: Option<&ResourceRequirements>,
) -> Vec<Violation> {
    let Some(resources) = resources else {
        return Vec::new();
    };
    let none = Amounts::new();
    let requests = resources.requests.as_ref().unwrap_or(&none);
    let limits = resources.limits.as_ref().unwrap_or(&none);
    let all = || requests.iter().chain(limits);
    let rules = [
        (all().all(|(name, _)| is_resource(name)), RESOURCE_NAMES),
        (
            all().all(|(_, amount)| value(amount).is_some_and(|nanos| nanos >= 0)),
            AMOUNTS,
        ),
        (
            all().all(|(name, amount)| !is_extended(name) || is_whole(amount)),
            WHOLE_NUMBERS,
        ),
        (
            requests
                .iter()
                .all(|(name, amount)| is_within(amount, limits.get(name))),
            WITHIN_LIMITS,
        ),
        (
            requests
                .iter()
                .all(|(name, amount)| !is_extended(name) || limits.get(name) == Some(amount)),
            EXTENDED_LIMITS,
        ),
    ];
    rules
        .into_iter()
        .filter(|(valid, _)| !valid)
        .map(|(_, message)| Violation { field, message })
        .collect()
}

fn value(amount: &Quantity) -> Option<i128> {
    quantity_nanos(&amount.0)
}

fn is_extended(name: &str) -> bool {
    name.contains('/')
}

fn is_resource(name: &str) -> bool {
    if matches!(name, "cpu" | "memory" | "ephemeral-storage") {
        return true;
    }
    let Some((domain, suffix)) = name.split_once('/') else {
        return false;
    };
    let alphanumeric = |c: char| c.is_ascii_alphanumeric();
    name.len() <= MAX_NAME
        && !name.contains("kubernetes.io/")
        && is_subdomain(domain)
        && suffix.len() <= MAX_SUFFIX
        && suffix.starts_with(alphanumeric)
        && suffix.ends_with(alphanumeric)
        && suffix
            .chars()
            .all(|c| alphanumeric(c) || matches!(c, '-' | '_' | '.'))
}

/// Amounts that are not quantities are covered by another rule.
fn is_whole(amount: &Quantity) -> bool {
    value(amount).is_none_or(|nanos| nanos % NANOS == 0)
}

fn is_within(request: &Quantity, limit: Option<&Quantity>) -> bool {
    match (value(request), limit.and_then(value)) {
        (Some(request), Some(limit)) => request <= limit,
        _ => true,
    }
}
