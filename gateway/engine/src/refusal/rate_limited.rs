use std::fmt;
use std::time::Duration;

use fastllm_contract::{Subject, Timestamp};

use super::account::{Account, LimitTerms};
use super::bucket::{BucketLevel, RefillRate};

/// Whose limit or budget it is, in the words of an error.
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
    pub(super) fn of(subject: &Subject) -> Self {
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

/// What a request found no more of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LimitKind {
    /// Requests a minute.
    Requests,
    /// Tokens a minute.
    Tokens,
    /// Requests at once.
    Concurrency,
    /// This gateway's share of a budget of tokens, or what requests in flight
    /// leave of it: the whole is not spent.
    TokenBudget,
    /// The same of a budget of money.
    CostBudget,
}

/// A request that came too soon.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RateLimited {
    /// Of what.
    pub what: LimitKind,
    /// Whose.
    pub scope: LimitScope,
    /// When it is worth another try: true for rates, if nobody else comes.
    pub retry_after: Duration,
    /// What is left of the rates.
    pub rates: RateLimits,
}

impl RateLimited {
    pub(super) fn new(
        account: &Account,
        terms: &LimitTerms,
        (what, wait): (LimitKind, u64),
        at: Timestamp,
    ) -> Self {
        Self {
            what,
            scope: LimitScope::of(account.subject()),
            retry_after: Duration::from_micros(wait).max(Duration::from_secs(1)),
            rates: RateLimits::of(account, terms, at),
        }
    }
}

impl fmt::Display for RateLimited {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scope = self.scope;
        match self.what {
            LimitKind::Requests => {
                write!(f, "the limit of requests a minute for {scope} is reached")
            }
            LimitKind::Tokens => write!(f, "the limit of tokens a minute for {scope} is reached"),
            LimitKind::Concurrency => write!(f, "{scope} has as many requests under way as it may"),
            LimitKind::TokenBudget => write!(
                f,
                "what is left of the token budget of {scope} is set aside for requests under way"
            ),
            LimitKind::CostBudget => write!(
                f,
                "what is left of the cost budget of {scope} is set aside for requests under way"
            ),
        }
    }
}

/// What is left of a limit a minute, at this gateway.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RateLimit {
    /// What this gateway lets through in a minute: its share of the limit, at
    /// least 1.
    pub limit: u64,
    /// What it would let through now.
    pub remaining: u64,
}

/// The rates that a client is told of: of each kind the one of which least is
/// left, and when the last of them is full again.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RateLimits {
    /// Requests.
    pub requests: Option<RateLimit>,
    /// Tokens.
    pub tokens: Option<RateLimit>,
    /// Whole seconds.
    pub reset_after_seconds: u64,
}

impl RateLimits {
    /// Whether there is any to tell of.
    pub fn is_empty(&self) -> bool {
        self.requests.is_none() && self.tokens.is_none()
    }

    /// Takes a rate in: of each kind the least is told.
    pub(super) fn include(&mut self, what: LimitKind, pace: RefillRate, level: BucketLevel) {
        let least = match what {
            LimitKind::Requests => &mut self.requests,
            _ => &mut self.tokens,
        };
        let rate = RateLimit {
            limit: pace.whole().max(1),
            remaining: level.whole(),
        };
        if least.is_none_or(|least| rate.remaining < least.remaining) {
            *least = Some(rate);
        }
        self.reset_after_seconds = self.reset_after_seconds.max(pace.until_full(level));
    }

    fn of(account: &Account, terms: &LimitTerms, at: Timestamp) -> Self {
        let mut rates = Self::default();
        if let Some(pace) = terms.requests {
            rates.include(LimitKind::Requests, pace, account.requests.level(pace, at));
        }
        if let Some(pace) = terms.tokens {
            rates.include(LimitKind::Tokens, pace, account.tokens.level(pace, at));
        }
        rates
    }
}
