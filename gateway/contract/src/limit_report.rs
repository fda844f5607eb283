use serde::de::IgnoredAny;
use serde::{Deserialize, Deserializer, Serialize};

use crate::{BudgetId, Micros, Subject, Timestamp, Tokens};

/// What a gateway let through since it said so last, and what it holds of
/// budgets. `POST /limits/reconcile`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LimitReport {
    /// The gateway's name.
    pub replica_id: String,
    /// A random text per start of the gateway.
    #[serde(default)]
    pub boot_id: String,
    /// Holders with limits that it has seen lately.
    #[serde(default, deserialize_with = "readable")]
    pub counts: Vec<LimitUsage>,
    /// Budgets that it has used in their present windows.
    #[serde(default)]
    pub budgets: Vec<BudgetUsage>,
}

impl LimitReport {
    /// How many counts and how many budgets a gateway reports at once, and
    /// control accepts.
    pub const MAX_ENTRIES: usize = 10_000;

    /// What control remembers of a count after so many seconds: 37 % after 20.
    #[must_use]
    pub fn decayed(count: f64, seconds: f64) -> f64 {
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

/// The entries that this release understands: another may know subjects that
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

/// What one subject asked for at one gateway since the report before.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LimitUsage {
    /// Whose.
    #[serde(flatten)]
    pub subject: Subject,
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
pub struct BudgetUsage {
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
pub struct LimitReportReply {
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
    pub duplicate_replica: bool,
}

impl LimitReportReply {
    /// Adds what control said to a further report of the same round.
    pub fn add(&mut self, more: Self) {
        let Self {
            replicas,
            allowances,
            budgets,
            duplicate_replica,
        } = more;
        self.replicas = replicas;
        self.allowances.extend(allowances);
        self.budgets.extend(budgets);
        self.duplicate_replica = duplicate_replica;
    }
}

/// A gateway's share of a subject's limits, from 0 to 1.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct LimitShare {
    /// Whose.
    #[serde(flatten)]
    pub subject: Subject,
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
    pub used_by_others: u64,
}
