use sqlx::PgConnection;

use super::{DbError, Page, only};

/// A model without its backends. Prices are in micro-units; an absent one is
/// unknown, not free.
#[derive(Debug, Clone, Default)]
pub(crate) struct ModelRow {
    pub(crate) id: i64,
    pub(crate) name: String,
    pub(crate) description: Option<String>,
    pub(crate) input_price_per_mtok: Option<i64>,
    pub(crate) output_price_per_mtok: Option<i64>,
    pub(crate) cached_input_price_per_mtok: Option<i64>,
    pub(crate) cache_write_price_per_mtok: Option<i64>,
    pub(crate) reasoning_price_per_mtok: Option<i64>,
    pub(crate) audio_input_price_per_mtok: Option<i64>,
    pub(crate) audio_output_price_per_mtok: Option<i64>,
    pub(crate) image_price: Option<i64>,
    pub(crate) input_price_per_mchar: Option<i64>,
    pub(crate) audio_price_per_minute: Option<i64>,
    pub(crate) cache_ttl_seconds: Option<i64>,
    pub(crate) context_length: Option<i64>,
    pub(crate) policy: Option<String>,
    pub(crate) timeout_ms: Option<i32>,
    pub(crate) stream_timeout_ms: Option<i32>,
    pub(crate) max_retries: Option<i32>,
}

pub(crate) async fn list(
    connection: &mut PgConnection,
    page: Page,
) -> Result<Vec<ModelRow>, DbError> {
    let rows = query_as!(
        ModelRow,
        "SELECT id, name, description, input_price_per_mtok, output_price_per_mtok, \
                cached_input_price_per_mtok, cache_write_price_per_mtok, \
                reasoning_price_per_mtok, audio_input_price_per_mtok, \
                audio_output_price_per_mtok, image_price, input_price_per_mchar, \
                audio_price_per_minute, cache_ttl_seconds, context_length, policy, \
                timeout_ms, stream_timeout_ms, max_retries \
           FROM models WHERE $1::bigint IS NULL OR id > $1 ORDER BY id LIMIT $2",
        page.after,
        page.limit,
    )
    .fetch_all(connection)
    .await?;
    Ok(rows)
}

pub(crate) async fn get(connection: &mut PgConnection, id: i64) -> Result<ModelRow, DbError> {
    let rows = list(connection, Page::from_id(id)).await?;
    only(rows, |row| row.id == id)
}

/// Inserts the row under a new ID, which is returned.
pub(crate) async fn insert(connection: &mut PgConnection, row: &ModelRow) -> Result<i64, DbError> {
    let id = query_scalar!(
        "INSERT INTO models (name) VALUES ($1) RETURNING id",
        row.name
    )
    .fetch_one(&mut *connection)
    .await?;
    update(connection, id, row).await?;
    Ok(id)
}

/// Writes the fields that can change after creation.
pub(crate) async fn update(
    connection: &mut PgConnection,
    id: i64,
    row: &ModelRow,
) -> Result<(), DbError> {
    query!(
        "UPDATE models SET description = $2, cache_ttl_seconds = $3, context_length = $4, \
                policy = $5, input_price_per_mtok = $6, output_price_per_mtok = $7, \
                cached_input_price_per_mtok = $8, cache_write_price_per_mtok = $9, \
                reasoning_price_per_mtok = $10, audio_input_price_per_mtok = $11, \
                audio_output_price_per_mtok = $12, image_price = $13, \
                input_price_per_mchar = $14, audio_price_per_minute = $15, \
                timeout_ms = $16, stream_timeout_ms = $17, max_retries = $18 \
          WHERE id = $1",
        id,
        row.description.as_deref(),
        row.cache_ttl_seconds,
        row.context_length,
        row.policy.as_deref(),
        row.input_price_per_mtok,
        row.output_price_per_mtok,
        row.cached_input_price_per_mtok,
        row.cache_write_price_per_mtok,
        row.reasoning_price_per_mtok,
        row.audio_input_price_per_mtok,
        row.audio_output_price_per_mtok,
        row.image_price,
        row.input_price_per_mchar,
        row.audio_price_per_minute,
        row.timeout_ms,
        row.stream_timeout_ms,
        row.max_retries,
    )
    .execute(connection)
    .await?;
    Ok(())
}

pub(crate) async fn delete(connection: &mut PgConnection, id: i64) -> Result<(), DbError> {
    query!("DELETE FROM models WHERE id = $1", id)
        .execute(connection)
        .await?;
    Ok(())
}

/// The ID and name of the fallback model.
pub(crate) async fn fallback(
    connection: &mut PgConnection,
) -> Result<Option<(i64, String)>, DbError> {
    let row = query!("SELECT id, name FROM models WHERE is_fallback")
        .fetch_optional(connection)
        .await?;
    Ok(row.map(|row| (row.id, row.name)))
}

/// Makes `id` the fallback model, or removes it.
pub(crate) async fn set_fallback(
    connection: &mut PgConnection,
    id: Option<i64>,
) -> Result<(), DbError> {
    // Two statements, because the unique index is checked for each row.
    query!("UPDATE models SET is_fallback = false WHERE is_fallback")
        .execute(&mut *connection)
        .await?;
    query!("UPDATE models SET is_fallback = true WHERE id = $1", id)
        .execute(connection)
        .await?;
    Ok(())
}
