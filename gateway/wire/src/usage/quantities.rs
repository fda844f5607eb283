//! Quantities used besides tokens.

use serde::Deserialize;

use super::count::Amount;
use crate::json::Object;

/// The quantity, besides tokens, that measures the use of a request.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Measure {
    /// None.
    #[default]
    Tokens,
    /// The number of images in the response.
    Images,
    /// The duration of the audio in the request.
    AudioInput,
    /// The amount of audio in the response.
    AudioOutput,
}

/// Quantities used besides tokens. Absent means unknown, never zero.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Quantities {
    /// Images in the response.
    pub images: Option<u32>,
    /// Characters converted to speech.
    pub input_characters: Option<u64>,
    /// Duration of the transcribed audio, in milliseconds.
    pub audio_ms: Option<u64>,
    /// Audio in the request or the response, in bytes.
    pub audio_bytes: Option<u64>,
}

impl Quantities {
    /// These values, with missing ones taken from `other`.
    #[must_use]
    pub fn or(self, other: Self) -> Self {
        Self {
            images: self.images.or(other.images),
            input_characters: self.input_characters.or(other.input_characters),
            audio_ms: self.audio_ms.or(other.audio_ms),
            audio_bytes: self.audio_bytes.or(other.audio_bytes),
        }
    }
}

#[derive(Deserialize)]
#[serde(tag = "type", rename_all = "lowercase")]
enum Billed {
    Duration {
        seconds: Amount,
    },
    #[serde(other)]
    Other,
}

/// The billed duration of the audio in this value of a `usage` member, in
/// milliseconds.
pub(super) fn duration_ms(usage: &[u8]) -> Option<u64> {
    match serde_json::from_slice(usage).ok()? {
        Billed::Duration { seconds } => milliseconds(seconds.0?),
        Billed::Other => None,
    }
}

/// The same for a response that begins with these bytes: the billed duration in
/// its `usage`, or its `duration`, a number or a number in a string.
pub(super) fn response_ms(beginning: &[u8]) -> Option<u64> {
    let mut duration = None;
    for member in Object::open(beginning).ok()?.map_while(Result::ok) {
        match &*member.name {
            b"usage" => {
                if let Some(billed) = duration_ms(member.value) {
                    return Some(billed);
                }
            }
            b"duration" => duration = seconds(member.value).and_then(milliseconds),
            _ => {}
        }
    }
    duration
}

fn seconds(value: &[u8]) -> Option<f64> {
    let Amount(seconds) = serde_json::from_slice(value).ok()?;
    seconds
}

/// Rounded to the nearest; `None` for an invalid duration, or one longer than a
/// year.
fn milliseconds(seconds: f64) -> Option<u64> {
    const YEAR: f64 = 366.0 * 86_400_000.0;
    let milliseconds = (seconds * 1000.0).round();
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "the range was checked"
    )]
    (0.0..=YEAR)
        .contains(&milliseconds)
        .then_some(milliseconds as u64)
}

#[cfg(test)]
mod tests {
    use super::{Quantities, duration_ms, response_ms};

    #[test]
    fn a_duration_is_from_usage_or_from_the_response() {
        for (response, expected) in [
            (
                r#"{"text":"a","usage":{"type":"duration","seconds":3}}"#,
                Some(3000),
            ),
            (r#"{"duration":8.47,"text":"a"}"#, Some(8470)),
            (r#"{"duration":"8.470000012","text":"a"}"#, Some(8470)),
            (
                r#"{"duration":8.47,"usage":{"seconds":9,"type":"duration"}}"#,
                Some(9000),
            ),
            (
                r#"{"duration":8.47,"usage":{"type":"tokens","seconds":9}}"#,
                Some(8470),
            ),
            (
                r#"{"text":"a","usage":{"type":"duration","seconds":"2.5"}}"#,
                Some(2500),
            ),
            (
                r#"{"text":"a","usage":{"type":"duration","seconds":1e300}}"#,
                None,
            ),
            (r#"{"text":"a","duration":null}"#, None),
            (r#"{"duration":-1}"#, None),
            (r#"{"duration":1e300}"#, None),
            (r#"{"duration":"NaN"}"#, None),
            (r#"{"x":{"duration":1}}"#, None),
            ("[]", None),
        ] {
            assert_eq!(response_ms(response.as_bytes()), expected, "{response}");
        }
        assert_eq!(duration_ms(br#"{"seconds":3}"#), None);
    }

    #[test]
    fn a_truncated_number_is_ignored() {
        assert_eq!(response_ms(br#"{"duration":8.4"#), None);
        assert_eq!(response_ms(br#"{"duration":8.4,"te"#), Some(8400));
    }

    #[test]
    fn known_quantities_are_kept() {
        let sent = Quantities {
            input_characters: Some(3),
            audio_bytes: Some(1),
            ..Quantities::default()
        };
        let answered = Quantities {
            audio_bytes: Some(2),
            ..Quantities::default()
        };
        let both = answered.or(sent);
        assert_eq!(
            (both.input_characters, both.audio_bytes),
            (Some(3), Some(2))
        );
    }
}
