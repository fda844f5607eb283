//! The log of one request: begun at its arrival, ended exactly once. It is
//! the only source of metrics, the access line, the span and the usage event.

mod accounting_sink;
mod outputs;
mod request_end;
mod reserved_limits;
mod route;
mod usage;

pub(crate) use accounting_sink::{AccountingConfig, AccountingSink};
pub(crate) use usage::UsageSummary;

use std::sync::Arc;
use std::time::{Duration, Instant};

use fastllm_contract::{KeyId, ModelName, PrincipalId, Timestamp};
use fastllm_engine::{Identified, RateLimits, Refusal, Reservation};
use http::header::HeaderValue;

use crate::http::{Head, ProxiedEndpoint, TRACEPARENT};
use crate::runtime::clock;
use crate::telemetry::{CacheUse, Metrics, Trace};
use crate::upstream::AwaitingResponse;
use request_end::RequestEnd;
use reserved_limits::ReservedLimits;
use route::Route;
use usage::RequestUsage;

/// The log of one request.
///
/// Invariant: each request is accounted for once. The `finish_…` methods take
/// the log; one that is dropped before any of them stands for a client that
/// disconnected.
#[derive(Debug)]
pub(crate) struct RequestLog {
    sink: Arc<AccountingSink>,
    request_id: HeaderValue,
    timing: Timing,
    trace: Trace,
    /// Who sent the request, once it is authenticated.
    caller: Option<LoggedCaller>,
    /// Where the request went.
    pub(crate) route: Route,
    /// What the request used.
    pub(crate) usage: RequestUsage,
    awaiting_response: AwaitingResponse,
    /// What was reserved, where the caller has limits or budgets.
    limits: Option<Box<ReservedLimits>>,
    end: Option<RequestEnd>,
}

/// When a request arrived, and when its response began.
#[derive(Debug)]
struct Timing {
    arrived_at: Timestamp,
    started: Instant,
    /// Time from arrival to the first event of a stream.
    first_event: Option<Duration>,
}

/// The caller of a request.
#[derive(Debug)]
struct LoggedCaller {
    principal: PrincipalId,
    name: Arc<str>,
    key: KeyId,
}

impl Timing {
    /// The time of day so long after the arrival.
    fn at(&self, took: Duration) -> Timestamp {
        let micros = i64::try_from(took.as_micros()).unwrap_or(i64::MAX);
        Timestamp(self.arrived_at.0.saturating_add(micros))
    }
}

impl RequestLog {
    /// Begins the log of a request. It is boxed since it moves between futures,
    /// each of which would be larger by it.
    pub(crate) fn begin(sink: &Arc<AccountingSink>, head: &Head) -> Box<Self> {
        let trace = match &sink.tracer {
            Some(_) => Trace::arrived(head.fields().all(TRACEPARENT)),
            None => Trace::default(),
        };
        let started = clock::now();
        Box::new(Self {
            request_id: sink.request_id(head),
            sink: Arc::clone(sink),
            timing: Timing {
                arrived_at: clock::timestamp_of(started),
                started,
                first_event: None,
            },
            trace,
            caller: None,
            route: Route::default(),
            usage: RequestUsage::default(),
            awaiting_response: AwaitingResponse::default(),
            limits: None,
            end: None,
        })
    }

    /// The request ID, for the upstream and for the response.
    pub(crate) fn request_id(&self) -> &HeaderValue {
        &self.request_id
    }

    /// When the request arrived.
    pub(crate) fn arrived_at(&self) -> Timestamp {
        self.timing.arrived_at
    }

    /// The trace of the request, for the upstream.
    pub(crate) fn trace(&self) -> &Trace {
        &self.trace
    }

    pub(crate) fn metrics(&self) -> &Metrics {
        &self.sink.metrics
    }

    /// Set while an upstream has the request and has not responded.
    pub(crate) fn awaiting_response(&self) -> &AwaitingResponse {
        &self.awaiting_response
    }

    /// The rate limits that the client is informed of.
    pub(crate) fn rates(&self) -> Option<&RateLimits> {
        self.limits.as_ref().map(|limits| &limits.rates)
    }

    /// The caller is authenticated.
    pub(crate) fn set_caller(&mut self, identified: &Identified) {
        self.caller = Some(LoggedCaller {
            principal: identified.principal.id(),
            name: Arc::clone(identified.principal.name()),
            key: identified.key,
        });
    }

    /// The requested name exists and resolves to a concrete model.
    pub(crate) fn set_model(&mut self, requested: &ModelName, model: &ModelName, stream: bool) {
        self.route.set_model(requested, model, stream);
        self.decide_trace();
    }

    /// The request's part of limits and budgets is reserved.
    pub(crate) fn set_reservation(&mut self, reservation: Reservation, rates: RateLimits) {
        self.limits =
            (!reservation.is_empty()).then(|| Box::new(ReservedLimits { reservation, rates }));
    }

    /// The cache was searched for a response of this model.
    pub(crate) fn record_cache_lookup(&mut self, model: &ModelName, found: bool) {
        let cache = if found { CacheUse::Hit } else { CacheUse::Miss };
        self.route.set_cache_lookup(model, cache);
        self.metrics().cache(cache);
    }

    /// The response reported token counts that cannot be right.
    pub(crate) fn record_implausible_usage(&self) {
        self.sink.metrics.usage_implausible();
        tracing::warn!(
            model = self.route.model().map(ModelName::as_str),
            backend = self.route.backend().map(|backend| backend.id.0),
            request_id = self.request_id.to_str().unwrap_or_default(),
            "a response reported implausible token counts; they are estimated instead"
        );
    }

    /// A response of the last attempted model goes to the client.
    pub(crate) fn record_response_start(&mut self) {
        if let (Some(limits), Some(model)) = (&mut self.limits, self.route.model()) {
            limits
                .reservation
                .release_other_models(model, clock::timestamp());
        }
    }

    /// The first event of a stream has arrived.
    pub(crate) fn record_first_event(&mut self) {
        if self.timing.first_event.is_none() {
            let after = self.timing.started.elapsed();
            self.timing.first_event = Some(after);
            self.sink
                .metrics
                .first_event(self.route.backend_metrics(), after);
        }
    }

    /// Ends the log: the gateway rejected the request with this status.
    pub(crate) fn finish_rejected(mut self, refusal: &Refusal, status: u16) {
        let end = RequestEnd::rejected(refusal, status);
        if end.is_rejection() {
            self.sink.metrics.rejected(refusal.category());
        }
        self.end = Some(end);
    }

    /// Ends the log: an upstream's response with this status went to the client,
    /// all of it where `complete`.
    pub(crate) fn finish_forwarded(mut self, status: u16, complete: bool) {
        self.end = Some(RequestEnd::forwarded(status, complete));
    }

    /// Ends the log: the client got a cached response, which used this much
    /// when it was generated.
    pub(crate) fn finish_cached(mut self, summary: UsageSummary) {
        self.usage.set_summary(summary);
        self.finish_local();
    }

    /// Ends the log: the gateway responded successfully by itself.
    pub(crate) fn finish_local(mut self) {
        self.end = Some(RequestEnd::forwarded(200, true));
    }

    /// The usage that the response reported. A response that has tokens of its
    /// own and does not count them has reported none.
    pub(crate) fn reported_usage(&self) -> Option<fastllm_wire::Usage> {
        let endpoint = self.route.endpoint();
        let counted = endpoint.is_none_or(ProxiedEndpoint::has_completion);
        self.usage.reported(counted)
    }

    /// Tokens of the response, as reported or else estimated.
    pub(crate) fn completion_tokens(&self) -> Option<u64> {
        match self.reported_usage() {
            Some(usage) => usage.completion_tokens,
            None => self.estimate().map(|estimate| estimate.completion),
        }
    }

    fn decide_trace(&mut self) {
        if let Some(tracer) = &self.sink.tracer {
            tracer.decide(&mut self.trace);
        }
    }
}

impl Drop for RequestLog {
    fn drop(&mut self) {
        self.settle();
    }
}
