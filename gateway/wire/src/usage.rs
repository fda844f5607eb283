//! The usage that a response reports.
//!
//! The values come from the `usage` object of an OpenAI-style response, with
//! the names of chat (`prompt_tokens`) or of the responses, transcription and
//! image APIs (`input_tokens`); Cohere-style rerankers have `meta` instead.
//! Absent means unknown, never zero: a transcription that is charged by
//! duration has no token counts, but [`Quantities`]. An implausible count makes
//! the whole report one that is not used.

mod body_excerpt;
mod body_inspector;
mod count;
mod images;
mod quantities;

use std::sync::LazyLock;

use memchr::memmem::Finder;
use serde::Deserialize;
use serde::de::IgnoredAny;

pub use body_excerpt::BodyExcerpt;
pub use body_inspector::BodyInspector;
pub use count::MAX_TOKENS;
pub use quantities::{Measure, Quantities};

use crate::json::{self, Object};
use count::{Amount, Count};
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

/// The content of a `usage` member.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum UsageReport {
    /// It is missing, is not an object, or has no prompt tokens.
    #[default]
    Absent,
    /// Its JSON is invalid, or a count of the prompt, of the response or of both
    /// is not a whole number from 0 to [`MAX_TOKENS`].
    Implausible,
    /// Its counts.
    Counts(Usage),
}

/// An event with a `usage` object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EventUsage {
    /// The counts of the object.
    pub usage: UsageReport,
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

#[derive(Debug, Clone, Copy, Default, Deserialize)]
#[serde(default)]
struct TokenDetails {
    #[serde(rename = "cached_tokens")]
    cached: Count,
    #[serde(rename = "cache_write_tokens")]
    cache_write: Count,
    #[serde(rename = "cache_creation_tokens")]
    cache_creation: Count,
    #[serde(rename = "reasoning_tokens")]
    reasoning: Count,
    #[serde(rename = "audio_tokens")]
    audio: Count,
}

#[derive(Debug, Clone, Copy, Default, Deserialize)]
#[serde(default)]
struct ReportedUsage {
    prompt_tokens: Count,
    input_tokens: Count,
    completion_tokens: Count,
    output_tokens: Count,
    total_tokens: Count,
    prompt_cache_hit_tokens: Count,
    cache_read_input_tokens: Count,
    cache_creation_input_tokens: Count,
    prompt_tokens_details: Option<Lenient<TokenDetails>>,
    input_tokens_details: Option<Lenient<TokenDetails>>,
    // The names of the transcription API.
    input_token_details: Option<Lenient<TokenDetails>>,
    completion_tokens_details: Option<Lenient<TokenDetails>>,
    output_tokens_details: Option<Lenient<TokenDetails>>,
    output_token_details: Option<Lenient<TokenDetails>>,
    cost: Amount,
}

#[derive(Debug, Clone, Copy, Default, Deserialize)]
#[serde(default)]
struct BilledUnits {
    #[serde(rename = "input_tokens")]
    input: Count,
    #[serde(rename = "output_tokens")]
    output: Count,
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
    /// Parses a whole JSON response: the `usage` of its outermost object, or
    /// else its `meta`. `None` if it reports no plausible counts.
    pub fn from_response(body: &[u8]) -> Option<Self> {
        UsageReport::of_response(body).counts()
    }
}

impl UsageReport {
    /// The counts, if they are plausible.
    pub fn counts(self) -> Option<Usage> {
        match self {
            Self::Counts(usage) => Some(usage),
            Self::Absent | Self::Implausible => None,
        }
    }

    /// This report, or the other if it is absent.
    pub(crate) fn or_else(self, other: impl FnOnce() -> Self) -> Self {
        match self {
            Self::Absent => other(),
            found => found,
        }
    }

    /// Parses the value of a `usage` member.
    pub(crate) fn of_object(value: &[u8]) -> Self {
        if value.first() != Some(&b'{') {
            return Self::Absent;
        }
        serde_json::from_slice(value).map_or(Self::Implausible, |reported| Self::of(&reported))
    }

    fn of(reported: &ReportedUsage) -> Self {
        let completion = reported.completion_tokens.or(reported.output_tokens);
        let prompt = reported.prompt_tokens.or(reported.input_tokens);
        let total = reported.total_tokens;
        if [completion, prompt, total].contains(&Count::Implausible) {
            return Self::Implausible;
        }
        let (completion, total) = (completion.known(), total.known());
        // Rerankers report only a total, embeddings no completion.
        let rest = || total?.checked_sub(completion.unwrap_or(0));
        let Some(prompt_tokens) = prompt.known().or_else(rest) else {
            return Self::Absent;
        };
        let input = reported.input_details().unwrap_or_default();
        let output = reported.output_details().unwrap_or_default();
        let cached = input
            .cached
            .or(reported.prompt_cache_hit_tokens)
            .or(reported.cache_read_input_tokens);
        let written = input
            .cache_write
            .or(input.cache_creation)
            .or(reported.cache_creation_input_tokens);
        Self::Counts(Usage {
            prompt_tokens,
            completion_tokens: completion.or_else(|| total?.checked_sub(prompt_tokens)),
            cached_tokens: cached.known(),
            cache_write_tokens: written.known(),
            reasoning_tokens: output.reasoning.known(),
            audio_prompt_tokens: input.audio.known(),
            audio_completion_tokens: output.audio.known(),
            cost_micros: reported.cost.0.and_then(micros),
        })
    }

    /// Parses the value of Cohere's `meta` member: the billed units, or else
    /// the tokens. Units that are not listed were not used.
    pub(crate) fn of_meta(value: &[u8]) -> Self {
        if value.first() != Some(&b'{') {
            return Self::Absent;
        }
        let Ok(meta) = serde_json::from_slice::<ResponseMeta>(value) else {
            return Self::Implausible;
        };
        let [billed, tokens] = [meta.billed_units, meta.tokens].map(|units| {
            let units = units.and_then(Lenient::read).unwrap_or_default();
            match (units.input, units.output) {
                (Count::Absent, _) => Self::Absent,
                (Count::Implausible, _) | (_, Count::Implausible) => Self::Implausible,
                (Count::Known(prompt_tokens), output) => Self::Counts(Usage {
                    prompt_tokens,
                    completion_tokens: Some(output.known().unwrap_or(0)),
                    ..Usage::default()
                }),
            }
        });
        billed.or_else(|| tokens)
    }

    /// Parses a whole JSON response, like [`Usage::from_response`].
    pub fn of_response(body: &[u8]) -> Self {
        let mut meta = None;
        for member in Object::open(body)
            .into_iter()
            .flatten()
            .map_while(Result::ok)
        {
            match &*member.name {
                b"usage" => return Self::of_object(member.value),
                b"meta" => meta = Some(member.value),
                _ => {}
            }
        }
        meta.map_or(Self::Absent, Self::of_meta)
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
        let mut wrapped = UsageReport::Absent;
        let mut only = true;
        for member in Object::open(data).ok()?.map_while(Result::ok) {
            match &*member.name {
                b"usage" if member.value.starts_with(b"{") => found = Some(member.value),
                b"choices" => only &= json::is_empty(member.value) || member.value == b"null",
                // The responses API and Groq wrap it once.
                b"response" | b"x_groq" => {
                    wrapped = wrapped.or_else(|| UsageReport::of_response(member.value));
                }
                _ => {}
            }
            only &= !CONTENT.contains(&&*member.name) || member.value == b"null";
        }
        let Some(value) = found else {
            return (wrapped != UsageReport::Absent).then_some(Self {
                usage: wrapped,
                audio_ms: None,
                only: false,
            });
        };
        let usage = UsageReport::of_object(value);
        let has_none = usage == UsageReport::Absent;
        Some(Self {
            usage,
            audio_ms: has_none.then(|| duration_ms(value)).flatten(),
            only,
        })
    }
}

/// Whether `text` may contain a key `usage` with an object as its value.
pub(crate) fn mentions_usage(text: &[u8]) -> bool {
    json::mentions(text, &USAGE_KEY, b'{')
}

/// Millionths, rounded to the nearest; `None` for an implausible amount.
fn micros(cost: f64) -> Option<u64> {
    /// A million units: more than any single request costs.
    const MAX_COST: f64 = 1e12;
    let micros = (cost * 1e6).round();
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "the range was checked"
    )]
    (0.0..=MAX_COST).contains(&micros).then_some(micros as u64)
}

#[cfg(test)]
mod tests;
