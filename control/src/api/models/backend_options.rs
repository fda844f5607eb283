//! How gateways treat a backend: the fields of the API for it, and what they
//! have to look like.

use std::collections::BTreeMap;

use fastllm_contract::{HealthCheck, Secret};
use fastllm_engine::{InvalidHealthCheck, PathTemplate, check_health_check, is_reserved_header};
use http::HeaderName;
use serde::Serialize;
use utoipa::ToSchema;

use super::upstream;
use crate::api::framework::{ApiError, Patch, checks};
use crate::crypto::Vault;
use crate::db::backends::{self, ExtraHeaders, Handling};

/// The most extra headers, and members of the query.
const MOST_EXTRAS: usize = 32;

const MAX_PATH: usize = 1024;

/// The most bytes of all members of the query: gateways leave out a backend
/// whose target is longer than 64 KiB, and a byte may be written as three.
const MAX_QUERY: usize = 4096;

/// How gateways treat a backend. The values of extra headers are never shown.
#[derive(Serialize, ToSchema)]
pub(crate) struct HandlingView {
    /// It gets no new request; those under way are finished.
    draining: bool,
    /// The most requests at once from each gateway; `null` is unlimited.
    max_concurrency: Option<i32>,
    /// The most requests that wait at each gateway while it is full.
    max_queue: i32,
    /// How long one of them waits, in milliseconds.
    queue_timeout_ms: i32,
    /// The names of the extra headers.
    extra_header_names: Vec<String>,
    extra_query: BTreeMap<String, String>,
    path_template: Option<String>,
    /// Otherwise it is taken for healthy without being asked.
    health_check: bool,
    health_path: String,
    health_method: String,
    health_expect: String,
}

impl From<Handling> for HandlingView {
    fn from(handling: Handling) -> Self {
        let Handling {
            draining,
            max_concurrency,
            max_queue,
            queue_timeout_ms,
            extra_headers,
            extra_query,
            path_template,
            health_check,
            health_path,
            health_method,
            health_expect,
        } = handling;
        Self {
            draining,
            max_concurrency,
            max_queue,
            queue_timeout_ms,
            extra_header_names: extra_headers.map_or_else(Vec::new, |headers| headers.names),
            extra_query,
            path_template,
            health_check,
            health_path,
            health_method,
            health_expect,
        }
    }
}

/// A change of it. A creation is a change of the defaults.
pub(crate) struct HandlingPatch {
    pub(crate) draining: Option<bool>,
    pub(crate) max_concurrency: Patch<i32>,
    pub(crate) max_queue: Option<i32>,
    pub(crate) queue_timeout_ms: Option<i32>,
    pub(crate) extra_headers: Patch<BTreeMap<String, Secret>>,
    pub(crate) extra_query: Patch<BTreeMap<String, String>>,
    pub(crate) path_template: Patch<String>,
    pub(crate) health_check: Option<bool>,
    pub(crate) health_path: Option<String>,
    pub(crate) health_method: Option<String>,
    pub(crate) health_expect: Option<String>,
}

impl HandlingPatch {
    /// The new state of backend `id`, whose credential is in `auth_header`.
    pub(crate) fn apply(
        self,
        old: Handling,
        id: i64,
        auth_header: &str,
        vault: &Vault,
    ) -> Result<Handling, ApiError> {
        let headers = self
            .extra_headers
            .try_map(|headers| sealed(headers, id, vault))?;
        let headers = match headers {
            Patch::Keep => Patch::Keep,
            Patch::Set(Some(headers)) => Patch::Set(headers),
            Patch::Set(None) | Patch::Clear => Patch::Clear,
        };
        let new = Handling {
            draining: self.draining.unwrap_or(old.draining),
            max_concurrency: self
                .max_concurrency
                .try_map(checks::between("max_concurrency", 1, 100_000))?
                .apply(old.max_concurrency),
            max_queue: self
                .max_queue
                .map_or(Ok(old.max_queue), checks::between("max_queue", 0, 10_000))?,
            queue_timeout_ms: self.queue_timeout_ms.map_or(
                Ok(old.queue_timeout_ms),
                checks::between("queue_timeout_ms", 1, 600_000),
            )?,
            extra_headers: headers.apply(old.extra_headers),
            extra_query: self
                .extra_query
                .try_map(query)?
                .apply(Some(old.extra_query))
                .unwrap_or_default(),
            path_template: self
                .path_template
                .try_map(template)?
                .apply(old.path_template),
            health_check: self.health_check.unwrap_or(old.health_check),
            health_path: self.health_path.unwrap_or(old.health_path),
            health_method: self.health_method.unwrap_or(old.health_method),
            health_expect: self.health_expect.unwrap_or(old.health_expect),
        };
        check_health(&new)?;
        let mut names = new.extra_headers.iter().flat_map(|headers| &headers.names);
        if names.any(|name| name == auth_header) {
            return Err(wrong_header(
                "may not hold the header that auth_header names",
            ));
        }
        Ok(new)
    }
}

fn wrong_header(reason: &str) -> ApiError {
    ApiError::invalid("extra_headers", format!("extra_headers {reason}"))
}

/// The headers as they are stored; nothing where there are none.
fn sealed(
    headers: BTreeMap<String, Secret>,
    id: i64,
    vault: &Vault,
) -> Result<Option<ExtraHeaders>, ApiError> {
    if headers.len() > MOST_EXTRAS {
        return Err(wrong_header("may hold 32 headers at most"));
    }
    let mut checked = BTreeMap::new();
    for (name, value) in headers {
        let name = HeaderName::from_bytes(name.as_bytes())
            .map_err(|_| wrong_header("holds a name that is none of a header"))?;
        if is_reserved_header(&name) {
            return Err(wrong_header(
                "may not hold a header of the connection or the body",
            ));
        }
        let value = upstream::credential(value.expose().to_owned()).map_err(|_| {
            wrong_header("must have values of printable ASCII without spaces around them")
        })?;
        if checked.insert(name.as_str().to_owned(), value).is_some() {
            return Err(wrong_header("holds a name twice"));
        }
    }
    if checked.is_empty() {
        return Ok(None);
    }
    let text = serde_json::to_string(&checked).map_err(|_| wrong_header("cannot be stored"))?;
    Ok(Some(ExtraHeaders {
        sealed: vault.seal(&backends::headers_identity(id), &Secret::new(text))?,
        names: checked.into_keys().collect(),
    }))
}

fn query(query: BTreeMap<String, String>) -> Result<BTreeMap<String, String>, ApiError> {
    if query.len() > MOST_EXTRAS || query.contains_key("") {
        return Err(ApiError::invalid(
            "extra_query",
            "extra_query may hold 32 members at most, each with a name",
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
            format!("extra_query may have {MAX_QUERY} bytes at most"),
        ));
    }
    Ok(query)
}

fn template(text: String) -> Result<String, ApiError> {
    let wrong = |reason: String| ApiError::invalid("path_template", reason);
    if text.len() > MAX_PATH {
        return Err(wrong("path_template is too long".to_owned()));
    }
    PathTemplate::parse(&text).map_err(|error| wrong(format!("path_template: {error}")))?;
    Ok(text)
}

fn check_health(handling: &Handling) -> Result<(), ApiError> {
    let described = HealthCheck {
        enabled: handling.health_check,
        path: handling.health_path.clone(),
        method: handling.health_method.clone(),
        expect: handling.health_expect.clone(),
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
