//! The shares of backends in the requests of their pool.

use super::value::{MappingReader, Value};

/// The largest weight.
const MAX_WEIGHT: f64 = 1_000_000.0;

/// What decides about the share of one backend.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) struct Share {
    weight: Option<f64>,
    requests_per_min: Option<f64>,
    tokens_per_min: Option<f64>,
    /// Backends of a higher order are used if none of a lower one is left.
    order: Option<u32>,
}

impl Share {
    pub(super) fn read(params: &mut MappingReader<'_>) -> Self {
        let weight = params
            .take("weight")
            .and_then(|value| value.decimal(0.0..=MAX_WEIGHT));
        let mut rate = |name: &str, effect: &str| {
            let value = params.take(name)?;
            let rate = value.decimal(0.0..=1e12);
            value.warning(effect);
            rate
        };
        let requests_per_min = rate("rpm", REQUESTS);
        let tokens_per_min = rate("tpm", TOKENS);
        let order = params.take("order");
        let order = order.and_then(|value: Value<'_>| value.number(0..=1000));
        Self {
            weight,
            requests_per_min,
            tokens_per_min,
            order,
        }
    }

    /// The requests that may be in flight if nothing else limits them.
    pub(super) fn concurrency(&self) -> Option<u32> {
        let rate = self.requests_per_min.filter(|rate| *rate >= 1.0)?;
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "at least 1, and a cast saturates"
        )]
        Some(rate.min(MAX_WEIGHT) as u32)
    }
}

const REQUESTS: &str = "sets the share of the backend and its concurrency; requests per minute to \
                        a backend are not limited: use max_concurrency, or limits of auth.keys";
const TOKENS: &str = "sets the share of the backend where there is no rpm; tokens per minute to a \
                      backend are not limited: use max_concurrency, or limits of auth.keys";

/// The weights of the backends of a pool. As in LiteLLM, they follow the
/// weights, else the requests per minute, else the tokens per minute.
pub(super) fn weights(pool: &[Share]) -> Vec<u32> {
    let by: [fn(&Share) -> Option<f64>; 3] = [
        |share| share.weight,
        |share| share.requests_per_min,
        |share| share.tokens_per_min,
    ];
    let by = by.into_iter().enumerate();
    let given = by
        .into_iter()
        .find(|(_, by)| pool.iter().any(|share| by(share).is_some()));
    let Some((index, by)) = given else {
        return pool.iter().map(|share| in_order(share, pool, 1)).collect();
    };
    let most = pool.iter().filter_map(by).fold(0.0, f64::max);
    // A backend without a rate is not limited.
    let absent = if index == 0 { 1.0 } else { most };
    let values: Vec<f64> = pool
        .iter()
        .map(|share| by(share).unwrap_or(absent))
        .collect();
    let most = values.iter().copied().fold(0.0, f64::max);
    let whole = values.iter().all(|value| value.fract() == 0.0);
    let scale = if whole && most <= MAX_WEIGHT {
        1.0
    } else {
        (MAX_WEIGHT / most).min(1000.0)
    };
    let shares = pool.iter().zip(values);
    let weight = |(share, value)| in_order(share, pool, scaled(value, scale));
    shares.map(weight).collect()
}

/// The weight of a backend, or 0 if others come before it.
fn in_order(share: &Share, pool: &[Share], weight: u32) -> u32 {
    let first = pool.iter().filter_map(|share| share.order).min();
    if first.is_none() || share.order == first {
        weight
    } else {
        0
    }
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "from 0 to the largest weight"
)]
fn scaled(value: f64, scale: f64) -> u32 {
    let least = f64::from(u8::from(value > 0.0));
    (value * scale).round().clamp(least, MAX_WEIGHT) as u32
}

#[cfg(test)]
mod tests {
    use super::{Share, weights};

    #[test]
    fn weights_keep_the_proportions_of_the_file() {
        let weight = |weight: f64| Share {
            weight: Some(weight),
            ..Share::default()
        };
        let rpm = |rate: f64| Share {
            requests_per_min: Some(rate),
            ..Share::default()
        };
        let none = Share::default();
        let order = |order| Share {
            order: Some(order),
            ..weight(3.0)
        };
        let cases: [(&[Share], &[u32]); 9] = [
            (&[none, none], &[1, 1]),
            (&[weight(3.0), none], &[3, 1]),
            (&[weight(0.9), weight(0.1)], &[900, 100]),
            (&[weight(0.0), weight(1e-9)], &[0, 1]),
            (&[weight(1_000_000.0), weight(0.5)], &[1_000_000, 1]),
            (&[rpm(600.0), rpm(60.0), none], &[600, 60, 600]),
            (&[rpm(5e7), rpm(5e6)], &[1_000_000, 100_000]),
            (&[order(2), order(1), order(1), weight(3.0)], &[0, 3, 3, 0]),
            (&[weight(2.0), rpm(600.0)], &[2, 1]),
        ];
        for (shares, expected) in cases {
            assert_eq!(weights(shares), expected, "{shares:?}");
        }
    }
}
