//! The rate limit fields of responses.

use fastllm_engine::{RateLimit, RateLimits};
use fastllm_wire::http1::HeaderField;
use http::header::{HeaderName, HeaderValue};

/// The rate limit fields of a response, with their values as text.
#[derive(Debug, Clone)]
pub(crate) struct RateLimitFields {
    fields: [(&'static str, Digits); 5],
    count: usize,
}

/// A decimal number, without an allocation.
#[derive(Debug, Clone, Copy, Default)]
struct Digits {
    text: [u8; 20],
    from: u8,
}

impl Digits {
    fn of(mut number: u64) -> Self {
        let mut text = [b'0'; 20];
        let mut from = text.len();
        for digit in text.iter_mut().rev() {
            from -= 1;
            *digit = b'0' + u8::try_from(number % 10).unwrap_or(0);
            number /= 10;
            if number == 0 {
                break;
            }
        }
        Self {
            text,
            from: u8::try_from(from).unwrap_or(0),
        }
    }

    fn as_bytes(&self) -> &[u8] {
        self.text.get(usize::from(self.from)..).unwrap_or_default()
    }
}

impl RateLimitFields {
    /// Nothing where there are no limits.
    pub(crate) fn of(rates: &RateLimits) -> Option<Self> {
        if rates.is_empty() {
            return None;
        }
        let mut written = Self {
            fields: [("", Digits::default()); 5],
            count: 0,
        };
        let kinds: [(Option<RateLimit>, [&'static str; 2]); 2] = [
            (
                rates.requests,
                [
                    "x-ratelimit-limit-requests",
                    "x-ratelimit-remaining-requests",
                ],
            ),
            (
                rates.tokens,
                ["x-ratelimit-limit-tokens", "x-ratelimit-remaining-tokens"],
            ),
        ];
        for (rate, [limit, remaining]) in kinds {
            if let Some(rate) = rate {
                written.push(limit, rate.limit);
                written.push(remaining, rate.remaining);
            }
        }
        written.push("x-ratelimit-reset", rates.reset_after_seconds);
        Some(written)
    }

    fn push(&mut self, name: &'static str, value: u64) {
        if let Some(field) = self.fields.get_mut(self.count) {
            *field = (name, Digits::of(value));
            self.count += 1;
        }
    }

    /// The fields for a forwarded response.
    pub(crate) fn fields(&self) -> impl Iterator<Item = HeaderField<'_>> {
        self.fields
            .iter()
            .take(self.count)
            .map(|(name, value)| HeaderField {
                name: name.as_bytes(),
                value: value.as_bytes(),
            })
    }

    /// The fields for a response of the gateway itself.
    pub(crate) fn named(&self) -> impl Iterator<Item = (HeaderName, HeaderValue)> {
        let fields = self.fields.iter().take(self.count);
        fields.filter_map(|(name, value)| {
            let value = HeaderValue::from_bytes(value.as_bytes()).ok()?;
            Some((HeaderName::from_static(name), value))
        })
    }
}

/// Whether a field of a response is a rate limit field.
pub(crate) fn is_rate_limit_field(name: &[u8]) -> bool {
    const BEGINNING: &[u8] = b"x-ratelimit-";
    name.get(..BEGINNING.len())
        .is_some_and(|beginning| beginning.eq_ignore_ascii_case(BEGINNING))
}

#[cfg(test)]
mod tests {
    use fastllm_engine::{RateLimit, RateLimits};

    use super::{Digits, RateLimitFields, is_rate_limit_field};

    #[test]
    fn only_existing_limits_are_reported() {
        assert!(RateLimitFields::of(&RateLimits::default()).is_none());
        let rates = RateLimits {
            requests: None,
            tokens: Some(RateLimit {
                limit: 1000,
                remaining: 250,
            }),
            reset_after_seconds: 45,
        };
        let fields = RateLimitFields::of(&rates).unwrap();
        let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
        let written: Vec<_> = fields
            .fields()
            .map(|field| format!("{}: {}", text(field.name), text(field.value)))
            .collect();
        assert_eq!(
            written,
            [
                "x-ratelimit-limit-tokens: 1000",
                "x-ratelimit-remaining-tokens: 250",
                "x-ratelimit-reset: 45",
            ]
        );
        assert_eq!(fields.named().count(), 3);
        assert!(
            is_rate_limit_field(b"X-RateLimit-Reset")
                && !is_rate_limit_field(b"x-rate")
                && !is_rate_limit_field(b"x-request-id")
        );
    }

    #[test]
    fn numbers_are_written_in_decimal() {
        for number in [0, 7, 10, 1_234_567_890, u64::MAX] {
            assert_eq!(Digits::of(number).as_bytes(), number.to_string().as_bytes());
        }
    }
}
