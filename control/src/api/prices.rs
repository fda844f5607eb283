//! What models cost: the fields of the API for it.

use serde::Serialize;
use utoipa::ToSchema;

use super::checks::not_negative;
use super::error::ApiError;
use super::patch::Patch;
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

/// A change of prices.
pub(super) struct PricesPatch {
    pub(super) input_price_per_mtok: Patch<i64>,
    pub(super) output_price_per_mtok: Patch<i64>,
    pub(super) cached_input_price_per_mtok: Patch<i64>,
    pub(super) cache_write_price_per_mtok: Patch<i64>,
    pub(super) reasoning_price_per_mtok: Patch<i64>,
    pub(super) audio_input_price_per_mtok: Patch<i64>,
    pub(super) audio_output_price_per_mtok: Patch<i64>,
    pub(super) image_price: Patch<i64>,
    pub(super) input_price_per_mchar: Patch<i64>,
    pub(super) audio_price_per_minute: Patch<i64>,
}

impl PricesPatch {
    /// The new prices; a negative one is refused by name.
    pub(super) fn apply(self, old: &PriceFields) -> Result<PriceFields, ApiError> {
        let price = |field, change: Patch<i64>, old: Option<i64>| {
            change
                .try_map(not_negative(field))
                .map(|change| change.apply(old))
        };
        Ok(PriceFields {
            input_price_per_mtok: price(
                "input_price_per_mtok",
                self.input_price_per_mtok,
                old.input_price_per_mtok,
            )?,
            output_price_per_mtok: price(
                "output_price_per_mtok",
                self.output_price_per_mtok,
                old.output_price_per_mtok,
            )?,
            cached_input_price_per_mtok: price(
                "cached_input_price_per_mtok",
                self.cached_input_price_per_mtok,
                old.cached_input_price_per_mtok,
            )?,
            cache_write_price_per_mtok: price(
                "cache_write_price_per_mtok",
                self.cache_write_price_per_mtok,
                old.cache_write_price_per_mtok,
            )?,
            reasoning_price_per_mtok: price(
                "reasoning_price_per_mtok",
                self.reasoning_price_per_mtok,
                old.reasoning_price_per_mtok,
            )?,
            audio_input_price_per_mtok: price(
                "audio_input_price_per_mtok",
                self.audio_input_price_per_mtok,
                old.audio_input_price_per_mtok,
            )?,
            audio_output_price_per_mtok: price(
                "audio_output_price_per_mtok",
                self.audio_output_price_per_mtok,
                old.audio_output_price_per_mtok,
            )?,
            image_price: price("image_price", self.image_price, old.image_price)?,
            input_price_per_mchar: price(
                "input_price_per_mchar",
                self.input_price_per_mchar,
                old.input_price_per_mchar,
            )?,
            audio_price_per_minute: price(
                "audio_price_per_minute",
                self.audio_price_per_minute,
                old.audio_price_per_minute,
            )?,
        })
    }
}
