use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize};

use crate::{ModelName, PrincipalId};

/// How a backend is chosen among those of one model.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum PolicyKind {
    /// Where the beginning of the prompt was seen before.
    #[default]
    CacheAffinity,
    /// Fewest requests under way.
    LeastLoaded,
    /// One after the other.
    RoundRobin,
    /// Fastest so far.
    LowestLatency,
}

/// A text that names no [`PolicyKind`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UnknownPolicy;

impl fmt::Display for UnknownPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("expected ")?;
        for (index, policy) in PolicyKind::ALL.into_iter().enumerate() {
            let before = ["", ", "][usize::from(index > 0)];
            write!(f, "{before}{policy}")?;
        }
        Ok(())
    }
}

impl std::error::Error for UnknownPolicy {}

impl PolicyKind {
    /// Every policy.
    pub const ALL: [Self; 4] = [
        Self::CacheAffinity,
        Self::LeastLoaded,
        Self::RoundRobin,
        Self::LowestLatency,
    ];

    /// Its name in configuration, in the admin API and on `/health`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::CacheAffinity => "cache-affinity",
            Self::LeastLoaded => "least-loaded",
            Self::RoundRobin => "round-robin",
            Self::LowestLatency => "lowest-latency",
        }
    }
}

impl fmt::Display for PolicyKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for PolicyKind {
    type Err = UnknownPolicy;

    fn from_str(text: &str) -> Result<Self, UnknownPolicy> {
        Self::ALL
            .into_iter()
            .find(|policy| policy.as_str() == text)
            .ok_or(UnknownPolicy)
    }
}

/// A policy that this release does not know is none: the default serves.
pub(crate) fn known_policy<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<PolicyKind>, D::Error> {
    let name = Option::<String>::deserialize(deserializer)?;
    Ok(name.and_then(|name| name.parse().ok()))
}

/// A name that stands for other models: its rules decide which one answers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct VirtualModel {
    /// What clients ask for; no concrete model has it.
    pub name: ModelName,
    /// In the order in which they are tried.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub rules: Vec<Rule>,
    /// Where no rule gives a candidate.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub default_targets: Vec<Target>,
    /// What the weights of targets divide.
    #[serde(default, skip_serializing_if = "is_default")]
    pub split_by: SplitBy,
}

/// What stays together where targets share the traffic.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SplitBy {
    /// All requests of one caller.
    Caller,
    /// All requests with one beginning of the prompt; also what a later
    /// release may have named.
    #[default]
    #[serde(other)]
    Prompt,
}

/// A concrete model that may answer for a virtual one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Target {
    /// The model.
    pub model: ModelName,
    /// Its share among the targets beside it; 0 is only for failover.
    #[serde(default = "usual_weight")]
    pub weight: u32,
}

fn usual_weight() -> u32 {
    100
}

/// Conditions, all of which must hold, and where requests go then. Without
/// conditions it always holds.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Rule {
    /// Who asks.
    #[serde(skip_serializing_if = "is_default")]
    pub caller: RuleCaller,
    /// What the request looks like.
    #[serde(skip_serializing_if = "is_default")]
    pub shape: RuleShape,
    /// Headers that must be there with exactly these values.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub headers: BTreeMap<String, String>,
    /// Least used share of the caller's tighter budget, in percent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub min_budget_used_percent: Option<u8>,
    /// Largest used share of it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_budget_used_percent: Option<u8>,
    /// Some healthy backend of the rule's own targets has fewer requests under
    /// way than this.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_inflight_per_backend: Option<u32>,
    /// From this minute of the day on. Later than `before_minute`, the window
    /// spans midnight.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub after_minute: Option<u16>,
    /// Before this minute of the day.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub before_minute: Option<u16>,
    /// Days of the week, Monday is 1; none given means every day.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub days: Vec<u8>,
    /// What is added to UTC before the clock is read.
    #[serde(skip_serializing_if = "is_default")]
    pub utc_offset_minutes: i32,
    /// The class of the prompt.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub class: Option<String>,
    /// Where requests go, in order.
    pub targets: Vec<Target>,
}

/// Who asks. An empty list asks for nobody in particular.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct RuleCaller {
    /// One of these.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub principals: Vec<PrincipalId>,
    /// With one of these roles.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub roles: Vec<String>,
}

/// What a request looks like. Bounds are inclusive.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct RuleShape {
    /// Least estimated size of the prompt.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub min_prompt_tokens: Option<u64>,
    /// Largest estimated size of the prompt.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_prompt_tokens: Option<u64>,
    /// Least ceiling that the client set; one without a ceiling fails.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub min_max_tokens: Option<u64>,
    /// Largest ceiling that the client set; one without a ceiling fails.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_max_tokens: Option<u64>,
    /// Streamed, or not.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stream: Option<bool>,
}

fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}
