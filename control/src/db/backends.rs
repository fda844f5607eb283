use std::collections::BTreeMap;

use fastllm_contract::{Concurrency, HealthCheck};
use sqlx::PgConnection;
use sqlx::types::Json;

use super::{DbError, only};

/// One upstream address of a model.
#[derive(Debug, Clone)]
pub(crate) struct BackendRow {
    pub(crate) id: i64,
    pub(crate) model_id: i64,
    pub(crate) api_base: String,
    pub(crate) upstream_model: String,
    /// Sealed for this row; see [`identity`].
    pub(crate) upstream_api_key: Option<Vec<u8>>,
    pub(crate) protocol: String,
    pub(crate) auth_header: String,
    pub(crate) auth_scheme: Option<String>,
    pub(crate) default_max_tokens: Option<i32>,
    /// Share of the pool's requests relative to the other backends, from 1 to 1000.
    pub(crate) weight: i32,
    /// Published to gateways.
    pub(crate) enabled: bool,
    pub(crate) draining: bool,
    pub(crate) max_concurrency: Option<i32>,
    pub(crate) max_queue: i32,
    pub(crate) queue_timeout_ms: i32,
    /// A JSON object of extra headers, sealed for this row; see [`headers_identity`].
    pub(crate) extra_headers: Option<Vec<u8>>,
    /// In lower case, sorted.
    pub(crate) extra_header_names: Vec<String>,
    pub(crate) extra_query: Json<BTreeMap<String, String>>,
    pub(crate) path_template: Option<String>,
    pub(crate) health_check: bool,
    pub(crate) health_path: String,
    pub(crate) health_method: String,
    pub(crate) health_expect: String,
}

impl Default for BackendRow {
    /// The defaults of the columns; columns without one are empty.
    fn default() -> Self {
        let concurrency = Concurrency::default();
        let health = HealthCheck::default();
        Self {
            id: 0,
            model_id: 0,
            api_base: String::new(),
            upstream_model: String::new(),
            upstream_api_key: None,
            protocol: String::new(),
            auth_header: String::new(),
            auth_scheme: None,
            default_max_tokens: None,
            weight: 1,
            enabled: true,
            draining: false,
            max_concurrency: None,
            max_queue: i32::try_from(concurrency.max_queue).unwrap_or(i32::MAX),
            queue_timeout_ms: i32::try_from(concurrency.queue_timeout_ms).unwrap_or(i32::MAX),
            extra_headers: None,
            extra_header_names: Vec::new(),
            extra_query: Json(BTreeMap::new()),
            path_template: None,
            health_check: health.enabled,
            health_path: health.path,
            health_method: health.method,
            health_expect: health.expect,
        }
    }
}

/// The identity for which a backend's credential is sealed.
pub(crate) fn identity(id: i64) -> String {
    format!("fastllm/model_backends/{id}/upstream_api_key")
}

/// The identity for which a backend's extra headers are sealed.
pub(crate) fn headers_identity(id: i64) -> String {
    format!("fastllm/model_backends/{id}/extra_headers")
}

/// The backends of the given models, by ID.
pub(crate) async fn of_models(
    connection: &mut PgConnection,
    model_ids: &[i64],
) -> Result<Vec<BackendRow>, DbError> {
    let rows = query_as!(
        BackendRow,
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
    Ok(rows)
}

pub(crate) async fn get(connection: &mut PgConnection, id: i64) -> Result<BackendRow, DbError> {
    let model_id = query_scalar!("SELECT model_id FROM model_backends WHERE id = $1", id)
        .fetch_one(&mut *connection)
        .await?;
    let rows = of_models(connection, &[model_id]).await?;
    only(rows, |row| row.id == id)
}

/// The ID of a new backend, reserved in advance because its credential is sealed for
/// the ID before it is stored.
pub(crate) async fn next_id(connection: &mut PgConnection) -> Result<i64, DbError> {
    let id =
        query_scalar!(r#"SELECT nextval(pg_get_serial_sequence('model_backends', 'id')) AS "id!""#)
            .fetch_one(connection)
            .await?;
    Ok(id)
}

pub(crate) async fn insert(connection: &mut PgConnection, row: &BackendRow) -> Result<(), DbError> {
    query!(
        "INSERT INTO model_backends (id, model_id, api_base, upstream_model) \
         VALUES ($1, $2, $3, $4)",
        row.id,
        row.model_id,
        row.api_base,
        row.upstream_model,
    )
    .execute(&mut *connection)
    .await?;
    update(connection, row).await
}

/// Writes the fields that can change after creation.
pub(crate) async fn update(connection: &mut PgConnection, row: &BackendRow) -> Result<(), DbError> {
    query!(
        "UPDATE model_backends SET api_base = $2, upstream_model = $3, upstream_api_key = $4, \
                protocol = $5, auth_header = $6, auth_scheme = $7, default_max_tokens = $8, \
                weight = $9, enabled = $10 \
          WHERE id = $1",
        row.id,
        row.api_base,
        row.upstream_model,
        row.upstream_api_key.as_deref(),
        row.protocol,
        row.auth_header,
        row.auth_scheme.as_deref(),
        row.default_max_tokens,
        row.weight,
        row.enabled,
    )
    .execute(&mut *connection)
    .await?;
    query!(
        "UPDATE model_backends SET draining = $2, max_concurrency = $3, max_queue = $4, \
                queue_timeout_ms = $5, extra_headers = $6, extra_header_names = $7, \
                extra_query = $8, path_template = $9, health_check = $10, health_path = $11, \
                health_method = $12, health_expect = $13 \
          WHERE id = $1",
        row.id,
        row.draining,
        row.max_concurrency,
        row.max_queue,
        row.queue_timeout_ms,
        row.extra_headers.as_deref(),
        &row.extra_header_names,
        &row.extra_query as _,
        row.path_template.as_deref(),
        row.health_check,
        row.health_path,
        row.health_method,
        row.health_expect,
    )
    .execute(connection)
    .await?;
    Ok(())
}

pub(crate) async fn delete(connection: &mut PgConnection, id: i64) -> Result<(), DbError> {
    query!("DELETE FROM model_backends WHERE id = $1", id)
        .execute(connection)
        .await?;
    Ok(())
}
