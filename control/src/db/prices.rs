use fastllm_contract::Micros;

/// The price columns of a row, as gateways get them. `NULL` is unknown, not free.
macro_rules! prices {
    ($row:expr) => {{
        use $crate::db::prices::micros;
        let row = &$row;
        fastllm_contract::Prices {
            input_price_per_mtok: micros(row.input_price_per_mtok),
            output_price_per_mtok: micros(row.output_price_per_mtok),
            cached_input_price_per_mtok: micros(row.cached_input_price_per_mtok),
            cache_write_price_per_mtok: micros(row.cache_write_price_per_mtok),
            reasoning_price_per_mtok: micros(row.reasoning_price_per_mtok),
            audio_input_price_per_mtok: micros(row.audio_input_price_per_mtok),
            audio_output_price_per_mtok: micros(row.audio_output_price_per_mtok),
            image_price: micros(row.image_price),
            input_price_per_mchar: micros(row.input_price_per_mchar),
            audio_price_per_minute: micros(row.audio_price_per_minute),
        }
    }};
}

pub(super) use prices;

pub(super) fn micros(price: Option<i64>) -> Option<Micros> {
    price.map(|micros| Micros(micros.unsigned_abs()))
}
