//! Refusals: why the gateway rejects a request, and the error that the client
//! receives.

mod invalid_query;
mod rate_limited;

use std::borrow::Cow;
use std::cmp::Reverse;
use std::time::Duration;

use fastllm_contract::RefusalKind;

pub use invalid_query::InvalidQuery;
pub use rate_limited::{BudgetKind, LimitKind, LimitScope, RateLimit, RateLimited, RateLimits};

/// A request that the gateway rejects itself.
///
/// Invariant: the text for the client names no backend, no address, no other
/// caller and no model that the client did not name itself.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// Missing, unknown or disabled key.
    #[error("no valid API key was given")]
    InvalidKey,
    /// A key past its expiry.
    #[error("the API key has expired")]
    ExpiredKey,
    /// An unknown endpoint; returned only to callers with a key.
    #[error("no such route")]
    NoRoute,
    /// An invalid body or parameter.
    #[error("{message}")]
    InvalidRequest {
        /// The description for the client.
        message: Cow<'static, str>,
        /// The stable error code.
        code: &'static str,
        /// The offending member, if there is one.
        param: Option<&'static str>,
    },
    /// A query string that is not forwarded.
    #[error("{0}")]
    InvalidQuery(InvalidQuery),
    /// The client stopped sending its body.
    #[error("the request body did not arrive in time")]
    BodyTimeout,
    /// A body over the limit.
    #[error("the request body is larger than {limit} bytes")]
    PayloadTooLarge {
        /// The limit, in bytes.
        limit: u64,
    },
    /// An unknown model. The text does not repeat its name.
    #[error("the requested model does not exist")]
    ModelNotFound,
    /// The model exists, but the caller may use none of the candidates.
    #[error("this API key may not use the requested model")]
    ModelAccessDenied,
    /// The request asks for more tokens than a limit allows per minute.
    #[error(
        "the request needs {need} tokens, more than the limit of {limit} tokens per minute of {scope}"
    )]
    LargerThanLimit {
        /// Whose limit.
        scope: LimitScope,
        /// Tokens per minute.
        limit: u64,
        /// Estimated tokens of the prompt, and the requested maximum of the response.
        need: u64,
    },
    /// A rate or concurrency limit is reached; a later request may pass.
    #[error("{0}")]
    RateLimited(RateLimited),
    /// A budget is spent.
    #[error("the {kind} budget of {scope} is spent")]
    BudgetExceeded {
        /// Whose budget.
        scope: LimitScope,
        /// The spent dimension.
        kind: BudgetKind,
    },
    /// No candidate produced a response.
    #[error("no upstream could answer the request")]
    UpstreamUnavailable,
    /// Every candidate rejected the gateway's credential or configuration, the
    /// last one the credential.
    #[error("the upstream rejected the gateway's credential; its operator has to correct it")]
    UpstreamCredentialRejected,
    /// Every candidate rejected the gateway's credential or configuration, the
    /// last one the address, the endpoint or the model.
    #[error(
        "the upstream does not serve this model at this endpoint; the operator of the gateway \
         has to correct its configuration"
    )]
    UpstreamMisconfigured,
    /// The last attempts timed out.
    #[error("the upstream did not answer in time")]
    UpstreamTimeout,
    /// The gateway sheds load: memory for request bodies is exhausted, or every
    /// backend is full and its queue is full or timed out.
    #[error("the gateway is overloaded; try again shortly")]
    Overloaded,
    /// No snapshot is loaded yet, so no key can be checked.
    #[error("the gateway has no configuration yet; try again shortly")]
    NotReady,
    /// An internal error of the gateway.
    #[error("the gateway could not build the upstream request")]
    Internal,
}

/// The category by which refusals are counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Category {
    /// 401.
    Unauthenticated,
    /// 403.
    Unauthorised,
    /// 404 for a model.
    ModelNotFound,
    /// 404 for a route.
    NotFound,
    /// 413.
    BodyTooLarge,
    /// 400 and 408.
    InvalidRequest,
    /// 429.
    RateLimited,
    /// 402.
    OverBudget,
    /// 503 of a gateway that sheds load.
    Overloaded,
    /// 503 of a gateway without a snapshot.
    NotReady,
    /// 502, 504 and 500: counted as an outcome, not as a rejection.
    Unavailable,
}

impl Category {
    /// Every category, for registering counters.
    pub const ALL: [Self; 11] = [
        Self::Unauthenticated,
        Self::Unauthorised,
        Self::ModelNotFound,
        Self::NotFound,
        Self::BodyTooLarge,
        Self::InvalidRequest,
        Self::RateLimited,
        Self::OverBudget,
        Self::Overloaded,
        Self::NotReady,
        Self::Unavailable,
    ];

    /// The label value.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Unauthenticated => "unauthenticated",
            Self::Unauthorised => "unauthorised",
            Self::ModelNotFound => "model_not_found",
            Self::NotFound => "not_found",
            Self::BodyTooLarge => "body_too_large",
            Self::InvalidRequest => "invalid_request",
            Self::RateLimited => "rate_limited",
            Self::OverBudget => "over_budget",
            Self::Overloaded => "overloaded",
            Self::NotReady => "not_ready",
            Self::Unavailable => "unavailable",
        }
    }
}

/// The `type` of error bodies for requests that are malformed.
const INVALID_REQUEST: &str = "invalid_request_error";

/// The `retry-after` of a gateway that is overloaded or not ready.
const RETRY_SOON: Duration = Duration::from_secs(1);

impl Refusal {
    /// A 400 without an offending member.
    pub fn invalid(message: impl Into<Cow<'static, str>>) -> Self {
        Self::InvalidRequest {
            message: message.into(),
            code: "invalid_request",
            param: None,
        }
    }

    /// The HTTP status.
    pub fn status(&self) -> u16 {
        match self {
            Self::InvalidRequest { .. } | Self::InvalidQuery(_) | Self::LargerThanLimit { .. } => {
                400
            }
            Self::InvalidKey | Self::ExpiredKey => 401,
            Self::BudgetExceeded { .. } => 402,
            Self::ModelAccessDenied => 403,
            Self::NoRoute | Self::ModelNotFound => 404,
            Self::BodyTimeout => 408,
            Self::PayloadTooLarge { .. } => 413,
            Self::RateLimited(_) => 429,
            Self::Internal => 500,
            Self::UpstreamUnavailable
            | Self::UpstreamCredentialRejected
            | Self::UpstreamMisconfigured => 502,
            Self::Overloaded | Self::NotReady => 503,
            Self::UpstreamTimeout => 504,
        }
    }

    /// The `type` member of the error body.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::InvalidRequest { .. }
            | Self::InvalidQuery(_)
            | Self::LargerThanLimit { .. }
            | Self::BodyTimeout => INVALID_REQUEST,
            other => other.code(),
        }
    }

    /// The `code` member of the error body: stable, for programs.
    pub fn code(&self) -> &'static str {
        match self {
            Self::InvalidKey => "invalid_api_key",
            Self::ExpiredKey => "expired_api_key",
            Self::NoRoute => "not_found",
            Self::InvalidRequest { code, .. } => code,
            Self::InvalidQuery(invalid) => invalid.code(),
            Self::BodyTimeout => "request_timeout",
            Self::PayloadTooLarge { .. } => "payload_too_large",
            Self::ModelNotFound => "model_not_found",
            Self::ModelAccessDenied => "model_access_denied",
            Self::LargerThanLimit { .. } => "larger_than_limit",
            Self::RateLimited(_) => "rate_limit_exceeded",
            Self::BudgetExceeded { .. } => "budget_exceeded",
            Self::UpstreamUnavailable => "upstream_unavailable",
            Self::UpstreamCredentialRejected => "upstream_credential_rejected",
            Self::UpstreamMisconfigured => "upstream_misconfigured",
            Self::UpstreamTimeout => "upstream_timeout",
            Self::Overloaded => "overloaded",
            Self::NotReady => "not_ready",
            Self::Internal => "internal_error",
        }
    }

    /// The `param` member of the error body.
    pub fn param(&self) -> Option<&str> {
        match self {
            Self::InvalidRequest { param, .. } => *param,
            Self::InvalidQuery(invalid) => invalid.param(),
            Self::ModelNotFound | Self::ModelAccessDenied => Some("model"),
            _ => None,
        }
    }

    /// The category in metrics.
    pub fn category(&self) -> Category {
        match self {
            Self::InvalidKey | Self::ExpiredKey => Category::Unauthenticated,
            Self::ModelAccessDenied => Category::Unauthorised,
            Self::ModelNotFound => Category::ModelNotFound,
            Self::NoRoute => Category::NotFound,
            Self::PayloadTooLarge { .. } => Category::BodyTooLarge,
            Self::InvalidRequest { .. }
            | Self::InvalidQuery(_)
            | Self::LargerThanLimit { .. }
            | Self::BodyTimeout => Category::InvalidRequest,
            Self::RateLimited(_) => Category::RateLimited,
            Self::BudgetExceeded { .. } => Category::OverBudget,
            Self::Overloaded => Category::Overloaded,
            Self::NotReady => Category::NotReady,
            Self::UpstreamUnavailable
            | Self::UpstreamCredentialRejected
            | Self::UpstreamMisconfigured
            | Self::UpstreamTimeout
            | Self::Internal => Category::Unavailable,
        }
    }

    /// The kind in usage events; `None` for refusals that are only counted.
    pub fn recorded_as(&self) -> Option<RefusalKind> {
        match self {
            Self::ModelAccessDenied => Some(RefusalKind::Authorisation),
            Self::UpstreamUnavailable
            | Self::UpstreamCredentialRejected
            | Self::UpstreamMisconfigured
            | Self::UpstreamTimeout
            | Self::Internal => Some(RefusalKind::NoBackend),
            Self::RateLimited(_) => Some(RefusalKind::RateLimit),
            Self::BudgetExceeded { .. } => Some(RefusalKind::Budget),
            Self::Overloaded => Some(RefusalKind::Overload),
            Self::InvalidKey
            | Self::ExpiredKey
            | Self::NoRoute
            | Self::InvalidRequest { .. }
            | Self::InvalidQuery(_)
            | Self::LargerThanLimit { .. }
            | Self::BodyTimeout
            | Self::PayloadTooLarge { .. }
            | Self::ModelNotFound
            | Self::NotReady => None,
        }
    }

    /// The order in which one of several refusals is reported: impossible requests,
    /// then the slowest rate limit, then concurrency, then budgets.
    pub(crate) fn precedence(&self) -> (u8, Reverse<Duration>) {
        let (class, wait) = match self {
            Self::LargerThanLimit { .. } => (0, Duration::ZERO),
            Self::RateLimited(limited) => match limited.kind {
                LimitKind::Requests | LimitKind::Tokens => (1, limited.retry_after),
                LimitKind::Concurrency => (2, Duration::ZERO),
                LimitKind::TokenBudget | LimitKind::CostBudget => (3, Duration::ZERO),
            },
            _ => (4, Duration::ZERO),
        };
        (class, Reverse(wait))
    }

    /// The order in which the refusal of one of several candidates is reported: the
    /// one that ends soonest.
    pub(crate) fn prospect(&self) -> (u8, Duration) {
        match self {
            Self::RateLimited(limited) => (0, limited.retry_after),
            Self::BudgetExceeded { .. } => (1, Duration::ZERO),
            _ => (2, Duration::ZERO),
        }
    }

    /// The state of the caller's rate limits.
    pub fn rate_limits(&self) -> Option<&RateLimits> {
        match self {
            Self::RateLimited(limited) => Some(&limited.rate_limits),
            _ => None,
        }
    }

    /// Whether the same request can only fail again until an operator acts.
    pub fn is_permanent(&self) -> bool {
        matches!(
            self,
            Self::UpstreamCredentialRejected | Self::UpstreamMisconfigured | Self::Internal
        )
    }

    /// The value of `retry-after`.
    pub fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::Overloaded | Self::NotReady => Some(RETRY_SOON),
            Self::RateLimited(limited) => Some(limited.retry_after),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{
        BudgetKind, InvalidQuery, LimitKind, LimitScope, RateLimited, RateLimits, Refusal,
    };

    fn every() -> Vec<Refusal> {
        vec![
            Refusal::InvalidKey,
            Refusal::ExpiredKey,
            Refusal::NoRoute,
            Refusal::invalid("why"),
            Refusal::InvalidQuery(InvalidQuery::Malformed),
            Refusal::InvalidQuery(InvalidQuery::Unsupported("a".into())),
            Refusal::InvalidQuery(InvalidQuery::Credential("key".into())),
            Refusal::BodyTimeout,
            Refusal::PayloadTooLarge { limit: 5 },
            Refusal::ModelNotFound,
            Refusal::ModelAccessDenied,
            Refusal::LargerThanLimit {
                scope: LimitScope::Key,
                limit: 1,
                need: 2,
            },
            Refusal::RateLimited(RateLimited {
                kind: LimitKind::Requests,
                scope: LimitScope::Team,
                retry_after: std::time::Duration::from_secs(1),
                rate_limits: RateLimits::default(),
            }),
            Refusal::BudgetExceeded {
                scope: LimitScope::Model,
                kind: BudgetKind::Cost,
            },
            Refusal::UpstreamUnavailable,
            Refusal::UpstreamCredentialRejected,
            Refusal::UpstreamMisconfigured,
            Refusal::UpstreamTimeout,
            Refusal::Overloaded,
            Refusal::NotReady,
            Refusal::Internal,
        ]
    }

    #[test]
    fn refusals_map_to_stable_statuses_and_codes() {
        let table: Vec<String> = every()
            .iter()
            .map(|refusal| {
                format!(
                    "{} {} {} {}",
                    refusal.status(),
                    refusal.kind(),
                    refusal.code(),
                    refusal.category().as_str()
                )
            })
            .collect();
        assert_eq!(
            table,
            [
                "401 invalid_api_key invalid_api_key unauthenticated",
                "401 expired_api_key expired_api_key unauthenticated",
                "404 not_found not_found not_found",
                "400 invalid_request_error invalid_request invalid_request",
                "400 invalid_request_error invalid_query invalid_request",
                "400 invalid_request_error unsupported_query_parameter invalid_request",
                "400 invalid_request_error credential_in_query invalid_request",
                "408 invalid_request_error request_timeout invalid_request",
                "413 payload_too_large payload_too_large body_too_large",
                "404 model_not_found model_not_found model_not_found",
                "403 model_access_denied model_access_denied unauthorised",
                "400 invalid_request_error larger_than_limit invalid_request",
                "429 rate_limit_exceeded rate_limit_exceeded rate_limited",
                "402 budget_exceeded budget_exceeded over_budget",
                "502 upstream_unavailable upstream_unavailable unavailable",
                "502 upstream_credential_rejected upstream_credential_rejected unavailable",
                "502 upstream_misconfigured upstream_misconfigured unavailable",
                "504 upstream_timeout upstream_timeout unavailable",
                "503 overloaded overloaded overloaded",
                "503 not_ready not_ready not_ready",
                "500 internal_error internal_error unavailable",
            ]
        );
    }
}
