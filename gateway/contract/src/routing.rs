use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize};

use crate::{ModelName, PrincipalId};

/// How a backend is chosen among those of a model.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum PolicyKind {
    /// The backend that has seen the longest prefix of the prompt.
    #[default]
    CacheAffinity,
    /// Fewest requests in flight.
    LeastLoaded,
    /// In rotation.
    RoundRobin,
    /// Lowest latency.
    LowestLatency,
}

/// A text that is no [`PolicyKind`].
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

    /// The name in configuration, in the admin API and on `/health`.
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

/// An unknown policy reads as none: the default applies.
pub(crate) fn known_policy<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<PolicyKind>, D::Error> {
    let name = Option::<String>::deserialize(deserializer)?;
    Ok(name.and_then(|name| name.parse().ok()))
}

/// A virtual model: its rules choose the concrete model that serves a request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct VirtualModel {
    /// The name that clients use; different from all concrete models.
    pub name: ModelName,
    /// The rules, in order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub rules: Vec<Rule>,
    /// The targets if no rule matches.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub default_targets: Vec<Target>,
    /// What the weights of targets divide.
    #[serde(default, skip_serializing_if = "is_default")]
    pub split_by: SplitBy,
}

/// What stays together if targets share requests.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SplitBy {
    /// All requests of one caller.
    Caller,
    /// All requests with the same beginning of the prompt; also the fallback
    /// for unknown values.
    #[default]
    #[serde(other)]
    Prompt,
}

/// A concrete model that may serve a virtual one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Target {
    /// The model.
    pub model: ModelName,
    /// Its weight among the targets; 0 only for failover.
    #[serde(default = "usual_weight")]
    pub weight: u32,
}

fn usual_weight() -> u32 {
    100
}

/// Conditions that must all match, and the targets of matching requests.
/// Without conditions it always matches.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Rule {
    /// Conditions on the caller.
    #[serde(skip_serializing_if = "is_default")]
    pub caller: RuleCaller,
    /// Conditions on the request.
    #[serde(skip_serializing_if = "is_default")]
    pub shape: RuleShape,
    /// Header fields that must have exactly these values.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub headers: BTreeMap<String, String>,
    /// Minimum used share of the caller's most used budget, in percent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub min_budget_used_percent: Option<u8>,
    /// Maximum used share, in percent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_budget_used_percent: Option<u8>,
    /// Some healthy backend of the rule's own targets has fewer requests in
    /// flight than this.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_inflight_per_backend: Option<u32>,
    /// From this minute of the day on. If later than `before_minute`, the
    /// window spans midnight.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub after_minute: Option<u16>,
    /// Before this minute of the day.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub before_minute: Option<u16>,
    /// Days of the week, Monday is 1; empty: every day.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub days: Vec<u8>,
    /// The offset added to UTC for these times.
    #[serde(skip_serializing_if = "is_default")]
    pub utc_offset_minutes: i32,
    /// The class of the prompt.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub class: Option<String>,
    /// The targets, in order.
    pub targets: Vec<Target>,
}

/// Conditions on the caller. An empty list matches every caller.
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

/// Conditions on the request. Bounds are inclusive.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct RuleShape {
    /// Minimum estimated prompt tokens.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub min_prompt_tokens: Option<u64>,
    /// Maximum estimated prompt tokens.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_prompt_tokens: Option<u64>,
    /// Minimum token limit set by the client; a request without one does not
    /// match.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub min_max_tokens: Option<u64>,
    /// Maximum token limit set by the client; a request without one does not
    /// match.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_max_tokens: Option<u64>,
    /// Whether the request is streamed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stream: Option<bool>,
}

fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}
