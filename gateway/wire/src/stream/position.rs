use crate::sse::{Frame, FrameKind};

/// The position in a stream of a line that the caller inserts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StreamPosition {
    /// A comment or an event may begin here.
    BetweenEvents,
    /// An event has ended with a CR, and its LF may follow: an LF must precede an
    /// event of the caller, and a comment has to wait.
    AfterCr,
    /// Within an event of which a part was forwarded.
    InEvent,
}

/// How the forwarded bytes of a stream end.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct ForwardedEnd {
    /// With a CR, whose LF may follow.
    after_cr: bool,
    /// The lines of the stream end with CR alone.
    cr_only: bool,
    /// Within an event.
    in_event: bool,
}

impl ForwardedEnd {
    /// Adds the bytes of a frame.
    pub(super) fn add(&mut self, frame: &Frame<'_>) {
        if let FrameKind::Overlong { last } = frame.kind {
            // The last part is empty if the stream ended within the event.
            self.in_event = !last || frame.bytes.is_empty();
        }
        if frame.bytes.ends_with(b"\n") {
            (self.after_cr, self.cr_only) = (false, false);
        } else if frame.bytes.ends_with(b"\r") {
            self.cr_only |= frame.bytes.ends_with(b"\r\r");
            self.after_cr = !self.cr_only;
        }
    }

    pub(super) fn position(self) -> StreamPosition {
        if self.in_event {
            StreamPosition::InEvent
        } else if self.after_cr {
            StreamPosition::AfterCr
        } else {
            StreamPosition::BetweenEvents
        }
    }
}
