use std::fmt;
use std::time::Duration;

use fastllm_contract::Subject;

/// The subject of a limit or budget, as named in errors.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LimitScope {
    /// All keys of a principal together.
    Principal,
    /// A principal's use of one model.
    Model,
    /// One key.
    Key,
    /// All principals of a team together.
    Team,
}

impl LimitScope {
    pub(crate) fn of(subject: &Subject) -> Self {
        match subject {
            Subject::Principal(_) => Self::Principal,
            Subject::Model(..) => Self::Model,
            Subject::Key(_) => Self::Key,
            Subject::Team(_) => Self::Team,
        }
    }
}

impl fmt::Display for LimitScope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Principal => "this caller",
            Self::Model => "this caller and model",
            Self::Key => "this API key",
            Self::Team => "this caller's team",
        })
    }
}

/// The kind of an exhausted limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LimitKind {
    /// Requests per minute.
    Requests,
    /// Tokens per minute.
    Tokens,
    /// Concurrent requests.
    Concurrency,
    /// This gateway's share of a token budget, including reservations; the whole
    /// budget is not spent.
    TokenBudget,
    /// The same for a cost budget.
    CostBudget,
}

/// A dimension of a budget.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BudgetKind {
    /// Tokens of prompts and responses.
    Tokens,
    /// Money.
    Cost,
}

impl fmt::Display for BudgetKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Tokens => "token",
            Self::Cost => "cost",
        })
    }
}

/// A request that a limit does not admit yet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RateLimited {
    /// The kind of limit.
    pub kind: LimitKind,
    /// Whose.
    pub scope: LimitScope,
    /// When to retry. Exact for rate limits, if no other request comes.
    pub retry_after: Duration,
    /// The state of the rate limits.
    pub rate_limits: RateLimits,
}

impl fmt::Display for RateLimited {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scope = self.scope;
        match self.kind {
            LimitKind::Requests => {
                write!(f, "the limit of requests per minute for {scope} is reached")
            }
            LimitKind::Tokens => write!(f, "the limit of tokens per minute for {scope} is reached"),
            LimitKind::Concurrency => {
                write!(f, "the limit of concurrent requests for {scope} is reached")
            }
            LimitKind::TokenBudget => write!(
                f,
                "the rest of the token budget of {scope} is reserved for requests in flight"
            ),
            LimitKind::CostBudget => write!(
                f,
                "the rest of the cost budget of {scope} is reserved for requests in flight"
            ),
        }
    }
}

/// The state of a limit per minute at this gateway.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RateLimit {
    /// This gateway's share of the limit, at least 1.
    pub limit: u64,
    /// What it would admit now.
    pub remaining: u64,
}

/// The rate limits that the client is informed about: of each kind the one with
/// the least remaining.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RateLimits {
    /// Requests.
    pub requests: Option<RateLimit>,
    /// Tokens.
    pub tokens: Option<RateLimit>,
    /// Whole seconds until all of them are full again.
    pub reset_after_seconds: u64,
}

impl RateLimits {
    /// Whether no rate limit applies.
    pub fn is_empty(&self) -> bool {
        self.requests.is_none() && self.tokens.is_none()
    }

    /// Adds the state of a rate limit; the one with the least remaining is kept.
    pub(crate) fn include(&mut self, kind: LimitKind, limit: RateLimit, reset_after_seconds: u64) {
        let least = match kind {
            LimitKind::Requests => &mut self.requests,
            _ => &mut self.tokens,
        };
        if least.is_none_or(|least| limit.remaining < least.remaining) {
            *least = Some(limit);
        }
        self.reset_after_seconds = self.reset_after_seconds.max(reset_after_seconds);
    }
}
