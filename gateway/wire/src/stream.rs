//! The bytes of a streamed response that are forwarded to the client.
//!
//! Bytes are forwarded unchanged, each event with the read that completes it.
//! Only one kind is held back: the usage event that only the gateway requested.

mod announcement;
mod ending;
mod passthrough;
mod position;

use std::sync::LazyLock;

use memchr::memchr;
use memchr::memmem::Finder;

use crate::estimate::estimated_tokens;
use crate::sse::{EVENT_LIMIT, Event, Frame, FrameKind, Framer};
use crate::upstream_error::{ErrorClass, is_error_name};
use crate::usage::{BodyExcerpt, EventUsage, Measure, Quantities, Usage, UsageReport};

pub use ending::StreamEnding;
pub use passthrough::Passthrough;
pub use position::StreamPosition;

use announcement::is_announcement;
use ending::EndingState;
use position::ForwardedEnd;

/// Occurs in nearly every error, and rarely in anything else.
static ERROR: LazyLock<Finder<'static>> = LazyLock::new(|| Finder::new(b"\"error\""));

/// Maximum number of bytes of an event's data that count as its frame.
const LARGEST_FRAME: u64 = 512;

/// The kind of the first event with content or an error. Until it is known, an
/// error can still fail over, so the caller should hold the output of
/// [`StreamInspector::push`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FirstEvent {
    /// Only comments and announcements of a response were received, or nothing.
    Pending,
    /// An event of the response.
    Response,
    /// An error that was sent with a success status.
    Error(ErrorClass),
}

/// Frames a streamed response, selects the bytes for the client, and collects
/// the data for accounting.
///
/// ```
/// use fastllm_wire::{FirstEvent, StreamEnding, StreamInspector};
///
/// let read = b"data: {\"choices\":[{}]}\n\n\
///     data: {\"choices\":[],\"usage\":{\"prompt_tokens\":7,\"completion_tokens\":3}}\n\n";
/// let mut inspector = StreamInspector::new(true, StreamEnding::Choices(1));
/// let forward = inspector.push(read);
/// assert_eq!(forward.runs().collect::<Vec<_>>(), [0..24]);
/// assert_eq!(inspector.first(), FirstEvent::Response);
/// assert_eq!(inspector.usage().unwrap().prompt_tokens, 7);
/// ```
#[derive(Debug, Clone)]
pub struct StreamInspector {
    framer: Framer,
    seen: StreamState,
}

#[derive(Debug, Clone)]
struct StreamState {
    hide_usage: bool,
    first: FirstEvent,
    /// The class of an error after the first event; of several, a failure of the
    /// backend if there is one.
    later_error: Option<ErrorClass>,
    usage: UsageReport,
    audio_ms: Option<u64>,
    images: u32,
    ending: EndingState,
    events: u64,
    data_bytes: u64,
    /// The part of them that seems to be files.
    file_bytes: u64,
    /// The smallest data size, in bytes, of one of those events that does not
    /// end a choice.
    shortest: u64,
    /// The last event was held back, so the rest of its line end is, too.
    held: bool,
    /// How the forwarded bytes end.
    forwarded: ForwardedEnd,
    /// The event that is too long to be inspected.
    overlong: Option<Box<BodyExcerpt>>,
    /// The only error is in an event that was cut at the end of the body.
    is_error_cut: bool,
}

impl StreamInspector {
    /// `hide_usage`: only the gateway requested usage, so an event that
    /// contains nothing else is not forwarded. `ending` is how the end of the
    /// stream is recognised.
    pub fn new(hide_usage: bool, ending: StreamEnding) -> Self {
        Self::with_limit(hide_usage, ending, EVENT_LIMIT)
    }

    /// Buffers an event that is received in several reads up to `limit` bytes;
    /// a longer one is forwarded as received.
    pub fn with_limit(hide_usage: bool, ending: StreamEnding, limit: usize) -> Self {
        Self {
            framer: Framer::new(limit),
            seen: StreamState {
                hide_usage,
                first: FirstEvent::Pending,
                later_error: None,
                usage: UsageReport::Absent,
                audio_ms: None,
                images: 0,
                ending: EndingState::new(ending),
                events: 0,
                data_bytes: 0,
                file_bytes: 0,
                shortest: u64::MAX,
                held: false,
                forwarded: ForwardedEnd::default(),
                overlong: None,
                is_error_cut: false,
            },
        }
    }

    /// Processes one read of the body and returns what is forwarded now.
    pub fn push(&mut self, input: &[u8]) -> Passthrough {
        let mut forward = Passthrough::default();
        self.framer.push(input, |frame| {
            if self.seen.passes(&frame) {
                self.seen.forwarded.add(&frame);
                forward.add(&frame);
            }
        });
        forward
    }

    /// Processes the end of the body: an event without a blank line counts like
    /// any other. It is forwarded (in [`Passthrough::carried`]) if the stream is
    /// complete with it. Otherwise it may have been cut, and it would be joined
    /// with an event that the caller appends.
    pub fn finish(&mut self) -> Passthrough {
        let mut forward = Passthrough::default();
        let reported = self.reports_error();
        self.framer.finish(|frame| {
            let passes = self.seen.passes(&frame) && self.seen.ending.is_complete();
            if passes || frame.bytes.is_empty() {
                self.seen.forwarded.add(&frame);
                forward.add(&frame);
            }
        });
        self.seen.is_error_cut = !reported && self.reports_error();
        forward
    }

    /// The kind of the first event with data.
    pub fn first(&self) -> FirstEvent {
        self.seen.first
    }

    /// The class of an error that was received after the first event; of several
    /// errors, a failure of the backend if there is one.
    pub fn later_error(&self) -> Option<ErrorClass> {
        self.seen.later_error
    }

    /// The last usage that was reported so far, if it is plausible.
    pub fn usage(&self) -> Option<Usage> {
        self.seen.usage.counts()
    }

    /// Whether the last usage that was reported is implausible.
    pub fn has_implausible_usage(&self) -> bool {
        self.seen.usage == UsageReport::Implausible
    }

    /// The quantities besides tokens so far. Images count when they are
    /// complete.
    pub fn quantities(&self, measure: Measure) -> Quantities {
        let mut quantities = Quantities::default();
        match measure {
            Measure::Images => {
                quantities.images = (self.seen.images > 0).then_some(self.seen.images);
            }
            Measure::AudioInput => quantities.audio_ms = self.seen.audio_ms,
            // The audio of a stream is base64 text.
            Measure::Tokens | Measure::AudioOutput => {}
        }
        quantities
    }

    /// Whether the stream is complete if its body ends here, according to its
    /// [`StreamEnding`]. If it is not, it was aborted.
    pub fn is_complete(&self) -> bool {
        self.seen.ending.is_complete()
    }

    /// Whether the event was received that is the last one of every stream of
    /// its API. Unlike a finish reason, which usage may follow, it makes the
    /// end of the body irrelevant.
    pub fn is_final(&self) -> bool {
        self.seen.ending.is_final()
    }

    /// Whether an error was received, in an event that the client receives.
    pub fn reports_error(&self) -> bool {
        let first = matches!(self.seen.first, FirstEvent::Error(_));
        (first || self.seen.later_error.is_some()) && !self.seen.is_error_cut
    }

    /// The position after the forwarded bytes.
    pub fn position(&self) -> StreamPosition {
        self.seen.forwarded.position()
    }

    /// Number of events with data, without `[DONE]`, usage-only events, and
    /// responses API events that repeat or announce content. Most engines send
    /// one per token or two.
    pub fn events(&self) -> u64 {
        self.seen.events
    }

    /// Total data size of those events, in bytes (including oversized events).
    pub fn data_bytes(&self) -> u64 {
        self.seen.data_bytes
    }

    /// Estimated number of tokens of the response so far, if it does not report
    /// them: one per event or, if that is more, one per 3.5 bytes of data
    /// outside the frames. A frame is as long as the smallest event's data, at
    /// most 512 bytes; an event that ends a choice is often smaller than those
    /// with text and is not used for this. In an event that is too long to be
    /// inspected, apparent files are left out.
    pub fn estimated_tokens(&self) -> u64 {
        let frame = self.seen.shortest.min(LARGEST_FRAME);
        let frames = self.seen.events.saturating_mul(frame);
        let beside = frames.saturating_add(self.seen.file_bytes);
        let text = self.seen.data_bytes.saturating_sub(beside);
        estimated_tokens(text).max(self.seen.events)
    }

    /// Number of buffered bytes of an incomplete event.
    pub fn carried(&self) -> usize {
        self.framer.carried()
    }
}

impl StreamState {
    /// Processes a frame; `false` keeps it from the client.
    fn passes(&mut self, frame: &Frame<'_>) -> bool {
        match (frame.kind, frame.event()) {
            (FrameKind::Overlong { last }, _) => {
                self.overlong(frame.bytes, last);
                self.held = false;
            }
            (FrameKind::Comment, _) => self.held = false,
            (_, Some(event)) => self.held = self.event(&event),
            (_, None) => {}
        }
        !self.held
    }

    /// Whether the event is held back.
    fn event(&mut self, event: &Event<'_>) -> bool {
        let Some(data) = event.data() else {
            return false;
        };
        if event.is_done() {
            self.ending.done();
            self.open(FirstEvent::Response);
            return false;
        }
        let kind = event.kind();
        let name = kind.or_else(|| leading_type(&data));
        if self.first == FirstEvent::Pending {
            match ErrorClass::within_success(kind, &data) {
                Some(class) => self.open(FirstEvent::Error(class)),
                None if is_announcement(name, &data) => {}
                None => self.open(FirstEvent::Response),
            }
        } else if let Some(class) = later_error(kind, &data)
            && self.later_error != Some(ErrorClass::Backend)
        {
            self.later_error = Some(class);
        }
        self.named(name);
        let is_finish = self.ending.finish_reasons(&data);
        let found = EventUsage::from_data(&data);
        let report = found.map(|found| found.usage).unwrap_or_default();
        self.usage = report.or_else(|| self.usage);
        self.audio_ms = found.and_then(|found| found.audio_ms).or(self.audio_ms);
        let only_usage = found.is_some_and(|found| found.only);
        if only_usage {
            self.ending.only_usage();
        }
        if !only_usage && brings_more(name) {
            self.count(data.len(), is_finish);
        }
        only_usage && self.hide_usage
    }

    fn overlong(&mut self, part: &[u8], last: bool) {
        self.open(FirstEvent::Response);
        if self.overlong.is_none() {
            self.events = self.events.saturating_add(1);
        }
        self.data_bytes = self.data_bytes.saturating_add(part.len() as u64);
        self.overlong.get_or_insert_default().push(part);
        if last && let Some(mut ends) = self.overlong.take() {
            let file = ends.total() - ends.text_bytes();
            self.file_bytes = self.file_bytes.saturating_add(file);
            let head = Event::new(ends.head());
            let kind = head.kind();
            if let Some(data) = head.data() {
                self.named(kind.or_else(|| leading_type(&data)));
            }
            self.usage = ends.event_report().or_else(|| self.usage);
            self.ending.overlong_end(ends.tail());
        }
    }

    /// Processes the name of an event.
    fn named(&mut self, name: Option<&[u8]>) {
        let Some(name) = name else {
            return;
        };
        self.ending.named(name);
        if IMAGE.contains(&name) {
            self.images = self.images.saturating_add(1);
        }
    }

    fn count(&mut self, data: usize, is_finish: bool) {
        self.events = self.events.saturating_add(1);
        self.data_bytes = self.data_bytes.saturating_add(data as u64);
        if !is_finish {
            self.shortest = self.shortest.min(data as u64);
        }
    }

    fn open(&mut self, first: FirstEvent) {
        if self.first == FirstEvent::Pending {
            self.first = first;
        }
    }
}

/// The events that contain an image.
const IMAGE: [&[u8]; 2] = [b"image_generation.completed", b"image_edit.completed"];

/// Whether the event may contain new content. The responses API repeats the
/// request at the beginning and the content at each end; so do transcripts.
fn brings_more(name: Option<&[u8]>) -> bool {
    let repeats = |name: &[u8]| name.starts_with(b"response.") || name.starts_with(b"transcript.");
    name.is_none_or(|name| !repeats(name) || name.ends_with(b".delta"))
}

/// The value of `type` if it is the first member: all events of those streams
/// are written this way, so others need not be parsed.
fn leading_type(data: &[u8]) -> Option<&[u8]> {
    let rest = data.trim_ascii_start().strip_prefix(b"{")?;
    let rest = rest.trim_ascii_start().strip_prefix(b"\"type\"")?;
    let rest = rest.trim_ascii_start().strip_prefix(b":")?;
    let rest = rest.trim_ascii_start().strip_prefix(b"\"")?;
    rest.get(..memchr(b'"', rest)?)
}

/// The class of an error after the first event. The data is parsed only if it
/// may contain something relevant.
fn later_error(kind: Option<&[u8]>, data: &[u8]) -> Option<ErrorClass> {
    let may_be = kind.is_some_and(is_error_name) || ERROR.find(data).is_some();
    may_be.then(|| ErrorClass::within_success(kind, data))?
}

#[cfg(test)]
mod tests;
