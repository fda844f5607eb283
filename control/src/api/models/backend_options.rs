//! Checks of how gateways treat a backend: its extra headers, query, path and
//! health check.

use std::collections::BTreeMap;

use fastllm_contract::{HealthCheck, Secret};
use fastllm_engine::{InvalidHealthCheck, PathTemplate, check_health_check, is_reserved_header};
use http::HeaderName;

use super::upstream;
use crate::api::framework::{ApiError, Patch, checks};
use crate::crypto::Vault;
use crate::db::backends::{self, BackendRow};

/// The maximum number of extra headers, and of query parameters.
const MAX_EXTRAS: usize = 32;

const MAX_PATH: usize = 1024;

/// The maximum length of all query parameters, in bytes: gateways leave out a
/// backend whose request target is longer than 64 KiB, and percent-encoding can
/// triple the length.
const MAX_QUERY: usize = 4096;

fn wrong_header(reason: &str) -> ApiError {
    ApiError::invalid("extra_headers", format!("extra_headers {reason}"))
}

pub(crate) fn set_extra_headers(
    row: &mut BackendRow,
    headers: Patch<BTreeMap<String, Secret>>,
    vault: &Vault,
) -> Result<(), ApiError> {
    let headers = match headers {
        Patch::Keep => return Ok(()),
        Patch::Clear => BTreeMap::new(),
        Patch::Set(headers) => checked_headers(headers)?,
    };
    row.extra_headers = None;
    if !headers.is_empty() {
        let text = serde_json::to_string(&headers).map_err(|_| wrong_header("cannot be stored"))?;
        let identity = backends::headers_identity(row.id);
        row.extra_headers = Some(vault.seal(&identity, &Secret::new(text))?);
    }
    row.extra_header_names = headers.into_keys().collect();
    Ok(())
}

fn checked_headers(
    headers: BTreeMap<String, Secret>,
) -> Result<BTreeMap<String, String>, ApiError> {
    if headers.len() > MAX_EXTRAS {
        return Err(wrong_header("may have at most 32 headers"));
    }
    let mut checked = BTreeMap::new();
    for (name, value) in headers {
        let name = HeaderName::from_bytes(name.as_bytes())
            .map_err(|_| wrong_header("contains an invalid header name"))?;
        if is_reserved_header(&name) {
            return Err(wrong_header(
                "may not contain a header of the connection or the body",
            ));
        }
        let value = upstream::credential(value.expose().to_owned()).map_err(|_| {
            wrong_header("must have values of printable ASCII without surrounding spaces")
        })?;
        if checked.insert(name.as_str().to_owned(), value).is_some() {
            return Err(wrong_header("contains a name twice"));
        }
    }
    Ok(checked)
}

pub(crate) fn set_extra_query(
    row: &mut BackendRow,
    query: Patch<BTreeMap<String, String>>,
) -> Result<(), ApiError> {
    row.extra_query.0 = match query {
        Patch::Keep => return Ok(()),
        Patch::Clear => BTreeMap::new(),
        Patch::Set(query) => checked_query(query)?,
    };
    Ok(())
}

fn checked_query(query: BTreeMap<String, String>) -> Result<BTreeMap<String, String>, ApiError> {
    if query.len() > MAX_EXTRAS || query.contains_key("") {
        return Err(ApiError::invalid(
            "extra_query",
            "extra_query may have at most 32 parameters, each with a name",
        ));
    }
    for (name, value) in &query {
        checks::text("extra_query", name.clone())?;
        checks::text("extra_query", value.clone())?;
    }
    let length: usize = query
        .iter()
        .map(|(name, value)| name.len() + value.len())
        .sum();
    if length > MAX_QUERY {
        return Err(ApiError::invalid(
            "extra_query",
            format!("extra_query may have at most {MAX_QUERY} bytes"),
        ));
    }
    Ok(query)
}

pub(crate) fn path_template(field: &'static str, text: String) -> Result<String, ApiError> {
    let wrong = |reason: String| ApiError::invalid(field, reason);
    if text.len() > MAX_PATH {
        return Err(wrong(format!("{field} is too long")));
    }
    PathTemplate::parse(&text).map_err(|error| wrong(format!("{field}: {error}")))?;
    Ok(text)
}

/// Checks the fields that depend on each other.
pub(crate) fn check(row: &BackendRow) -> Result<(), ApiError> {
    if row.extra_header_names.contains(&row.auth_header) {
        return Err(wrong_header(
            "may not contain the header that auth_header names",
        ));
    }
    check_health(row)
}

fn check_health(row: &BackendRow) -> Result<(), ApiError> {
    let described = HealthCheck {
        enabled: row.health_check,
        path: row.health_path.clone(),
        method: row.health_method.clone(),
        expect: row.health_expect.clone(),
    };
    let field = match check_health_check(&described) {
        Ok(()) if described.path.len() > MAX_PATH => InvalidHealthCheck::Path,
        Ok(()) if described.expect.len() > MAX_PATH => InvalidHealthCheck::Expect,
        Ok(()) => return Ok(()),
        Err(error) => error,
    };
    let name = match field {
        InvalidHealthCheck::Path => "health_path",
        InvalidHealthCheck::Method => "health_method",
        InvalidHealthCheck::Expect => "health_expect",
    };
    Err(ApiError::invalid(name, field.to_string()))
}
