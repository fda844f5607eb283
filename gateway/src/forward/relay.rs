use std::task::{Context, Poll, ready};

use bytes::Bytes;
use fastllm_wire::First;

use super::attempts::Attempt;
use super::flow::{End, Flow};
use crate::record::Record;

/// The last event of a stream that broke off: what came before it is all that
/// there is. It begins with a blank line, since the break may be in an event.
const BROKEN_STREAM: &[u8] =
    b"\n\ndata: {\"error\":{\"message\":\"the upstream broke off its answer\",\
\"type\":\"upstream_unavailable\",\"param\":null,\"code\":\"upstream_broke_off\"}}\n\n";

/// An answer broke off: the client's connection must not end as if it was
/// complete.
#[derive(Debug, thiserror::Error)]
#[error("the upstream broke off its answer")]
pub(crate) struct BrokenOff;

/// The body of a client's answer, straight from an upstream. Dropping it stops
/// the upstream, and stands for a client that left.
#[derive(Debug)]
pub(crate) struct Relay {
    flow: Flow,
    status: u16,
    open: Option<Open>,
}

/// What is held until the answer has ended.
#[derive(Debug)]
struct Open {
    record: Record,
    attempt: Attempt,
}

impl Relay {
    pub(super) fn new(flow: Flow, status: u16, record: Record, attempt: Attempt) -> Self {
        let mut relay = Self {
            flow,
            status,
            open: Some(Open { record, attempt }),
        };
        relay.take_note();
        relay
    }

    /// The next bytes for the client; nothing at the end.
    pub(crate) fn poll_chunk(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Bytes, BrokenOff>>> {
        loop {
            if let Some(chunk) = self.flow.take() {
                return Poll::Ready(Some(Ok(chunk)));
            }
            if self.open.is_none() {
                return Poll::Ready(None);
            }
            if self.flow.end().is_none() {
                ready!(self.flow.poll_pump(cx));
            }
            if self.take_note() {
                return Poll::Ready(Some(Err(BrokenOff)));
            }
        }
    }

    /// Whether all of it was taken.
    pub(crate) fn is_end(&self) -> bool {
        self.open.is_none() && !self.flow.is_waiting()
    }

    /// Takes note of what the last read brought. True where the client has to
    /// see the answer break off.
    fn take_note(&mut self) -> bool {
        if let Some(open) = &mut self.open
            && self.flow.is_events()
            && self.flow.first() != First::Pending
        {
            open.record.first_event();
        }
        let Some(end) = self.flow.end().cloned() else {
            return false;
        };
        let Some(Open {
            mut record,
            attempt,
        }) = self.open.take()
        else {
            return false;
        };
        record.used(self.flow.usage());
        let failed = matches!(self.flow.first(), First::Error { .. });
        let complete = end == End::Complete && !failed;
        if complete && self.status < 300 {
            attempt.succeeded();
        }
        record.answered(self.status, complete);
        match end {
            End::Complete => false,
            End::BrokenOff(reason) => {
                tracing::warn!(reason, "an upstream broke off its answer");
                if self.flow.is_events() {
                    self.flow.queue(Bytes::from_static(BROKEN_STREAM));
                }
                !self.flow.is_events()
            }
        }
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        // A client that left: what was seen until then is still known.
        if let Some(open) = &mut self.open {
            open.record.used(self.flow.usage());
        }
    }
}
