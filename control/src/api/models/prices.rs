//! What models cost: the fields of the API for it.

use serde::Serialize;
use utoipa::ToSchema;

use crate::api::framework::ApiError;
use crate::api::framework::checks::not_negative;
use crate::db::prices::PriceFields;

/// What a model costs, in micro-units; `null`: unknown, not free. A class of
/// tokens without its own price costs as the input or output that it is a part
/// of.
#[derive(Serialize, ToSchema)]
pub(crate) struct PricesView {
    /// A million tokens of prompts.
    input_price_per_mtok: Option<i64>,
    /// A million tokens of answers.
    output_price_per_mtok: Option<i64>,
    /// A million tokens of prompts that came from the backend's cache.
    cached_input_price_per_mtok: Option<i64>,
    /// A million tokens of prompts that were written to the backend's cache.
    cache_write_price_per_mtok: Option<i64>,
    /// A million tokens of answers that were spent on reasoning.
    reasoning_price_per_mtok: Option<i64>,
    /// A million tokens of sound in prompts.
    audio_input_price_per_mtok: Option<i64>,
    /// A million tokens of sound in answers.
    audio_output_price_per_mtok: Option<i64>,
    /// An image of an answer.
    image_price: Option<i64>,
    /// A million characters that are read aloud.
    input_price_per_mchar: Option<i64>,
    /// A minute of sound that is transcribed.
    audio_price_per_minute: Option<i64>,
}

impl From<PriceFields> for PricesView {
    fn from(fields: PriceFields) -> Self {
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
        } = fields;
        Self {
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
        }
    }
}

/// A negative price is refused by name.
pub(crate) fn checked(prices: PriceFields) -> Result<PriceFields, ApiError> {
    let named = [
        ("input_price_per_mtok", prices.input_price_per_mtok),
        ("output_price_per_mtok", prices.output_price_per_mtok),
        (
            "cached_input_price_per_mtok",
            prices.cached_input_price_per_mtok,
        ),
        (
            "cache_write_price_per_mtok",
            prices.cache_write_price_per_mtok,
        ),
        ("reasoning_price_per_mtok", prices.reasoning_price_per_mtok),
        (
            "audio_input_price_per_mtok",
            prices.audio_input_price_per_mtok,
        ),
        (
            "audio_output_price_per_mtok",
            prices.audio_output_price_per_mtok,
        ),
        ("image_price", prices.image_price),
        ("input_price_per_mchar", prices.input_price_per_mchar),
        ("audio_price_per_minute", prices.audio_price_per_minute),
    ];
    for (field, price) in named {
        price.map(not_negative(field)).transpose()?;
    }
    Ok(prices)
}
