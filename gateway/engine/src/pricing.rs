//! The cost of a request: one function for both planes, so that a gateway
//! reserves and settles exactly what the control plane stores.
//!
//! Tokens have classes. Cached, cache-written and audio tokens of a prompt are
//! disjoint parts of it; reasoning and audio tokens are parts of the response.
//! A class without its own price costs as much as the whole it belongs to. A
//! part is never larger than the rest of its whole.
//!
//! Images, characters and audio measure the same work in other units. Each unit
//! with a price adds to the cost. Work without any price is unpriced, which is
//! not free.

use fastllm_contract::{Micros, Prices, Tokens, UsageEvent};

/// The priced quantities of a request. A quantity of 0 needs no price.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Quantities {
    /// Whether the tokens are reported or estimated: unknown is not zero.
    pub tokens_known: bool,
    /// Whether they are estimated: measured quantities with a price take
    /// precedence.
    pub estimated: bool,
    /// Tokens of the prompt, all classes.
    pub prompt: Tokens,
    /// Tokens of the response, all classes.
    pub completion: Tokens,
    /// Prompt tokens read from the backend's cache.
    pub cached: Tokens,
    /// Prompt tokens written to the backend's cache.
    pub cache_write: Tokens,
    /// Audio tokens of the prompt.
    pub audio_prompt: Tokens,
    /// Reasoning tokens of the response.
    pub reasoning: Tokens,
    /// Audio tokens of the response.
    pub audio_completion: Tokens,
    /// Images of the response.
    pub images: u64,
    /// Characters of text converted to speech.
    pub input_characters: u64,
    /// Transcribed audio, in milliseconds.
    pub audio_ms: u64,
}

impl From<&UsageEvent> for Quantities {
    fn from(event: &UsageEvent) -> Self {
        Self {
            tokens_known: event.usage_reported || event.estimated,
            estimated: event.estimated,
            prompt: event.prompt_tokens,
            completion: event.completion_tokens,
            cached: event.cached_tokens.unwrap_or_default(),
            cache_write: event.cache_write_tokens.unwrap_or_default(),
            audio_prompt: event.audio_prompt_tokens.unwrap_or_default(),
            reasoning: event.reasoning_tokens.unwrap_or_default(),
            audio_completion: event.audio_completion_tokens.unwrap_or_default(),
            images: event.images.map(u64::from).unwrap_or_default(),
            input_characters: event.input_characters.unwrap_or_default(),
            audio_ms: event.audio_ms.unwrap_or_default(),
        }
    }
}

/// The charge of a usage event.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Charge {
    /// The cost; `None` if unknown.
    pub cost: Option<Micros>,
    /// The cost avoided by a response from the gateway's cache.
    pub saved: Option<Micros>,
}

/// The charge of an event by the prices of its time; `prices` is `None` if the
/// model had none. A refusal or a cached response is free; else the cost
/// reported by the provider counts, else [`cost`].
pub fn charge(event: &UsageEvent, prices: Option<&Prices>) -> Charge {
    let free = Some(Micros(0));
    if event.refusal.is_some() {
        return Charge {
            cost: free,
            saved: None,
        };
    }
    let by_prices = || cost(prices?, &Quantities::from(event));
    let full = event.cost_micros.or_else(by_prices);
    if event.cached {
        Charge {
            cost: free,
            saved: full,
        }
    } else {
        Charge {
            cost: full,
            saved: None,
        }
    }
}

/// The cost of quantities, rounded once at the end, half up to a whole
/// micro-unit, at most [`u64::MAX`]. `None` if a price is missing:
///
/// - an image, character or millisecond that is counted and priced adds its
///   price, and stands for tokens that have none;
/// - tokens that are known add theirs, class by class, and stand for other
///   quantities that have none; estimated ones only where nothing else has a
///   price;
/// - nothing used costs nothing, where the model has any price at all.
pub fn cost(prices: &Prices, quantities: &Quantities) -> Option<Micros> {
    let measures = Bill::of(&[
        (quantities.images, prices.image_price, EACH),
        (
            quantities.input_characters,
            prices.input_price_per_mchar,
            MILLIONTH,
        ),
        (
            quantities.audio_ms,
            prices.audio_price_per_minute,
            MILLISECOND,
        ),
    ]);
    let guessed = quantities.estimated && measures.priced;
    let tokens = if quantities.tokens_known && !guessed {
        tokens(prices, quantities)
    } else {
        Bill::default()
    };
    let complete = if measures.priced {
        true
    } else if tokens.priced || tokens.unpriced {
        !tokens.unpriced
    } else {
        quantities.tokens_known && !measures.unpriced && *prices != Prices::default()
    };
    let sum = measures.sum.saturating_add(tokens.sum);
    complete.then(|| round(sum))
}

/// Parts of a micro-unit in which costs are added: exact for millionths and for
/// milliseconds of a minute.
const PARTS: u128 = 3_000_000;
const EACH: u128 = PARTS;
const MILLIONTH: u128 = PARTS / 1_000_000;
const MILLISECOND: u128 = PARTS / 60_000;

/// The cost of some quantities.
#[derive(Default)]
struct Bill {
    /// In [`PARTS`] of a micro-unit.
    sum: u128,
    /// Whether a used quantity has a price.
    priced: bool,
    /// Whether a used quantity has no price.
    unpriced: bool,
}

impl Bill {
    /// The cost of counts with their prices, each for this number of [`PARTS`]
    /// of the price.
    fn of(items: &[(u64, Option<Micros>, u128)]) -> Self {
        let mut bill = Self::default();
        for &(count, price, unit) in items.iter().filter(|(count, ..)| *count > 0) {
            if let Some(Micros(price)) = price {
                let exact = (u128::from(count) * u128::from(price)).saturating_mul(unit);
                bill.sum = bill.sum.saturating_add(exact);
                bill.priced = true;
            } else {
                bill.unpriced = true;
            }
        }
        bill
    }
}

fn tokens(prices: &Prices, quantities: &Quantities) -> Bill {
    let (input, output) = (prices.input_price_per_mtok, prices.output_price_per_mtok);
    let mut prompt = quantities.prompt.0;
    let mut completion = quantities.completion.0;
    let cached = take(&mut prompt, quantities.cached);
    let cache_write = take(&mut prompt, quantities.cache_write);
    let audio_prompt = take(&mut prompt, quantities.audio_prompt);
    let reasoning = take(&mut completion, quantities.reasoning);
    let audio_completion = take(&mut completion, quantities.audio_completion);
    Bill::of(
        &[
            (cached, prices.cached_input_price_per_mtok.or(input)),
            (cache_write, prices.cache_write_price_per_mtok.or(input)),
            (audio_prompt, prices.audio_input_price_per_mtok.or(input)),
            (prompt, input),
            (reasoning, prices.reasoning_price_per_mtok.or(output)),
            (
                audio_completion,
                prices.audio_output_price_per_mtok.or(output),
            ),
            (completion, output),
        ]
        .map(|(count, price)| (count, price, MILLIONTH)),
    )
}

/// Takes a part from what is left of its whole.
fn take(left: &mut u64, Tokens(part): Tokens) -> u64 {
    let part = part.min(*left);
    *left -= part;
    part
}

fn round(sum: u128) -> Micros {
    let whole = sum.saturating_add(PARTS / 2) / PARTS;
    Micros(u64::try_from(whole).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests;
