//! The end of a stream, by the API that it belongs to.

use std::sync::LazyLock;

use memchr::memmem::Finder;
use serde::Deserialize;

use super::IMAGE;
use crate::json::mentions;

static FINISH_REASON: LazyLock<Finder<'static>> =
    LazyLock::new(|| Finder::new(b"\"finish_reason\""));

/// The events that end a stream of the responses API.
const RESPONSE: [&[u8]; 4] = [
    b"response.completed",
    b"response.incomplete",
    b"response.failed",
    b"response.cancelled",
];

/// The events that end a stream of the audio APIs.
const AUDIO: [&[u8]; 2] = [b"transcript.text.done", b"speech.audio.done"];

/// How the end of a complete stream is recognised. `[DONE]` ends a stream of any
/// API.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StreamEnding {
    /// Chat and completions: a finish reason for each of this many choices, or an
    /// event that contains only usage.
    Choices(u64),
    /// The responses API: the event that repeats the finished response.
    Response,
    /// Transcriptions, translations and speech: the API's own last event, or a
    /// finish reason from engines that stream these as chat. The stream of an
    /// engine that uses neither format ends with its body.
    Audio,
    /// Images: a completed image. The stream of an engine that does not use the
    /// events of the API ends with its body.
    Image,
    /// The stream ends with its body.
    Body,
}

/// What has been received of a stream's end.
#[derive(Debug, Clone)]
pub(super) struct EndingState {
    ending: StreamEnding,
    /// An event was received after which no other follows.
    last: bool,
    /// An event that contains only usage was received.
    usage: bool,
    /// The choices with a finish reason, one bit each.
    finished: u128,
    /// An event in a format whose end can be recognised was received.
    recognised: bool,
}

#[derive(Deserialize)]
struct Choice {
    index: Option<u64>,
    finish_reason: Option<String>,
}

/// An event of a stream with choices. Some engines send one choice without an
/// array.
#[derive(Deserialize)]
struct Chunk {
    #[serde(default)]
    choices: Option<Vec<Choice>>,
    finish_reason: Option<String>,
}

impl EndingState {
    pub(super) fn new(ending: StreamEnding) -> Self {
        Self {
            ending,
            last: false,
            usage: false,
            finished: 0,
            recognised: matches!(ending, StreamEnding::Choices(_) | StreamEnding::Response),
        }
    }

    /// Whether the stream is complete if its body ends here.
    pub(super) fn is_complete(&self) -> bool {
        let finished = u64::from(self.finished.count_ones());
        self.last
            || match self.ending {
                StreamEnding::Choices(choices) => {
                    self.usage || finished >= choices.clamp(1, u128::BITS.into())
                }
                StreamEnding::Audio => finished > 0 || !self.recognised,
                StreamEnding::Image => !self.recognised,
                StreamEnding::Response => false,
                StreamEnding::Body => true,
            }
    }

    /// Whether nothing can follow that a client would miss.
    pub(super) fn is_final(&self) -> bool {
        self.last
    }

    /// `[DONE]` was received.
    pub(super) fn done(&mut self) {
        self.last = true;
    }

    /// Processes the name of an event: its `event` line, or the member `type`
    /// that its data begins with.
    pub(super) fn named(&mut self, name: &[u8]) {
        let (last, prefixes): (&[&[u8]], &[&[u8]]) = match self.ending {
            StreamEnding::Response => (&RESPONSE, &[]),
            StreamEnding::Audio => (&AUDIO, &[b"transcript.", b"speech."]),
            StreamEnding::Image => (&IMAGE, &[b"image_generation.", b"image_edit."]),
            StreamEnding::Choices(_) | StreamEnding::Body => return,
        };
        self.last |= last.contains(&name);
        self.recognised |= prefixes.iter().any(|prefix| name.starts_with(prefix));
    }

    /// An event that contains only usage was received.
    pub(super) fn only_usage(&mut self) {
        self.usage = true;
    }

    /// Processes the finish reasons in the data of an event. Returns whether it
    /// ends a choice.
    pub(super) fn finish_reasons(&mut self, data: &[u8]) -> bool {
        if !mentions(data, &FINISH_REASON, b'"') {
            // `null`, in an event that is followed by others.
            self.recognised = self.recognised || FINISH_REASON.find(data).is_some();
            return false;
        }
        self.recognised = true;
        let Ok(chunk) = serde_json::from_slice::<Chunk>(data) else {
            return false;
        };
        let choices = chunk.choices.into_iter().flatten();
        let single = Choice {
            index: None,
            finish_reason: chunk.finish_reason,
        };
        let mut ends = false;
        for choice in choices.chain([single]) {
            if choice.finish_reason.as_deref().is_some_and(is_reason) {
                ends = true;
                let index = u32::try_from(choice.index.unwrap_or(0)).unwrap_or(u32::MAX);
                self.finished |= 1_u128.checked_shl(index).unwrap_or(0);
            }
        }
        ends
    }

    /// Processes the end of an event that was too long to be parsed.
    pub(super) fn overlong_end(&mut self, tail: &[u8]) {
        if mentions(tail, &FINISH_REASON, b'"') {
            // The choice is not known: the first one that is not finished.
            self.finished |= self.finished.wrapping_add(1);
        }
    }
}

/// Some engines send a text that is no reason instead of null.
fn is_reason(text: &str) -> bool {
    !text.is_empty() && text != "null"
}
