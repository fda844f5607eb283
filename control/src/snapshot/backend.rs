use std::collections::BTreeMap;

use fastllm_contract::{
    Backend, BackendId, Concurrency, HealthCheck, Protocol, RequestOptions, Secret,
};

use crate::crypto::{OpenError, Vault};
use crate::db::backends::{self, BackendRow};

/// Why a backend cannot be published.
#[derive(Debug)]
pub(super) enum Unpublished {
    /// The backend is omitted, for this reason.
    Unusable(String),
    /// Its credential is encrypted with another key: nothing is published without it.
    UnknownKey(OpenError),
}

impl Unpublished {
    fn of(what: &str, error: OpenError) -> Self {
        match error {
            OpenError::UnknownKey(_) => Self::UnknownKey(error),
            OpenError::Malformed | OpenError::Forged => {
                Self::Unusable(format!("cannot open {what}: {error}"))
            }
        }
    }
}

/// The published form of a backend.
pub(super) fn published(row: BackendRow, vault: &Vault) -> Result<Backend, Unpublished> {
    let protocol = match row.protocol.as_str() {
        "openai" => Protocol::Openai,
        "anthropic" => Protocol::Anthropic,
        "gemini" => Protocol::Gemini,
        other => {
            let reason = format!("protocol {other} is unknown");
            return Err(Unpublished::Unusable(reason));
        }
    };
    let api_key = row
        .upstream_api_key
        .map(|blob| vault.open(&backends::identity(row.id), &blob))
        .transpose()
        .map_err(|error| Unpublished::of("the credential", error))?;
    let headers = match &row.extra_headers {
        Some(sealed) => opened(sealed, row.id, vault)?,
        None => BTreeMap::new(),
    };
    Ok(Backend {
        id: BackendId(row.id.unsigned_abs()),
        api_base: row.api_base,
        upstream_model: row.upstream_model,
        api_key,
        protocol,
        auth_header: row.auth_header,
        auth_scheme: row.auth_scheme,
        default_max_tokens: row
            .default_max_tokens
            .and_then(|max| u32::try_from(max).ok()),
        weight: row.weight.unsigned_abs(),
        draining: row.draining,
        concurrency: Concurrency {
            max: row.max_concurrency.map(i32::unsigned_abs),
            max_queue: row.max_queue.unsigned_abs(),
            queue_timeout_ms: u64::from(row.queue_timeout_ms.unsigned_abs()),
        },
        request_options: RequestOptions {
            headers,
            query: row.extra_query.into_inner(),
            path_template: row.path_template,
        },
        health: HealthCheck {
            enabled: row.health_check,
            path: row.health_path,
            method: row.health_method,
            expect: row.health_expect,
        },
    })
}

fn opened(sealed: &[u8], id: i64, vault: &Vault) -> Result<BTreeMap<String, Secret>, Unpublished> {
    let text = vault
        .open(&backends::headers_identity(id), sealed)
        .map_err(|error| Unpublished::of("the extra headers", error))?;
    // The parser's error could contain a value.
    serde_json::from_str(text.expose())
        .map_err(|_| Unpublished::Unusable("cannot parse the extra headers".to_owned()))
}
