use std::task::{Context, Poll, ready};

use fastllm_wire::First;
use fastllm_wire::http1::Field;
use http::header::HeaderValue;

use super::attempts::Attempt;
use super::flow::{End, Flow};
use super::headers::{is_cors, passes_to_client};
use crate::cached::{CACHE, Keeping};
use crate::deadline::Deadline;
use crate::record::{REQUEST_ID, Record};
use crate::serve::{CorsFields, RateFields, is_rate};
use crate::telemetry::CacheUse;

/// The last event of a stream that did not come to its end: what came before it
/// is all that there is. It begins with a blank line, since the break may be in
/// an event.
const fn last_event(end: &End) -> &'static [u8] {
    match end {
        End::Complete => b"",
        End::BrokenOff(_) => {
            b"\n\ndata: {\"error\":{\"message\":\"the upstream broke off its answer\",\
\"type\":\"upstream_unavailable\",\"param\":null,\"code\":\"upstream_broke_off\"}}\n\n"
        }
        End::Stalled => {
            b"\n\ndata: {\"error\":{\"message\":\"the upstream fell silent in its answer\",\
\"type\":\"upstream_timeout\",\"param\":null,\"code\":\"upstream_stalled\"}}\n\n"
        }
        End::OutOfTime => {
            b"\n\ndata: {\"error\":{\"message\":\"the answer was not complete in time\",\
\"type\":\"upstream_timeout\",\"param\":null,\"code\":\"upstream_timeout\"}}\n\n"
        }
    }
}

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
    request_id: HeaderValue,
    /// In place of what the upstream says about it.
    cors: Option<CorsFields>,
    /// Likewise.
    rates: Option<Box<RateFields>>,
    /// Whether the cache had it, where that is said.
    cache: Option<CacheUse>,
    open: Option<Open>,
}

/// What is held until the answer has ended.
#[derive(Debug)]
struct Open {
    record: Box<Record>,
    attempt: Attempt,
    keeping: Option<Keeping>,
}

impl Relay {
    pub(super) fn new(
        flow: Flow,
        status: u16,
        (record, attempt): (Box<Record>, Attempt),
        keeping: Option<Keeping>,
    ) -> Self {
        let good = (200..300).contains(&status) && !flow.is_stream();
        Self {
            flow,
            status,
            request_id: record.id().clone(),
            cors: None,
            rates: record.rates().and_then(RateFields::of).map(Box::new),
            cache: record.cache().filter(|_| good),
            open: Some(Open {
                record,
                attempt,
                keeping,
            }),
        }
    }

    /// The upstream's status.
    pub(crate) fn status(&self) -> u16 {
        self.status
    }

    /// Says to browsers whose pages may read it; the upstream does not.
    pub(crate) fn share(&mut self, fields: CorsFields) {
        self.cors = Some(fields);
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
        let cache = self.cache.map(|cache| Field {
            name: CACHE.as_bytes(),
            value: cache.as_str().as_bytes(),
        });
        fields
            .into_iter()
            .flatten()
            .filter(|field| passes_to_client(field.name))
            .filter(|field| self.cors.is_none() || !is_cors(field.name))
            .filter(|field| self.rates.is_none() || !is_rate(field.name))
            .chain([ours])
            .chain(cache)
            .chain(self.cors.iter().flat_map(CorsFields::fields))
            .chain(self.rates.iter().flat_map(|rates| rates.fields()))
    }

    /// Adds to `out` what one read of the upstream brings for the client.
    pub(crate) fn poll_pump(
        &mut self,
        cx: &mut Context<'_>,
        deadline: &mut Deadline,
        out: &mut Vec<u8>,
    ) -> Poll<Step> {
        let before = out.len();
        ready!(self.flow.poll_pump(cx, deadline, out));
        if let Some(open) = &mut self.open
            && let Some(keeping) = open.keeping.take()
        {
            open.keeping = keeping.take(out.get(before..).unwrap_or_default());
        }
        if let Some(open) = &mut self.open
            && self.flow.is_stream()
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
        let reason = match &end {
            End::Complete => return Poll::Ready(Step::End),
            End::BrokenOff(reason) => reason.as_str(),
            End::Stalled => "silent for too long",
            End::OutOfTime => "the request's time is over",
        };
        tracing::warn!(reason, "an answer broke off");
        if !self.flow.is_events() {
            return Poll::Ready(Step::BrokenOff);
        }
        out.extend_from_slice(last_event(&end));
        Poll::Ready(Step::End)
    }

    fn settle(&mut self, end: &End) {
        let Some(Open {
            mut record,
            attempt,
            keeping,
        }) = self.open.take()
        else {
            return;
        };
        self.tell(&mut record);
        // An error in the first event was told to the backend when it came.
        let began = !matches!(self.flow.first(), First::Error { .. });
        let failed = *end != End::Complete || self.flow.failed_later();
        let complete = began && !failed && self.flow.is_whole();
        if self.status < 300 && began {
            if failed {
                attempt.failed();
            } else if complete {
                attempt.succeeded(record.completion());
            }
        }
        if complete && keeping.is_some_and(|keeping| keeping.complete(record.figures())) {
            record.metrics().cache(CacheUse::Store);
        }
        record.answered(self.status, complete);
    }

    /// Says what was used, as far as it is known by now: as the answer says, or
    /// else as much of it as came.
    fn tell(&mut self, record: &mut Record) {
        record.used(self.flow.usage());
        record.measured(self.flow.quantities(record.measure()));
        let began = !matches!(self.flow.first(), First::Error { .. });
        if self.status < 300 && began && record.reported().is_none() {
            record.came(self.flow.estimated_tokens());
        }
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        // A client that left: what was seen until then is still known.
        if let Some(mut open) = self.open.take() {
            self.tell(&mut open.record);
        }
    }
}
