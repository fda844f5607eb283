use sqlx::PgConnection;

use super::prices::PriceFields;
use super::{DbError, Page, only};

/// A model without its backends.
pub(crate) struct ModelRow {
    pub(crate) id: i64,
    pub(crate) name: String,
    pub(crate) fields: ModelFields,
}

/// The fields of a model that can change after creation.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct ModelFields {
    pub(crate) description: Option<String>,
    pub(crate) prices: PriceFields,
    pub(crate) cache_ttl_seconds: Option<i64>,
    pub(crate) context_length: Option<i64>,
    pub(crate) policy: Option<String>,
}

pub(crate) async fn list(
    connection: &mut PgConnection,
    page: Page,
) -> Result<Vec<ModelRow>, DbError> {
    let rows = sqlx::query!(
        "SELECT id, name, description, input_price_per_mtok, output_price_per_mtok, \
                cached_input_price_per_mtok, cache_write_price_per_mtok, \
                reasoning_price_per_mtok, audio_input_price_per_mtok, \
                audio_output_price_per_mtok, image_price, input_price_per_mchar, \
                audio_price_per_minute, cache_ttl_seconds, context_length, policy \
           FROM models WHERE $1::bigint IS NULL OR id > $1 ORDER BY id LIMIT $2",
        page.after,
        page.limit,
    )
    .fetch_all(connection)
    .await?;
    Ok(rows
        .into_iter()
        .map(|row| ModelRow {
            id: row.id,
            name: row.name,
            fields: ModelFields {
                description: row.description,
                prices: PriceFields {
                    input_price_per_mtok: row.input_price_per_mtok,
                    output_price_per_mtok: row.output_price_per_mtok,
                    cached_input_price_per_mtok: row.cached_input_price_per_mtok,
                    cache_write_price_per_mtok: row.cache_write_price_per_mtok,
                    reasoning_price_per_mtok: row.reasoning_price_per_mtok,
                    audio_input_price_per_mtok: row.audio_input_price_per_mtok,
                    audio_output_price_per_mtok: row.audio_output_price_per_mtok,
                    image_price: row.image_price,
                    input_price_per_mchar: row.input_price_per_mchar,
                    audio_price_per_minute: row.audio_price_per_minute,
                },
                cache_ttl_seconds: row.cache_ttl_seconds,
                context_length: row.context_length,
                policy: row.policy,
            },
        })
        .collect())
}

pub(crate) async fn get(connection: &mut PgConnection, id: i64) -> Result<ModelRow, DbError> {
    let rows = list(connection, Page::from_id(id)).await?;
    only(rows, |row| row.id == id)
}

pub(crate) async fn insert(
    connection: &mut PgConnection,
    name: &str,
    fields: &ModelFields,
) -> Result<i64, DbError> {
    let id = sqlx::query_scalar!("INSERT INTO models (name) VALUES ($1) RETURNING id", name)
        .fetch_one(&mut *connection)
        .await?;
    update(connection, id, fields).await?;
    Ok(id)
}

pub(crate) async fn update(
    connection: &mut PgConnection,
    id: i64,
    fields: &ModelFields,
) -> Result<(), DbError> {
    let ModelFields {
        description,
        prices,
        cache_ttl_seconds,
        context_length,
        policy,
    } = fields;
    let PriceFields {
        input_price_per_mtok,
        output_price_per_mtok,
        cached_input_price_per_mtok,
        cache_write_price_per_mtok,
        reasoning_price_per_mtok,
        audio_input_price_per_mtok,
        audio_output_price_per_mtok,
        image_price,
        input_price_per_mchar,
        audio_price_per_minute,
    } = prices;
    sqlx::query!(
        "UPDATE models SET description = $2, cache_ttl_seconds = $3, context_length = $4, \
                policy = $5, input_price_per_mtok = $6, output_price_per_mtok = $7, \
                cached_input_price_per_mtok = $8, cache_write_price_per_mtok = $9, \
                reasoning_price_per_mtok = $10, audio_input_price_per_mtok = $11, \
                audio_output_price_per_mtok = $12, image_price = $13, \
                input_price_per_mchar = $14, audio_price_per_minute = $15 \
          WHERE id = $1",
        id,
        description.as_deref(),
        *cache_ttl_seconds,
        *context_length,
        policy.as_deref(),
        *input_price_per_mtok,
        *output_price_per_mtok,
        *cached_input_price_per_mtok,
        *cache_write_price_per_mtok,
        *reasoning_price_per_mtok,
        *audio_input_price_per_mtok,
        *audio_output_price_per_mtok,
        *image_price,
        *input_price_per_mchar,
        *audio_price_per_minute,
    )
    .execute(connection)
    .await?;
    Ok(())
}

pub(crate) async fn delete(connection: &mut PgConnection, id: i64) -> Result<(), DbError> {
    sqlx::query!("DELETE FROM models WHERE id = $1", id)
        .execute(connection)
        .await?;
    Ok(())
}

/// The model that is tried after every other candidate: id and name.
pub(crate) async fn fallback(
    connection: &mut PgConnection,
) -> Result<Option<(i64, String)>, DbError> {
    let row = sqlx::query!("SELECT id, name FROM models WHERE is_fallback")
        .fetch_optional(connection)
        .await?;
    Ok(row.map(|row| (row.id, row.name)))
}

/// Makes `id` the fallback instead of the one before, or leaves none.
pub(crate) async fn set_fallback(
    connection: &mut PgConnection,
    id: Option<i64>,
) -> Result<(), DbError> {
    // Two statements: a unique index allows no two even within one.
    sqlx::query!("UPDATE models SET is_fallback = false WHERE is_fallback")
        .execute(&mut *connection)
        .await?;
    sqlx::query!("UPDATE models SET is_fallback = true WHERE id = $1", id)
        .execute(connection)
        .await?;
    Ok(())
}
