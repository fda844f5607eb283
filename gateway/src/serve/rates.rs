//! What clients are told of their limits.

use fastllm_engine::{Rate, Rates};
use http::header::{HeaderName, HeaderValue};

const LIMIT_REQUESTS: HeaderName = HeaderName::from_static("x-ratelimit-limit-requests");
const REMAINING_REQUESTS: HeaderName = HeaderName::from_static("x-ratelimit-remaining-requests");
const LIMIT_TOKENS: HeaderName = HeaderName::from_static("x-ratelimit-limit-tokens");
const REMAINING_TOKENS: HeaderName = HeaderName::from_static("x-ratelimit-remaining-tokens");
const RESET: HeaderName = HeaderName::from_static("x-ratelimit-reset");

/// The fields of an answer that speak of limits; none where there are no
/// limits.
pub(crate) fn rate_fields(rates: &Rates) -> Vec<(HeaderName, HeaderValue)> {
    if rates.is_empty() {
        return Vec::new();
    }
    let of = |rate: Option<Rate>, limit: HeaderName, remaining: HeaderName| {
        rate.map(|rate| {
            [
                (limit, HeaderValue::from(rate.limit)),
                (remaining, HeaderValue::from(rate.remaining)),
            ]
        })
    };
    let reset = rates.full_after.div_ceil(1_000_000);
    [
        of(rates.requests, LIMIT_REQUESTS, REMAINING_REQUESTS),
        of(rates.tokens, LIMIT_TOKENS, REMAINING_TOKENS),
    ]
    .into_iter()
    .flatten()
    .flatten()
    .chain([(RESET, HeaderValue::from(reset))])
    .collect()
}

/// Whether a field of an answer speaks of limits.
pub(crate) fn is_rate(name: &[u8]) -> bool {
    const BEGINNING: &[u8] = b"x-ratelimit-";
    name.get(..BEGINNING.len())
        .is_some_and(|beginning| beginning.eq_ignore_ascii_case(BEGINNING))
}

#[cfg(test)]
mod tests {
    use fastllm_engine::{Rate, Rates};

    use super::{is_rate, rate_fields};

    #[test]
    fn only_what_is_limited_is_told() {
        assert!(rate_fields(&Rates::default()).is_empty());
        let rates = Rates {
            requests: None,
            tokens: Some(Rate {
                limit: 1000,
                remaining: 250,
            }),
            full_after: 44_000_001,
        };
        let fields: Vec<_> = rate_fields(&rates)
            .into_iter()
            .map(|(name, value)| format!("{name}: {}", value.to_str().unwrap()))
            .collect();
        assert_eq!(
            fields,
            [
                "x-ratelimit-limit-tokens: 1000",
                "x-ratelimit-remaining-tokens: 250",
                "x-ratelimit-reset: 45",
            ]
        );
        assert!(is_rate(b"X-RateLimit-Reset") && !is_rate(b"x-rate") && !is_rate(b"x-request-id"));
    }
}
