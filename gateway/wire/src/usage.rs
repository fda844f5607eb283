//! The usage that a response reports.
//!
//! The values come from the `usage` object of an OpenAI-style response, with
//! the names of chat (`prompt_tokens`) or of the responses, transcription and
//! image APIs (`input_tokens`); Cohere-style rerankers have `meta` instead.
//! Absent means unknown, never zero: a transcription that is charged by
//! duration has no token counts, but [`Quantities`].

mod body_inspector;
mod images;
mod prefix_inspector;
mod quantities;

use std::sync::LazyLock;

use memchr::memmem::Finder;
use serde::Deserialize;
use serde::de::IgnoredAny;

pub use body_inspector::BodyInspector;
pub use prefix_inspector::PrefixInspector;
pub use quantities::{Measure, Quantities};

use crate::json::{self, Object};
use quantities::duration_ms;

static USAGE_KEY: LazyLock<Finder<'static>> = LazyLock::new(|| Finder::new(b"\"usage\""));

/// Token counts and cost as reported by the upstream.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Usage {
    /// Prompt tokens, including cached ones.
    pub prompt_tokens: u64,
    /// Tokens of the response, including reasoning. `None` if neither they nor
    /// a total were reported.
    pub completion_tokens: Option<u64>,
    /// Prompt tokens read from the upstream's cache.
    pub cached_tokens: Option<u64>,
    /// Prompt tokens written to the upstream's cache.
    pub cache_write_tokens: Option<u64>,
    /// Response tokens spent on reasoning.
    pub reasoning_tokens: Option<u64>,
    /// Audio tokens of the prompt.
    pub audio_prompt_tokens: Option<u64>,
    /// Audio tokens of the response.
    pub audio_completion_tokens: Option<u64>,
    /// The upstream's charge, in millionths of its currency unit.
    pub cost_micros: Option<u64>,
}

/// An event with a `usage` object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EventUsage {
    /// The usage; `None` if the object has no trustworthy counts.
    pub usage: Option<Usage>,
    /// The billed duration of the audio, in milliseconds.
    pub audio_ms: Option<u64>,
    /// Whether the event contains only usage: `usage` is an object, `choices` is
    /// absent, null or empty, and there is no error and no other content.
    pub only: bool,
}

/// Members of an event that is not about usage alone, whatever its API.
const CONTENT: [&[u8]; 9] = [
    b"error",
    b"type",
    b"delta",
    b"text",
    b"content",
    b"message",
    b"output",
    b"response",
    b"data",
];

/// A value that may be missing or malformed without affecting the others.
#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(untagged)]
enum Lenient<T> {
    Read(T),
    Other(IgnoredAny),
}

impl<T> Lenient<T> {
    fn read(self) -> Option<T> {
        match self {
            Self::Read(value) => Some(value),
            Self::Other(_) => None,
        }
    }
}

#[derive(Debug, Clone, Copy, Deserialize)]
struct TokenDetails {
    #[serde(rename = "cached_tokens")]
    cached: Option<u64>,
    #[serde(rename = "cache_write_tokens")]
    cache_write: Option<u64>,
    #[serde(rename = "cache_creation_tokens")]
    cache_creation: Option<u64>,
    #[serde(rename = "reasoning_tokens")]
    reasoning: Option<u64>,
    #[serde(rename = "audio_tokens")]
    audio: Option<u64>,
}

#[derive(Debug, Clone, Copy, Deserialize)]
struct ReportedUsage {
    prompt_tokens: Option<u64>,
    input_tokens: Option<u64>,
    completion_tokens: Option<u64>,
    output_tokens: Option<u64>,
    total_tokens: Option<u64>,
    prompt_cache_hit_tokens: Option<Lenient<u64>>,
    cache_read_input_tokens: Option<Lenient<u64>>,
    cache_creation_input_tokens: Option<Lenient<u64>>,
    prompt_tokens_details: Option<Lenient<TokenDetails>>,
    input_tokens_details: Option<Lenient<TokenDetails>>,
    // The names of the transcription API.
    input_token_details: Option<Lenient<TokenDetails>>,
    completion_tokens_details: Option<Lenient<TokenDetails>>,
    output_tokens_details: Option<Lenient<TokenDetails>>,
    output_token_details: Option<Lenient<TokenDetails>>,
    cost: Option<Lenient<f64>>,
}

#[derive(Debug, Clone, Copy, Deserialize)]
struct BilledUnits {
    #[serde(rename = "input_tokens")]
    input: Option<u64>,
    #[serde(rename = "output_tokens")]
    output: Option<u64>,
}

#[derive(Debug, Clone, Copy, Deserialize)]
struct ResponseMeta {
    billed_units: Option<Lenient<BilledUnits>>,
    tokens: Option<Lenient<BilledUnits>>,
}

impl ReportedUsage {
    fn input_details(&self) -> Option<TokenDetails> {
        first([
            self.prompt_tokens_details,
            self.input_tokens_details,
            self.input_token_details,
        ])
    }

    fn output_details(&self) -> Option<TokenDetails> {
        first([
            self.completion_tokens_details,
            self.output_tokens_details,
            self.output_token_details,
        ])
    }
}

/// The first name that can be read.
fn first(spellings: [Option<Lenient<TokenDetails>>; 3]) -> Option<TokenDetails> {
    spellings.into_iter().flatten().find_map(Lenient::read)
}

impl Usage {
    /// Parses the value of a `usage` member. `None` if it is not an object, has
    /// no prompt tokens, or has a negative or fractional count.
    pub fn from_object(value: &[u8]) -> Option<Self> {
        if value.first() != Some(&b'{') {
            return None;
        }
        let reported: ReportedUsage = serde_json::from_slice(value).ok()?;
        let completion = reported.completion_tokens.or(reported.output_tokens);
        let prompt = reported.prompt_tokens.or(reported.input_tokens);
        let total = reported.total_tokens;
        // Rerankers report only a total, embeddings no completion.
        let prompt_tokens = prompt.or_else(|| total?.checked_sub(completion.unwrap_or(0)))?;
        let completion_tokens = completion.or_else(|| total?.checked_sub(prompt_tokens));
        let input = reported.input_details();
        let output = reported.output_details();
        let other = |count: Option<Lenient<u64>>| count.and_then(Lenient::read);
        let cached = other(reported.prompt_cache_hit_tokens)
            .or_else(|| other(reported.cache_read_input_tokens));
        let written = input.and_then(|details| details.cache_write.or(details.cache_creation));
        Some(Self {
            prompt_tokens,
            completion_tokens,
            cached_tokens: input.and_then(|details| details.cached).or(cached),
            cache_write_tokens: written.or_else(|| other(reported.cache_creation_input_tokens)),
            reasoning_tokens: output.and_then(|details| details.reasoning),
            audio_prompt_tokens: input.and_then(|details| details.audio),
            audio_completion_tokens: output.and_then(|details| details.audio),
            cost_micros: reported.cost.and_then(Lenient::read).and_then(micros),
        })
    }

    /// Parses the value of Cohere's `meta` member: the billed units, or else
    /// the tokens. Units that are not listed were not used.
    pub(crate) fn from_meta(value: &[u8]) -> Option<Self> {
        if value.first() != Some(&b'{') {
            return None;
        }
        let meta: ResponseMeta = serde_json::from_slice(value).ok()?;
        let [billed, tokens] = [meta.billed_units, meta.tokens].map(|units| {
            let BilledUnits { input, output } = units.and_then(Lenient::read)?;
            Some((input?, output.unwrap_or(0)))
        });
        let (prompt_tokens, completion_tokens) = billed.or(tokens)?;
        Some(Self {
            prompt_tokens,
            completion_tokens: Some(completion_tokens),
            ..Self::default()
        })
    }

    /// Parses a whole JSON response: the `usage` of its outermost object, or
    /// else its `meta`.
    pub fn from_response(body: &[u8]) -> Option<Self> {
        let mut meta = None;
        for member in Object::open(body).ok()?.map_while(Result::ok) {
            match &*member.name {
                b"usage" => return Self::from_object(member.value),
                b"meta" => meta = Some(member.value),
                _ => {}
            }
        }
        Self::from_meta(meta?)
    }
}

impl EventUsage {
    /// Parses the data of an event; `None` if it has no `usage` object, at its
    /// top level or in its `response`.
    pub fn from_data(data: &[u8]) -> Option<Self> {
        if !mentions_usage(data) {
            return None;
        }
        let mut found = None;
        let mut wrapped = None;
        let mut only = true;
        for member in Object::open(data).ok()?.map_while(Result::ok) {
            match &*member.name {
                b"usage" if member.value.starts_with(b"{") => found = Some(member.value),
                b"choices" => only &= json::is_empty(member.value) || member.value == b"null",
                // The responses API and Groq wrap it once.
                b"response" | b"x_groq" => wrapped = wrapped.or(Usage::from_response(member.value)),
                _ => {}
            }
            only &= !CONTENT.contains(&&*member.name) || member.value == b"null";
        }
        match (found, wrapped) {
            (Some(value), _) => {
                let usage = Usage::from_object(value);
                let untold = usage.is_none();
                Some(Self {
                    usage,
                    audio_ms: untold.then(|| duration_ms(value)).flatten(),
                    only,
                })
            }
            (None, Some(usage)) => Some(Self {
                usage: Some(usage),
                audio_ms: None,
                only: false,
            }),
            (None, None) => None,
        }
    }
}

/// Whether `text` may contain a key `usage` with an object as its value.
pub(crate) fn mentions_usage(text: &[u8]) -> bool {
    json::mentions(text, &USAGE_KEY, b'{')
}

/// Millionths, rounded to the nearest; `None` for an invalid amount.
fn micros(cost: f64) -> Option<u64> {
    /// Above it (9 billion units) an `f64` no longer represents every
    /// millionth.
    const MOST: f64 = 9e15;
    let micros = (cost * 1e6).round();
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "the range was checked"
    )]
    (0.0..=MOST).contains(&micros).then_some(micros as u64)
}

#[cfg(test)]
mod tests;
