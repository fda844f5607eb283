use serde::de::IgnoredAny;
use serde::{Deserialize, Deserializer, Serialize};

use crate::{BudgetId, Micros, Subject, Timestamp, Tokens};

/// What a gateway was asked to serve since its last report, and what it has
/// used and reserved of budgets. `POST /limits/reconcile`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LimitReport {
    /// The gateway's name.
    pub replica_id: String,
    /// A random ID for each start of the gateway.
    #[serde(default)]
    pub boot_id: String,
    /// Subjects with limits that sent requests recently.
    #[serde(default, deserialize_with = "readable")]
    pub counts: Vec<LimitUsage>,
    /// Budgets used in their present windows.
    #[serde(default)]
    pub budgets: Vec<BudgetUsage>,
}

impl LimitReport {
    /// Maximum number of counts, and of budgets, that a gateway reports at once
    /// and the control plane accepts.
    pub const MAX_ENTRIES: usize = 10_000;

    /// What the control plane counts of an amount after this number of seconds:
    /// 37 % after 20.
    #[must_use]
    pub fn decayed(count: f64, seconds: f64) -> f64 {
        const MEMORY_SECONDS: f64 = 20.0;
        count * (-seconds.max(0.0) / MEMORY_SECONDS).exp()
    }

    /// Splits the report into as few as the control plane accepts, at least
    /// one. Full ones come first: the control plane adds budgets that others
    /// use to a report with room, and by then has all reported usage.
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

/// Reads the entries that this release supports: other releases may have other
/// kinds of subjects.
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

/// What one subject requested at one gateway since the last report.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LimitUsage {
    /// The subject.
    #[serde(flatten)]
    pub subject: Subject,
    /// Requests, including refused ones: they show where a share is needed.
    #[serde(default)]
    pub requests: u64,
    /// Tokens, including those of refused requests.
    #[serde(default)]
    pub tokens: u64,
    /// The limit of concurrent requests; `None` without one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub concurrency: Option<ConcurrencyUsage>,
}

/// What one gateway has and may have in flight for a subject.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConcurrencyUsage {
    /// The whole limit, for all gateways.
    pub limit: u64,
    /// Requests that may be in flight until the gateway applies another share:
    /// its present part of the limit or, if larger, those in flight.
    pub held: u64,
}

/// What one gateway used of a budget in its present window since the gateway
/// started.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct BudgetUsage {
    /// The budget.
    pub budget: BudgetId,
    /// The start of the window.
    pub window_start: Timestamp,
    /// Tokens of completed requests, whether their usage events are stored or
    /// not.
    #[serde(default)]
    pub tokens: Tokens,
    /// Tokens reserved for requests in flight, by estimate.
    #[serde(default)]
    pub tokens_reserved: Tokens,
    /// Cost, like `tokens`.
    #[serde(default)]
    pub cost_micros: Micros,
    /// Cost, like `tokens_reserved`.
    #[serde(default)]
    pub cost_reserved_micros: Micros,
}

/// The shares of the reporting gateway.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct LimitReportReply {
    /// The number of live gateways, including this one.
    #[serde(default)]
    pub replicas: u32,
    /// Shares of limits, for each count of the report, and for subjects with a
    /// limit of concurrent requests that send requests to other gateways.
    #[serde(default, deserialize_with = "readable")]
    pub allowances: Vec<LimitShare>,
    /// Shares of budgets, for each existing budget of the report, and for those
    /// that other gateways use: this one may start to.
    #[serde(default)]
    pub budgets: Vec<BudgetShare>,
    /// Another gateway reports under the same name: each of them counts.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub duplicate_replica: bool,
}

impl LimitReportReply {
    /// Adds the reply to a further report of the same round.
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
    /// The subject.
    #[serde(flatten)]
    pub subject: Subject,
    /// Share of requests per minute.
    pub requests_share: f64,
    /// Share of tokens per minute.
    pub tokens_share: f64,
    /// Part of the limit of concurrent requests. `None` without one, or from a
    /// control plane that grants only shares: then it is `requests_share`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub concurrency: Option<ConcurrencyGrant>,
}

/// The part of a limit of concurrent requests that one gateway may use.
///
/// Invariant: the control plane grants parts of a limit whose sum, with what
/// gateways still have in flight, is at most the limit or, if that is larger, the
/// number of gateways.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConcurrencyGrant {
    /// The limit that the part was computed for.
    pub limit: u64,
    /// Concurrent requests, at least 1.
    pub granted: u64,
}

impl ConcurrencyGrant {
    /// The part of a limit that may have changed since, in the same proportion,
    /// rounded down.
    #[must_use]
    pub fn part_of(self, limit: u64) -> u64 {
        let granted = self.granted.min(self.limit);
        let part = u128::from(granted) * u128::from(limit) / u128::from(self.limit.max(1));
        u64::try_from(part).unwrap_or(limit)
    }
}

/// What one gateway may use of a budget in one window.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct BudgetShare {
    /// The budget.
    pub budget: BudgetId,
    /// The start of the window.
    pub window_start: Timestamp,
    /// This gateway's share of what is left, from 0 to 1; also of an increase
    /// of the total, and of the next window.
    pub share: f64,
    /// Tokens.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tokens: Option<Grant>,
    /// Cost, in micro-units.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cost_micros: Option<Grant>,
}

/// One dimension of a budget, for one gateway.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Grant {
    /// The total that the grant was computed for.
    pub total: u64,
    /// What the gateway may use in this window since it started: what it
    /// reported, and its part of the rest.
    pub granted: u64,
    /// What was used by others, and by this gateway before it started. Negative if
    /// less is charged for this gateway's usage than it reported, by other prices:
    /// with what the gateway reported, it is always what the budget has spent.
    pub used_by_others: i64,
}
