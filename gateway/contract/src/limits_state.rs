use serde::{Deserialize, Serialize};

use crate::{BudgetId, Micros, ModelName, Timestamp, Tokens};

/// Prices and usage that gateways need besides the snapshot. It changes with
/// every usage batch and never republishes the snapshot. `GET /limits-state`,
/// with an `ETag`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LimitsState {
    /// The number of live gateways.
    #[serde(default)]
    pub replicas: u32,
    /// Present prices by model. A model that is not listed has no prices.
    #[serde(default)]
    pub prices: Vec<ModelPrices>,
    /// Amount spent per budget in its present window, by budget ID. A budget
    /// that is not listed has no recorded spending.
    #[serde(default)]
    pub budgets: Vec<BudgetState>,
}

/// The prices of a model.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ModelPrices {
    /// The model.
    pub model: ModelName,
    /// Its prices.
    #[serde(flatten)]
    pub prices: Prices,
}

/// Prices by class, in micro-units. An absent price is unknown, not free. A
/// token class without its own price costs as much as the input or output that
/// it is part of.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Prices {
    /// Per million prompt tokens.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub input_price_per_mtok: Option<Micros>,
    /// Per million completion tokens.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output_price_per_mtok: Option<Micros>,
    /// Per million prompt tokens read from the backend's cache.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cached_input_price_per_mtok: Option<Micros>,
    /// Per million prompt tokens written to the backend's cache.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cache_write_price_per_mtok: Option<Micros>,
    /// Per million reasoning tokens.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reasoning_price_per_mtok: Option<Micros>,
    /// Per million audio tokens of prompts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub audio_input_price_per_mtok: Option<Micros>,
    /// Per million audio tokens of responses.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub audio_output_price_per_mtok: Option<Micros>,
    /// Per generated image.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image_price: Option<Micros>,
    /// Per million characters of text converted to speech.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub input_price_per_mchar: Option<Micros>,
    /// Per minute of transcribed audio.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub audio_price_per_minute: Option<Micros>,
}

/// Stored spending of a budget in one window.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct BudgetState {
    /// The budget.
    pub budget: BudgetId,
    /// The start of the window.
    pub window_start: Timestamp,
    /// Tokens used.
    #[serde(default)]
    pub tokens_used: Tokens,
    /// Cost.
    #[serde(default)]
    pub cost_used_micros: Micros,
}
