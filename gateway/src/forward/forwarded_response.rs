use std::task::{Context, Poll, ready};

use fastllm_wire::http1::HeaderField;
use fastllm_wire::{ErrorClass, FirstEvent, StreamPosition};
use http::header::HeaderValue;

use super::response_stream::{ResponseStream, StreamEnd};
use super::upstream_response::Attempt;
use crate::cache::PendingEntry;
use crate::http::CACHE;
use crate::http::{CorsFields, ForwardedFields, RateLimitFields, is_rate_limit_field};
use crate::http::{REQUEST_ID, SHOULD_RETRY};
use crate::request_log::RequestLog;
use crate::runtime::Deadline;
use crate::telemetry::CacheUse;

/// The last event of a stream that is incomplete. It begins where an event may
/// begin: a blank line before it would be an event without data for some clients.
const fn last_event(end: &StreamEnd) -> &'static [u8] {
    match end {
        StreamEnd::Complete => b"",
        StreamEnd::Aborted(_) => {
            b"data: {\"error\":{\"message\":\"the upstream aborted its response\",\
\"type\":\"upstream_unavailable\",\"param\":null,\"code\":\"upstream_aborted\"}}\n\n"
        }
        StreamEnd::Stalled => {
            b"data: {\"error\":{\"message\":\"the upstream stalled during its response\",\
\"type\":\"upstream_timeout\",\"param\":null,\"code\":\"upstream_stalled\"}}\n\n"
        }
        StreamEnd::TimedOut => {
            b"data: {\"error\":{\"message\":\"the response was not complete in time\",\
\"type\":\"upstream_timeout\",\"param\":null,\"code\":\"upstream_timeout\"}}\n\n"
        }
    }
}

/// The field of errors that a client should not retry.
const DO_NOT_RETRY: HeaderField<'_> = HeaderField {
    name: SHOULD_RETRY.as_bytes(),
    value: b"false",
};

/// The progress of a response.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum StreamStep {
    /// More follows.
    More,
    /// The response is complete.
    End,
    /// The response was aborted: the client's connection must not end as if it
    /// was complete.
    Aborted,
}

/// The response of an upstream on its way to the client. Dropping it cancels the
/// upstream request, and stands for a client that disconnected.
#[derive(Debug)]
pub(crate) struct ForwardedResponse {
    stream: ResponseStream,
    status: u16,
    /// The fields of the upstream's head that the client sees.
    fields: ForwardedFields,
    request_id: HeaderValue,
    cors: Option<CorsFields>,
    /// Replace the rate limit fields of the upstream.
    rates: Option<Box<RateLimitFields>>,
    /// The outcome of the cache lookup, if it is reported.
    cache: Option<CacheUse>,
    /// A retry by the client cannot help, or is not needed: the gateway has
    /// retried.
    is_final: bool,
    unfinished: Option<Unfinished>,
}

/// The resources that are held until the response has ended.
#[derive(Debug)]
pub(super) struct Unfinished {
    pub(super) log: Box<RequestLog>,
    pub(super) attempt: Attempt,
    pub(super) pending_entry: Option<PendingEntry>,
}

impl ForwardedResponse {
    /// `error` is the class of an error.
    pub(super) fn new(
        stream: ResponseStream,
        status: u16,
        fields: ForwardedFields,
        error: Option<ErrorClass>,
        unfinished: Unfinished,
    ) -> Self {
        let log = &unfinished.log;
        let is_final = error == Some(ErrorClass::Client) || log.route.was_retried();
        let good = (200..300).contains(&status) && !stream.is_stream();
        Self {
            stream,
            status,
            fields,
            request_id: log.request_id().clone(),
            cors: None,
            rates: log.rates().and_then(RateLimitFields::of).map(Box::new),
            cache: log.route.cache().filter(|_| good),
            is_final: error.is_some() && is_final,
            unfinished: Some(unfinished),
        }
    }

    /// The upstream's status.
    pub(crate) fn status(&self) -> u16 {
        self.status
    }

    /// Sets the CORS fields.
    pub(crate) fn share(&mut self, fields: CorsFields) {
        self.cors = Some(fields);
    }

    /// The length of the body, if it is known.
    pub(crate) fn length(&self) -> Option<u64> {
        self.stream.length()
    }

    /// The header fields for the client, before the body.
    pub(crate) fn fields(&self) -> impl Iterator<Item = HeaderField<'_>> {
        let head = self.stream.head();
        let fields = head.map(|head| self.fields.on(head.fields()));
        let replaced = self.stream.is_replaced().then_some(HeaderField {
            name: b"content-type",
            value: b"application/json",
        });
        let ours = HeaderField {
            name: REQUEST_ID.as_bytes(),
            value: self.request_id.as_bytes(),
        };
        let cache = self.cache.map(|cache| HeaderField {
            name: CACHE.as_bytes(),
            value: cache.as_str().as_bytes(),
        });
        fields
            .into_iter()
            .flatten()
            .filter(|field| self.rates.is_none() || !is_rate_limit_field(field.name))
            .filter(|field| !self.is_final || !field.is(SHOULD_RETRY))
            .chain(replaced)
            .chain([ours])
            .chain(cache)
            .chain(self.is_final.then_some(DO_NOT_RETRY))
            .chain(self.cors.iter().flat_map(CorsFields::fields))
            .chain(self.rates.iter().flat_map(|rates| rates.fields()))
    }

    /// Appends to `out` the client's bytes from one read of the upstream.
    pub(crate) fn poll_pump(
        &mut self,
        cx: &mut Context<'_>,
        deadline: &mut Deadline,
        out: &mut Vec<u8>,
    ) -> Poll<StreamStep> {
        let before = out.len();
        ready!(self.stream.poll_pump(cx, deadline, out));
        if let Some(unfinished) = &mut self.unfinished
            && let Some(pending_entry) = unfinished.pending_entry.take()
        {
            unfinished.pending_entry = pending_entry.take(out.get(before..).unwrap_or_default());
        }
        if let Some(unfinished) = &mut self.unfinished
            && self.stream.is_stream()
            && self.stream.first() != FirstEvent::Pending
        {
            unfinished.log.record_first_event();
        }
        let Some(end) = self.stream.passed_end().cloned() else {
            return Poll::Ready(StreamStep::More);
        };
        // Held-back bytes have been sent together with the end.
        deadline.disarm();
        self.settle(&end);
        self.stream.release();
        let reason = match &end {
            StreamEnd::Complete => return Poll::Ready(StreamStep::End),
            StreamEnd::Aborted(reason) => reason.as_str(),
            StreamEnd::Stalled => "idle for too long",
            StreamEnd::TimedOut => "the request timed out",
        };
        tracing::warn!(reason, "a response was aborted");
        Poll::Ready(self.append_error(&end, out))
    }

    /// Appends the error event of a response that was aborted. Without a place
    /// for it, as in an event of which a part was sent, the client's connection
    /// is aborted.
    fn append_error(&self, end: &StreamEnd, out: &mut Vec<u8>) -> StreamStep {
        match self.stream.position() {
            Some(StreamPosition::InEvent) | None => return StreamStep::Aborted,
            Some(_) if self.stream.reports_error() => return StreamStep::End,
            Some(StreamPosition::AfterCr) => out.push(b'\n'),
            Some(StreamPosition::BetweenEvents) => {}
        }
        out.extend_from_slice(last_event(end));
        StreamStep::End
    }

    fn settle(&mut self, end: &StreamEnd) {
        let Some(Unfinished {
            mut log,
            attempt,
            pending_entry,
        }) = self.unfinished.take()
        else {
            return;
        };
        self.record_usage(&mut log);
        // An error in the first event was recorded when it arrived.
        let began = !matches!(self.stream.first(), FirstEvent::Error(_));
        let later_error = self.stream.later_error();
        // A request that exceeded its own timeout is no failure of the backend.
        let failed = matches!(end, StreamEnd::Aborted(_) | StreamEnd::Stalled)
            || later_error == Some(ErrorClass::Backend);
        let whole = *end == StreamEnd::Complete && self.stream.is_whole();
        let complete = began && whole && later_error.is_none();
        if self.status < 300 && began {
            if failed {
                attempt.failed();
            } else if complete {
                attempt.record_object(|| self.stream.id());
                attempt.succeeded(log.completion_tokens());
            }
        }
        if complete
            && pending_entry
                .is_some_and(|pending_entry| pending_entry.complete(log.usage.summary()))
        {
            log.metrics().cache(CacheUse::Store);
        }
        log.finish_forwarded(self.status, complete);
    }

    /// Records the usage so far: as reported, or else estimated from the part that
    /// arrived.
    fn record_usage(&mut self, log: &mut RequestLog) {
        let usage = self.stream.usage();
        if usage.is_none() && self.stream.has_implausible_usage() {
            log.record_implausible_usage();
        }
        log.usage.set_reported(usage);
        log.usage
            .add_quantities(self.stream.quantities(log.route.measure()));
        let began = !matches!(self.stream.first(), FirstEvent::Error(_));
        if self.status < 300 && began && log.reported_usage().is_none() {
            log.usage
                .set_received_tokens(self.stream.estimated_tokens());
        }
    }
}

impl Drop for ForwardedResponse {
    fn drop(&mut self) {
        // The client disconnected: the usage until then is known.
        if let Some(mut unfinished) = self.unfinished.take() {
            self.record_usage(&mut unfinished.log);
        }
    }
}
