use serde::de::IgnoredAny;
use serde::{Deserialize, Deserializer, Serialize};

use crate::{BudgetId, Holder, Micros, ModelName, Timestamp, Tokens};

/// What gateways know beside the snapshot: how things stand now. It changes
/// whenever something is spent, and never republishes the snapshot.
/// `GET /standing`, with an `ETag`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Standing {
    /// How many gateways are known to run.
    #[serde(default)]
    pub replicas: u32,
    /// What models cost now, by name. One that is not listed has no price.
    #[serde(default)]
    pub prices: Vec<ModelPrices>,
    /// What is spent of each budget in its present window, by id. Nothing is of
    /// one that is not listed.
    #[serde(default)]
    pub budgets: Vec<BudgetStanding>,
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
pub struct BudgetStanding {
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

/// What a gateway let through since it said so last, and what it holds of
/// budgets. `POST /limits/reconcile`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reconcile {
    /// The gateway's name.
    pub replica_id: String,
    /// A random text per start of the gateway.
    #[serde(default)]
    pub boot_id: String,
    /// Holders with limits that it has seen lately.
    #[serde(default, deserialize_with = "readable")]
    pub counts: Vec<LimitCount>,
    /// Budgets that it has used in their present windows.
    #[serde(default)]
    pub budgets: Vec<BudgetUse>,
}

impl Reconcile {
    /// How many counts and how many budgets a gateway reports at once, and
    /// control accepts.
    pub const MAX_ENTRIES: usize = 10_000;

    /// What control remembers of a count after so many seconds: 37 % after 20.
    #[must_use]
    pub fn remembered(count: f64, seconds: f64) -> f64 {
        const MEMORY_SECONDS: f64 = 20.0;
        count * (-seconds.max(0.0) / MEMORY_SECONDS).exp()
    }

    /// The same in as few reports as control accepts, at least one. Full ones
    /// come first: control adds budgets that others use to one that has room, and
    /// by then knows all that are reported here.
    pub fn split(self) -> Vec<Self> {
        let Self {
            replica_id,
            boot_id,
            counts,
            budgets,
        } = self;
        let mut counts = counts.chunks(Self::MAX_ENTRIES);
        let mut budgets = budgets.chunks(Self::MAX_ENTRIES);
        let reports = counts.len().max(budgets.len()).max(1);
        let mut next = || Self {
            replica_id: replica_id.clone(),
            boot_id: boot_id.clone(),
            counts: counts.next().unwrap_or_default().to_vec(),
            budgets: budgets.next().unwrap_or_default().to_vec(),
        };
        (0..reports).map(|_| next()).collect()
    }
}

/// The entries that this release understands: another may know holders that
/// this one does not.
fn readable<'de, D, T>(deserializer: D) -> Result<Vec<T>, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de>,
{
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Entry<T> {
        Read(T),
        Other(IgnoredAny),
    }
    let entries = Vec::<Entry<T>>::deserialize(deserializer)?;
    let read = entries.into_iter().filter_map(|entry| match entry {
        Entry::Read(read) => Some(read),
        Entry::Other(IgnoredAny) => None,
    });
    Ok(read.collect())
}

/// What one holder asked for at one gateway since the report before.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LimitCount {
    /// Whose.
    #[serde(flatten)]
    pub holder: Holder,
    /// Requests, those that a limit refused included: they tell where a share is
    /// needed.
    #[serde(default)]
    pub requests: u64,
    /// Tokens, likewise.
    #[serde(default)]
    pub tokens: u64,
}

/// What one gateway has taken from a budget in its present window since it
/// started.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct BudgetUse {
    /// Which budget.
    pub budget: BudgetId,
    /// Which window of it.
    pub window_start: Timestamp,
    /// Tokens of requests that are over, their usage events stored or not.
    #[serde(default)]
    pub tokens: Tokens,
    /// Tokens set aside for requests in flight, by estimate.
    #[serde(default)]
    pub tokens_reserved: Tokens,
    /// Money, like `tokens`.
    #[serde(default)]
    pub cost_micros: Micros,
    /// Money, like `tokens_reserved`.
    #[serde(default)]
    pub cost_reserved_micros: Micros,
}

/// The shares of the gateway that asked.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Reconciled {
    /// How many gateways are known to run, this one included.
    #[serde(default)]
    pub replicas: u32,
    /// Shares of limits, for each count of the report.
    #[serde(default, deserialize_with = "readable")]
    pub allowances: Vec<LimitShare>,
    /// Shares of budgets, for each budget of the report that exists, and for
    /// those that other gateways spend from: this one may begin to.
    #[serde(default)]
    pub budgets: Vec<BudgetShare>,
    /// Another gateway asks under the same name: each of them counts.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub name_taken: bool,
}

impl Reconciled {
    /// Adds what control said to a further report of the same round.
    pub fn add(&mut self, more: Self) {
        let Self {
            replicas,
            allowances,
            budgets,
            name_taken,
        } = more;
        self.replicas = replicas;
        self.allowances.extend(allowances);
        self.budgets.extend(budgets);
        self.name_taken = name_taken;
    }
}

/// A gateway's share of a holder's limits, from 0 to 1.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct LimitShare {
    /// Whose.
    #[serde(flatten)]
    pub holder: Holder,
    /// Of requests a minute, and of requests at once.
    pub requests_share: f64,
    /// Of tokens a minute.
    pub tokens_share: f64,
}

/// What one gateway may take from a budget, in one window.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct BudgetShare {
    /// Which budget.
    pub budget: BudgetId,
    /// Which window of it.
    pub window_start: Timestamp,
    /// This gateway's part of what is left, from 0 to 1: also of what a raised
    /// total adds, and of the window that follows.
    pub share: f64,
    /// Tokens.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tokens: Option<Grant>,
    /// Money, in micro-units.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cost_micros: Option<Grant>,
}

/// One dimension of a budget, for one gateway.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Grant {
    /// The total that this was reckoned with.
    pub total: u64,
    /// What the gateway may have taken in all since it started, in this window:
    /// what it reported, and its part of what is left.
    pub granted: u64,
    /// What is spent by others, and by this gateway before it started.
    pub elsewhere: u64,
}
