use sqlx::PgConnection;

use super::DbError;

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
}

/// What a backend's credential is sealed for.
pub(crate) fn identity(id: i64) -> String {
    format!("fastllm/model_backends/{id}/upstream_api_key")
}

/// The backends of the given models, by id.
pub(crate) async fn of_models(
    connection: &mut PgConnection,
    model_ids: &[i64],
) -> Result<Vec<BackendRow>, DbError> {
    let rows = sqlx::query!(
        "SELECT id, model_id, api_base, upstream_model, upstream_api_key, protocol, auth_header, \
                auth_scheme, default_max_tokens, weight, enabled \
           FROM model_backends WHERE model_id = ANY ($1) ORDER BY id",
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
            },
        })
        .collect())
}

pub(crate) async fn get(connection: &mut PgConnection, id: i64) -> Result<BackendRow, DbError> {
    let model_id = sqlx::query_scalar!("SELECT model_id FROM model_backends WHERE id = $1", id)
        .fetch_one(&mut *connection)
        .await?;
    of_models(connection, &[model_id])
        .await?
        .into_iter()
        .find(|row| row.id == id)
        .ok_or(DbError::NotFound)
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
