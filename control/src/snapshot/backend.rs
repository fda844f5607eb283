use std::collections::BTreeMap;

use fastllm_contract::{
    Backend, BackendId, Concurrency, HealthCheck, Protocol, RequestOptions, Secret,
};

use crate::crypto::Vault;
use crate::db::backends::{self, BackendFields, BackendRow, ExtraHeaders, Handling};

/// What the gateways are told of a backend; else why it is left out.
pub(super) fn published(row: BackendRow, vault: &Vault) -> Result<Backend, String> {
    let BackendRow {
        id,
        model_id: _,
        fields,
    } = row;
    let BackendFields {
        api_base,
        upstream_model,
        upstream_api_key,
        protocol,
        auth_header,
        auth_scheme,
        default_max_tokens,
        weight,
        enabled: _,
        handling,
    } = fields;
    let protocol = match protocol.as_str() {
        "openai" => Protocol::Openai,
        "anthropic" => Protocol::Anthropic,
        "gemini" => Protocol::Gemini,
        other => return Err(format!("protocol {other} is unknown")),
    };
    let api_key = upstream_api_key
        .map(|blob| vault.open(&backends::identity(id), &blob))
        .transpose()
        .map_err(|error| format!("its credential does not open: {error}"))?;
    let handled = handled(handling, id, vault)?;
    Ok(Backend {
        id: BackendId(id.unsigned_abs()),
        api_base,
        upstream_model,
        api_key,
        protocol,
        auth_header,
        auth_scheme,
        default_max_tokens: default_max_tokens.and_then(|most| u32::try_from(most).ok()),
        weight: weight.unsigned_abs(),
        draining: handled.draining,
        concurrency: handled.concurrency,
        dialect: handled.dialect,
        health: handled.health,
    })
}

/// How gateways treat it, in the form in which they are told.
struct Handled {
    draining: bool,
    concurrency: Concurrency,
    dialect: RequestOptions,
    health: HealthCheck,
}

fn handled(handling: Handling, id: i64, vault: &Vault) -> Result<Handled, String> {
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
    Ok(Handled {
        draining,
        concurrency: Concurrency {
            max: max_concurrency.map(i32::unsigned_abs),
            max_queue: max_queue.unsigned_abs(),
            queue_timeout_ms: u64::from(queue_timeout_ms.unsigned_abs()),
        },
        dialect: RequestOptions {
            headers: extra_headers
                .map_or(Ok(BTreeMap::new()), |headers| opened(&headers, id, vault))?,
            query: extra_query,
            path_template,
        },
        health: HealthCheck {
            enabled: health_check,
            path: health_path,
            method: health_method,
            expect: health_expect,
        },
    })
}

fn opened(
    headers: &ExtraHeaders,
    id: i64,
    vault: &Vault,
) -> Result<BTreeMap<String, Secret>, String> {
    let text = vault
        .open(&backends::headers_identity(id), &headers.sealed)
        .map_err(|error| format!("its extra headers do not open: {error}"))?;
    // The error of a parser might repeat a value.
    serde_json::from_str(text.expose()).map_err(|_| "its extra headers cannot be read".to_owned())
}
