use std::task::{Context, Poll, ready};

use fastllm_wire::First;
use fastllm_wire::http1::Field;

use super::attempts::Attempt;
use super::flow::{End, Flow};
use super::headers::passes_to_client;
use crate::deadline::Deadline;
use crate::record::{REQUEST_ID, Record};

/// The last event of a stream that broke off: what came before it is all that
/// there is. It begins with a blank line, since the break may be in an event.
const BROKEN_STREAM: &[u8] =
    b"\n\ndata: {\"error\":{\"message\":\"the upstream broke off its answer\",\
\"type\":\"upstream_unavailable\",\"param\":null,\"code\":\"upstream_broke_off\"}}\n\n";

/// How far an answer is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Step {
    /// More follows.
    More,
    /// All of it was given out.
    End,
    /// It broke off: the client's connection must not end as if it was
    /// complete.
    BrokenOff,
}

/// A client's answer, straight from an upstream. Dropping it stops the
/// upstream, and stands for a client that left.
#[derive(Debug)]
pub(crate) struct Relay {
    flow: Flow,
    status: u16,
    request_id: http::HeaderValue,
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
        Self {
            flow,
            status,
            request_id: record.id().clone(),
            open: Some(Open { record, attempt }),
        }
    }

    /// The upstream's status.
    pub(crate) fn status(&self) -> u16 {
        self.status
    }

    /// How many bytes the body has, where that is known.
    pub(crate) fn length(&self) -> Option<u64> {
        self.flow.length()
    }

    /// The header fields for the client, before the body.
    pub(crate) fn fields(&self) -> impl Iterator<Item = Field<'_>> {
        let fields = self.flow.head().map(|head| head.fields().end_to_end());
        let ours = Field {
            name: REQUEST_ID.as_bytes(),
            value: self.request_id.as_bytes(),
        };
        fields
            .into_iter()
            .flatten()
            .filter(|field| passes_to_client(field.name))
            .chain([ours])
    }

    /// Adds to `out` what one read of the upstream brings for the client.
    pub(crate) fn poll_pump(
        &mut self,
        cx: &mut Context<'_>,
        deadline: &mut Deadline,
        out: &mut Vec<u8>,
    ) -> Poll<Step> {
        ready!(self.flow.poll_pump(cx, deadline, out));
        if let Some(open) = &mut self.open
            && self.flow.is_events()
            && self.flow.first() != First::Pending
        {
            open.record.first_event();
        }
        let Some(end) = self.flow.end().cloned() else {
            return Poll::Ready(Step::More);
        };
        // What was held has left by now, and the end comes with it.
        deadline.disarm();
        self.settle(&end);
        self.flow.release();
        Poll::Ready(match end {
            End::Complete => Step::End,
            End::BrokenOff(reason) => {
                tracing::warn!(reason, "an upstream broke off its answer");
                if self.flow.is_events() {
                    out.extend_from_slice(BROKEN_STREAM);
                    Step::End
                } else {
                    Step::BrokenOff
                }
            }
        })
    }

    fn settle(&mut self, end: &End) {
        let Some(Open {
            mut record,
            attempt,
        }) = self.open.take()
        else {
            return;
        };
        record.used(self.flow.usage());
        let failed = matches!(self.flow.first(), First::Error { .. });
        let complete = *end == End::Complete && !failed;
        if complete && self.status < 300 {
            attempt.succeeded();
        }
        record.answered(self.status, complete);
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
