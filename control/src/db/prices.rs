use fastllm_contract::{Micros, Prices};

/// What a model costs, in micro-units, as rows have it. What is absent is
/// unknown, not free.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct PriceFields {
    /// A million tokens of prompts.
    pub(crate) input_price_per_mtok: Option<i64>,
    /// A million tokens of answers.
    pub(crate) output_price_per_mtok: Option<i64>,
    /// A million tokens of prompts that came from the backend's cache.
    pub(crate) cached_input_price_per_mtok: Option<i64>,
    /// A million tokens of prompts that were written to the backend's cache.
    pub(crate) cache_write_price_per_mtok: Option<i64>,
    /// A million tokens of answers that were spent on reasoning.
    pub(crate) reasoning_price_per_mtok: Option<i64>,
    /// A million tokens of sound in prompts.
    pub(crate) audio_input_price_per_mtok: Option<i64>,
    /// A million tokens of sound in answers.
    pub(crate) audio_output_price_per_mtok: Option<i64>,
    /// An image of an answer.
    pub(crate) image_price: Option<i64>,
    /// A million characters that are read aloud.
    pub(crate) input_price_per_mchar: Option<i64>,
    /// A minute of sound that is transcribed.
    pub(crate) audio_price_per_minute: Option<i64>,
}

impl From<&PriceFields> for Prices {
    fn from(fields: &PriceFields) -> Self {
        let price = |value: Option<i64>| value.map(|micros| Micros(micros.unsigned_abs()));
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
            input_price_per_mtok: price(*input_price_per_mtok),
            output_price_per_mtok: price(*output_price_per_mtok),
            cached_input_price_per_mtok: price(*cached_input_price_per_mtok),
            cache_write_price_per_mtok: price(*cache_write_price_per_mtok),
            reasoning_price_per_mtok: price(*reasoning_price_per_mtok),
            audio_input_price_per_mtok: price(*audio_input_price_per_mtok),
            audio_output_price_per_mtok: price(*audio_output_price_per_mtok),
            image_price: price(*image_price),
            input_price_per_mchar: price(*input_price_per_mchar),
            audio_price_per_minute: price(*audio_price_per_minute),
        }
    }
}
