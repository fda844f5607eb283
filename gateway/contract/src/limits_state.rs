use serde::{Deserialize, Serialize};

use crate::{BudgetId, Micros, ModelName, Timestamp, Tokens};

/// What gateways know beside the snapshot: how things stand now. It changes
/// whenever something is spent, and never republishes the snapshot.
/// `GET /limits-state`, with an `ETag`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LimitsState {
    /// How many gateways are known to run.
    #[serde(default)]
    pub replicas: u32,
    /// What models cost now, by name. One that is not listed has no price.
    #[serde(default)]
    pub prices: Vec<ModelPrices>,
    /// What is spent of each budget in its present window, by id. Nothing is of
    /// one that is not listed.
    #[serde(default)]
    pub budgets: Vec<BudgetState>,
}

/// What a model costs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ModelPrices {
    /// Which model.
    pub model: ModelName,
    /// What it costs.
    #[serde(flatten)]
    pub prices: Prices,
}

/// Prices by class, in micro-units. What is absent is unknown, not free; a
/// class of tokens without its own price costs as the input or output that it
/// is a part of.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Prices {
    /// A million tokens of prompts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub input_price_per_mtok: Option<Micros>,
    /// A million tokens of answers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output_price_per_mtok: Option<Micros>,
    /// A million tokens of prompts that came from the backend's cache.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cached_input_price_per_mtok: Option<Micros>,
    /// A million tokens of prompts that were written to the backend's cache.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cache_write_price_per_mtok: Option<Micros>,
    /// A million tokens of answers that were spent on reasoning.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reasoning_price_per_mtok: Option<Micros>,
    /// A million tokens of sound in prompts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub audio_input_price_per_mtok: Option<Micros>,
    /// A million tokens of sound in answers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub audio_output_price_per_mtok: Option<Micros>,
    /// An image of an answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image_price: Option<Micros>,
    /// A million characters that are read aloud.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub input_price_per_mchar: Option<Micros>,
    /// A minute of sound that is transcribed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub audio_price_per_minute: Option<Micros>,
}

/// What is spent of a budget in one window, by rows that are stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct BudgetState {
    /// Which budget.
    pub budget: BudgetId,
    /// When the window began.
    pub window_start: Timestamp,
    /// Tokens so far.
    #[serde(default)]
    pub tokens_used: Tokens,
    /// Money so far.
    #[serde(default)]
    pub cost_used_micros: Micros,
}
