use std::collections::BTreeMap;

use fastllm_contract::{Concurrency, HealthCheck};
use sqlx::PgConnection;
use sqlx::types::Json;

use super::{DbError, only};

/// One upstream address of a model.
pub(crate) struct BackendRow {
    pub(crate) id: i64,
    pub(crate) model_id: i64,
    pub(crate) fields: BackendFields,
}

/// The fields of a backend.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct BackendFields {
    pub(crate) api_base: String,
    pub(crate) upstream_model: String,
    /// Sealed for this row; see [`identity`].
    pub(crate) upstream_api_key: Option<Vec<u8>>,
    pub(crate) protocol: String,
    pub(crate) auth_header: String,
    pub(crate) auth_scheme: Option<String>,
    pub(crate) default_max_tokens: Option<i32>,
    /// Share beside the others of the pool, from 1 to 1000.
    pub(crate) weight: i32,
    /// Kept and not published otherwise.
    pub(crate) enabled: bool,
    pub(crate) handling: Handling,
}

/// How gateways treat a backend.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Handling {
    pub(crate) draining: bool,
    pub(crate) max_concurrency: Option<i32>,
    pub(crate) max_queue: i32,
    pub(crate) queue_timeout_ms: i32,
    pub(crate) extra_headers: Option<ExtraHeaders>,
    pub(crate) extra_query: BTreeMap<String, String>,
    pub(crate) path_template: Option<String>,
    pub(crate) health_check: bool,
    pub(crate) health_path: String,
    pub(crate) health_method: String,
    pub(crate) health_expect: String,
}

/// Headers that a backend gets beside the usual ones.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ExtraHeaders {
    /// A JSON object, sealed for this row; see [`headers_identity`].
    pub(crate) sealed: Vec<u8>,
    /// In lower case, sorted; never empty.
    pub(crate) names: Vec<String>,
}

impl Default for Handling {
    /// As the columns' defaults.
    fn default() -> Self {
        let Concurrency {
            max: _,
            max_queue,
            queue_timeout_ms,
        } = Concurrency::default();
        let HealthCheck {
            enabled,
            path,
            method,
            expect,
        } = HealthCheck::default();
        Self {
            draining: false,
            max_concurrency: None,
            max_queue: i32::try_from(max_queue).unwrap_or(i32::MAX),
            queue_timeout_ms: i32::try_from(queue_timeout_ms).unwrap_or(i32::MAX),
            extra_headers: None,
            extra_query: BTreeMap::new(),
            path_template: None,
            health_check: enabled,
            health_path: path,
            health_method: method,
            health_expect: expect,
        }
    }
}

/// What a backend's credential is sealed for.
pub(crate) fn identity(id: i64) -> String {
    format!("fastllm/model_backends/{id}/upstream_api_key")
}

/// What a backend's extra headers are sealed for.
pub(crate) fn headers_identity(id: i64) -> String {
    format!("fastllm/model_backends/{id}/extra_headers")
}

/// The backends of the given models, by id.
pub(crate) async fn of_models(
    connection: &mut PgConnection,
    model_ids: &[i64],
) -> Result<Vec<BackendRow>, DbError> {
    let rows = sqlx::query!(
        r#"SELECT id, model_id, api_base, upstream_model, upstream_api_key, protocol, auth_header,
                  auth_scheme, default_max_tokens, weight, enabled, draining, max_concurrency,
                  max_queue, queue_timeout_ms, extra_headers, extra_header_names,
                  extra_query AS "extra_query: Json<BTreeMap<String, String>>", path_template,
                  health_check, health_path, health_method, health_expect
             FROM model_backends WHERE model_id = ANY ($1) ORDER BY id"#,
        model_ids,
    )
    .fetch_all(connection)
    .await?;
    Ok(rows
        .into_iter()
        .map(|row| BackendRow {
            id: row.id,
            model_id: row.model_id,
            fields: BackendFields {
                api_base: row.api_base,
                upstream_model: row.upstream_model,
                upstream_api_key: row.upstream_api_key,
                protocol: row.protocol,
                auth_header: row.auth_header,
                auth_scheme: row.auth_scheme,
                default_max_tokens: row.default_max_tokens,
                weight: row.weight,
                enabled: row.enabled,
                handling: Handling {
                    draining: row.draining,
                    max_concurrency: row.max_concurrency,
                    max_queue: row.max_queue,
                    queue_timeout_ms: row.queue_timeout_ms,
                    extra_headers: row.extra_headers.map(|sealed| ExtraHeaders {
                        sealed,
                        names: row.extra_header_names,
                    }),
                    extra_query: row.extra_query.0,
                    path_template: row.path_template,
                    health_check: row.health_check,
                    health_path: row.health_path,
                    health_method: row.health_method,
                    health_expect: row.health_expect,
                },
            },
        })
        .collect())
}

pub(crate) async fn get(connection: &mut PgConnection, id: i64) -> Result<BackendRow, DbError> {
    let model_id = sqlx::query_scalar!("SELECT model_id FROM model_backends WHERE id = $1", id)
        .fetch_one(&mut *connection)
        .await?;
    let rows = of_models(connection, &[model_id]).await?;
    only(rows, |row| row.id == id)
}

/// An id for a new backend: its credential is sealed for the id before it is
/// stored.
pub(crate) async fn next_id(connection: &mut PgConnection) -> Result<i64, DbError> {
    let id = sqlx::query_scalar!(
        r#"SELECT nextval(pg_get_serial_sequence('model_backends', 'id')) AS "id!""#
    )
    .fetch_one(connection)
    .await?;
    Ok(id)
}

pub(crate) async fn insert(connection: &mut PgConnection, row: &BackendRow) -> Result<(), DbError> {
    let BackendRow {
        id,
        model_id,
        fields,
    } = row;
    sqlx::query!(
        "INSERT INTO model_backends (id, model_id, api_base, upstream_model) \
         VALUES ($1, $2, $3, $4)",
        *id,
        *model_id,
        fields.api_base,
        fields.upstream_model,
    )
    .execute(&mut *connection)
    .await?;
    update(connection, *id, fields).await
}

pub(crate) async fn update(
    connection: &mut PgConnection,
    id: i64,
    fields: &BackendFields,
) -> Result<(), DbError> {
    let BackendFields {
        api_base,
        upstream_model,
        upstream_api_key,
        protocol,
        auth_header,
        auth_scheme,
        default_max_tokens,
        weight,
        enabled,
        handling,
    } = fields;
    sqlx::query!(
        "UPDATE model_backends SET api_base = $2, upstream_model = $3, upstream_api_key = $4, \
                protocol = $5, auth_header = $6, auth_scheme = $7, default_max_tokens = $8, \
                weight = $9, enabled = $10 \
          WHERE id = $1",
        id,
        api_base,
        upstream_model,
        upstream_api_key.as_deref(),
        protocol,
        auth_header,
        auth_scheme.as_deref(),
        *default_max_tokens,
        *weight,
        *enabled,
    )
    .execute(&mut *connection)
    .await?;
    handle(connection, id, handling).await
}

async fn handle(
    connection: &mut PgConnection,
    id: i64,
    handling: &Handling,
) -> Result<(), DbError> {
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
    let headers = extra_headers.as_ref();
    sqlx::query!(
        "UPDATE model_backends SET draining = $2, max_concurrency = $3, max_queue = $4, \
                queue_timeout_ms = $5, extra_headers = $6, extra_header_names = $7, \
                extra_query = $8, path_template = $9, health_check = $10, health_path = $11, \
                health_method = $12, health_expect = $13 \
          WHERE id = $1",
        id,
        *draining,
        *max_concurrency,
        *max_queue,
        *queue_timeout_ms,
        headers.map(|headers| headers.sealed.as_slice()),
        headers.map_or(&[] as &[String], |headers| headers.names.as_slice()),
        Json(extra_query) as _,
        path_template.as_deref(),
        *health_check,
        health_path,
        health_method,
        health_expect,
    )
    .execute(connection)
    .await?;
    Ok(())
}

pub(crate) async fn delete(connection: &mut PgConnection, id: i64) -> Result<(), DbError> {
    sqlx::query!("DELETE FROM model_backends WHERE id = $1", id)
        .execute(connection)
        .await?;
    Ok(())
}
