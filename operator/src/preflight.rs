//! Checks of the referenced Secrets before anything is applied.

use std::collections::BTreeMap;
use std::str;

use fastllm_crds::{FastllmProxy, Reason, SecretKeyRef};
use url::Url;

use crate::observe::ReadOutcome;
use crate::problem::{Problem, ProblemScope};
use crate::secrets::{InputHashes, SecretData, SecretValue, required_references};

/// Checks every required reference, and hashes the values.
///
/// # Errors
/// All missing and invalid values, in the order of the fields.
pub fn preflight(
    proxy: &FastllmProxy,
    secrets: &BTreeMap<String, ReadOutcome<Option<SecretData>>>,
    bootstrapped: bool,
) -> Result<InputHashes, Vec<Problem>> {
    let mut values = BTreeMap::new();
    let mut problems = Vec::new();
    for (field, reference) in required_references(proxy, bootstrapped) {
        match value(field, reference, secrets) {
            Ok(value) => drop(values.insert(field, value)),
            Err(problem) => problems.push(problem),
        }
    }
    match values.get("encryptionKey").cloned() {
        Some(key) if problems.is_empty() => Ok(InputHashes::new(&key, &values)),
        _ => Err(problems),
    }
}

fn value(
    field: &'static str,
    reference: &SecretKeyRef,
    secrets: &BTreeMap<String, ReadOutcome<Option<SecretData>>>,
) -> Result<SecretValue, Problem> {
    let SecretKeyRef { name, key } = reference;
    let problem = |reason, defect: &str| {
        Problem::new(
            ProblemScope::Secrets,
            reason,
            format!("spec.{field}: {defect}"),
        )
    };
    if !reference.is_valid() {
        return Err(problem(Reason::InvalidValue, "the reference is invalid"));
    }
    let data = match secrets.get(name) {
        Some(ReadOutcome::Known(Some(data))) => data,
        Some(ReadOutcome::Known(None)) => {
            let defect = format!("Secret {name:?} does not exist (required key: {key:?})");
            return Err(problem(Reason::SecretNotFound, &defect));
        }
        Some(ReadOutcome::Unknown(failure)) => {
            let defect = format!("Secret {name:?} could not be read (key {key:?}): {failure}");
            return Err(problem(failure.reason(), &defect));
        }
        None => {
            let defect = format!("Secret {name:?} was not read (key {key:?})");
            return Err(problem(Reason::ReadFailed, &defect));
        }
    };
    let Some(value) = data.get(key) else {
        let defect = format!("Secret {name:?} has no key {key:?}");
        return Err(problem(Reason::KeyNotFound, &defect));
    };
    if value.expose().is_empty() {
        let defect = format!("key {key:?} of Secret {name:?} is empty");
        return Err(problem(Reason::KeyNotFound, &defect));
    }
    match check(field, value.expose()) {
        Ok(()) => Ok(value.clone()),
        Err(defect) => {
            let defect = format!("key {key:?} of Secret {name:?} {defect}");
            Err(problem(Reason::InvalidValue, &defect))
        }
    }
}

/// What is wrong with a value, without the value.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
enum Defect {
    #[error("is not valid UTF-8")]
    NotUtf8,
    #[error("begins or ends with whitespace")]
    SurroundingSpace,
    #[error("is not a postgres:// or postgresql:// URL")]
    NotPostgresUrl,
    #[error("is not 64 hexadecimal digits")]
    NotEncryptionKey,
    #[error("contains characters other than visible ASCII")]
    NotVisibleAscii,
}

/// Checks the format of a field's value.
fn check(field: &str, value: &[u8]) -> Result<(), Defect> {
    let text = str::from_utf8(value).map_err(|_| Defect::NotUtf8)?;
    if text.trim() != text {
        return Err(Defect::SurroundingSpace);
    }
    match field {
        "database" => match Url::parse(text) {
            Ok(url) if matches!(url.scheme(), "postgres" | "postgresql") => Ok(()),
            _ => Err(Defect::NotPostgresUrl),
        },
        "encryptionKey" => {
            let hexadecimal = text.len() == 64 && text.bytes().all(|b| b.is_ascii_hexdigit());
            hexadecimal.then_some(()).ok_or(Defect::NotEncryptionKey)
        }
        "proxyToken" => {
            let visible = text.bytes().all(|b| b.is_ascii_graphic());
            visible.then_some(()).ok_or(Defect::NotVisibleAscii)
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests;
