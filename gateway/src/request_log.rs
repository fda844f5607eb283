//! The account of one request: begun at its arrival, ended exactly once.
//! Metrics, the access line and the usage event come from here and nowhere
//! else.

mod accounting_sink;
mod outputs;
mod reserved_limits;

pub(crate) use accounting_sink::AccountingSink;

use std::sync::Arc;
use std::time::{Duration, Instant};

use fastllm_contract::{
    BackendId, KeyId, Metadata, ModelName, PrincipalId, RefusalKind, Timestamp,
};
use fastllm_engine::{Backend, Identified, RateLimits, Refusal, Reservation};
use fastllm_wire::{Measure, Quantities, Usage};
use http::header::HeaderValue;

use reserved_limits::Allowance;

use crate::http::{Head, ProxiedEndpoint};
use crate::runtime::clock;
use crate::telemetry::{BackendMetrics, CacheUse, FinishedRequest, Metrics, Outcome, Trace};
use crate::upstream::AwaitingResponse;

/// The status in accounts of a client that left before its answer was complete.
const CLIENT_GONE: u16 = 499;

/// Who asked, as far as accounts go.
#[derive(Debug)]
struct Attribution {
    principal: PrincipalId,
    name: Arc<str>,
    key: KeyId,
}

/// A backend that was asked.
#[derive(Debug)]
struct AttemptedBackend {
    id: BackendId,
    api_base: Arc<str>,
    series: Option<Arc<BackendMetrics>>,
}

/// How a request ended.
#[derive(Debug, Clone, Copy)]
struct RequestEnd {
    outcome: Outcome,
    status: u16,
    refusal: Option<RefusalKind>,
    /// The code of the refusal, for people.
    code: Option<&'static str>,
}

/// What an answer used.
#[derive(Debug, Clone, Copy)]
pub(crate) struct UsageSummary {
    usage: Option<Usage>,
    came: Option<u64>,
    quantities: Quantities,
}

/// The account of one request.
///
/// Invariant: each request is accounted for once. [`RequestLog::refused`] and
/// [`RequestLog::answered`] take the record; one that is dropped before either
/// stands for a client that left.
#[derive(Debug)]
pub(crate) struct RequestLog {
    sink: Arc<AccountingSink>,
    id: HeaderValue,
    at: Timestamp,
    started: Instant,
    attribution: Option<Attribution>,
    endpoint: Option<ProxiedEndpoint>,
    requested: Option<ModelName>,
    model: Option<ModelName>,
    asked: Option<AttemptedBackend>,
    /// Those before it, where it was not the first.
    asked_before: Vec<AttemptedBackend>,
    attempts: u32,
    stream: bool,
    first_event: Option<Duration>,
    usage: Option<Usage>,
    /// Where there is something to tell.
    quantities: Option<Box<Quantities>>,
    /// What the client says that it is for.
    metadata: Option<Metadata>,
    /// Tokens of the prompt, by a rough count.
    prompt_estimate: u64,
    sent: AwaitingResponse,
    /// Tokens of the answer that came, by a rough count; nothing where it has not
    /// begun.
    came: Option<u64>,
    trace: Trace,
    /// What was taken for it, where its caller has limits or budgets.
    allowance: Option<Box<Allowance>>,
    /// Whether the cache had its answer, where that was looked up.
    cache: Option<CacheUse>,
    end: Option<RequestEnd>,
}

impl RequestLog {
    /// In a place of its own: it goes with the request from room to room, and would
    /// lie in each of their futures.
    pub(crate) fn begin(sink: &Arc<AccountingSink>, head: &Head) -> Box<Self> {
        let tracer = sink.tracer.as_ref();
        let started = clock::now();
        Box::new(Self {
            trace: tracer.map_or_else(Trace::default, |_| Trace::arrived(head)),
            id: sink.request_id(head),
            sink: Arc::clone(sink),
            at: clock::timestamp_of(started),
            started,
            attribution: None,
            endpoint: None,
            requested: None,
            model: None,
            asked: None,
            asked_before: Vec::new(),
            attempts: 0,
            stream: false,
            first_event: None,
            usage: None,
            quantities: None,
            metadata: None,
            prompt_estimate: 0,
            sent: AwaitingResponse::default(),
            came: None,
            allowance: None,
            cache: None,
            end: None,
        })
    }

    /// The request's id, for the upstream and for the answer.
    pub(crate) fn id(&self) -> &HeaderValue {
        &self.id
    }

    /// When it arrived.
    pub(crate) fn at(&self) -> Timestamp {
        self.at
    }

    /// Which trace it belongs to, for the upstream.
    pub(crate) fn trace(&self) -> &Trace {
        &self.trace
    }

    pub(crate) fn metrics(&self) -> &Metrics {
        &self.sink.metrics
    }

    /// Somebody is known to have asked.
    pub(crate) fn identified(&mut self, identified: &Identified) {
        self.attribution = Some(Attribution {
            principal: identified.principal.id(),
            name: Arc::clone(identified.principal.name()),
            key: identified.key,
        });
    }

    /// Something is asked for that an upstream answers.
    pub(crate) fn endpoint(&mut self, endpoint: ProxiedEndpoint) {
        self.endpoint = Some(endpoint);
    }

    /// The client says what it is for.
    pub(crate) fn metadata(&mut self, metadata: Option<Metadata>) {
        self.metadata = metadata;
    }

    /// What its use is told by, beside tokens.
    pub(crate) fn measure(&self) -> Measure {
        self.endpoint
            .map(ProxiedEndpoint::measure)
            .unwrap_or_default()
    }

    /// What was used beside tokens, as far as that is known.
    pub(crate) fn measured(&mut self, quantities: Quantities) {
        if quantities != Quantities::default() {
            let known = self.quantities.get_or_insert_default();
            **known = quantities.or(**known);
        }
    }

    /// The prompt has so many tokens, by a rough count.
    pub(crate) fn prompt(&mut self, estimate: u64) {
        self.prompt_estimate = estimate;
    }

    /// So much was taken of what its caller may take.
    pub(crate) fn reserved(&mut self, reservation: Reservation, rates: RateLimits) {
        self.allowance =
            (!reservation.is_empty()).then(|| Box::new(Allowance { reservation, rates }));
    }

    /// An answer of the model that was asked last goes to the client.
    pub(crate) fn begins_to_answer(&mut self) {
        if let (Some(allowance), Some(model)) = (&mut self.allowance, &self.model) {
            let reservation = &mut allowance.reservation;
            reservation.release_other_models(model, clock::timestamp());
        }
    }

    /// What its client is told of its limits.
    pub(crate) fn rates(&self) -> Option<&RateLimits> {
        self.allowance.as_ref().map(|allowance| &allowance.rates)
    }

    /// Where it is noted that an upstream has the request.
    pub(crate) fn sent(&self) -> &AwaitingResponse {
        &self.sent
    }

    /// The name that was asked for exists, and stands for a concrete model.
    pub(crate) fn requested(&mut self, name: &ModelName, model: &ModelName, stream: bool) {
        self.requested = Some(name.clone());
        self.model = Some(model.clone());
        self.stream = stream;
        self.decide_trace();
    }

    fn decide_trace(&mut self) {
        if let Some(tracer) = &self.sink.tracer {
            tracer.decide(&mut self.trace);
        }
    }

    /// It was looked up whether this model has given the answer before.
    pub(crate) fn looked_up(&mut self, model: &ModelName, found: bool) {
        self.model = Some(model.clone());
        let cache = if found { CacheUse::Hit } else { CacheUse::Miss };
        self.metrics().cache(cache);
        self.cache = Some(cache);
    }

    /// Whether the cache had its answer, where that was looked up.
    pub(crate) fn cache(&self) -> Option<CacheUse> {
        self.cache
    }

    fn is_hit(&self) -> bool {
        self.cache == Some(CacheUse::Hit)
    }

    /// A backend of a concrete model is asked.
    pub(crate) fn asked(&mut self, model: &ModelName, backend: &Backend) {
        self.model = Some(model.clone());
        let asked = AttemptedBackend {
            id: backend.id(),
            api_base: Arc::clone(backend.api_base()),
            series: BackendMetrics::of(backend),
        };
        self.asked_before.extend(self.asked.replace(asked));
        self.attempts += 1;
    }

    /// The answer comes from a backend that was asked before the last one.
    pub(crate) fn answered_by(&mut self, model: &ModelName, id: BackendId, api_base: &Arc<str>) {
        self.model = Some(model.clone());
        let series = self
            .asked_before
            .iter()
            .chain(&self.asked)
            .find(|asked| asked.id == id)
            .and_then(|asked| asked.series.clone());
        self.asked = Some(AttemptedBackend {
            id,
            api_base: Arc::clone(api_base),
            series,
        });
    }

    /// The first event of a stream is there.
    pub(crate) fn first_event(&mut self) {
        if self.first_event.is_none() {
            let after = self.started.elapsed();
            self.first_event = Some(after);
            self.sink.metrics.first_event(self.series(), after);
        }
    }

    /// What the answer said that it used.
    pub(crate) fn used(&mut self, usage: Option<Usage>) {
        self.usage = usage.or(self.usage);
    }

    /// So many tokens of an answer came that did not say it, by a rough count, or
    /// nothing where it had not begun.
    pub(crate) fn came(&mut self, completion: Option<u64>) {
        self.came = completion;
    }

    /// Ends it: the gateway said no, with this status.
    pub(crate) fn refused(mut self, refusal: &Refusal, status: u16) {
        let outcome = match refusal.status() {
            500 | 502 | 504 => Outcome::Unavailable,
            _ => {
                self.sink.metrics.rejected(refusal.category());
                Outcome::Rejected
            }
        };
        self.end = Some(RequestEnd {
            outcome,
            status,
            refusal: refusal.recorded_as(),
            code: Some(refusal.code()),
        });
    }

    /// Ends it: an upstream's answer with this status went to the client;
    /// `complete` tells whether all of it did.
    pub(crate) fn answered(mut self, status: u16, complete: bool) {
        self.end = Some(RequestEnd {
            outcome: if complete && status < 400 {
                Outcome::Ok
            } else {
                Outcome::UpstreamError
            },
            status,
            refusal: None,
            code: None,
        });
    }

    /// What it has used, as far as that is known.
    pub(crate) fn figures(&self) -> UsageSummary {
        UsageSummary {
            usage: self.usage,
            came: self.came,
            quantities: self.quantities.as_deref().copied().unwrap_or_default(),
        }
    }

    /// Ends it: the client got an answer that was kept, which had used so much
    /// when it was given first.
    pub(crate) fn cached_response(mut self, figures: UsageSummary) {
        self.usage = figures.usage;
        self.came = figures.came;
        self.measured(figures.quantities);
        self.served();
    }

    /// Ends it: the gateway answered by itself, well.
    pub(crate) fn served(mut self) {
        self.end = Some(RequestEnd {
            outcome: Outcome::Ok,
            status: 200,
            refusal: None,
            code: None,
        });
    }

    fn settle(&mut self) {
        let took = self.started.elapsed();
        let end = self.end.unwrap_or(RequestEnd {
            outcome: Outcome::ClientGone,
            status: CLIENT_GONE,
            refusal: None,
            code: None,
        });
        // The gateway's own answer is no proxied request; a kept one stands for one.
        if end.outcome != Outcome::Ok || self.asked.is_some() || self.is_hit() {
            self.count(end, took);
            self.decide_trace();
            self.trace_end(end, took);
        }
        let event = self.event(end, took);
        if let Some(allowance) = self.allowance.take() {
            let refused = end.outcome == Outcome::Rejected;
            allowance.end(refused, event.as_ref(), self.at_after(took));
        }
        if let Some(mut event) = event {
            event.metadata = self.metadata.take();
            self.sink.usage.push(event);
        }
        self.log(end, took);
    }

    /// The time, so long after it arrived.
    fn at_after(&self, took: Duration) -> Timestamp {
        let micros = i64::try_from(took.as_micros()).unwrap_or(i64::MAX);
        Timestamp(self.at.0.saturating_add(micros))
    }

    fn count(&self, end: RequestEnd, took: Duration) {
        let metrics = &self.sink.metrics;
        metrics.finished(end.outcome, took);
        let answered = matches!(
            end.outcome,
            Outcome::Ok | Outcome::UpstreamError | Outcome::ClientGone
        );
        if let (true, Some(series)) = (answered, self.series()) {
            series.answered(took);
            if let Some(usage) = &self.usage {
                series.tokens(usage.prompt_tokens, usage.completion_tokens.unwrap_or(0));
            }
            metrics.used(self.metadata.as_ref(), self.usage.as_ref());
        }
    }

    /// What the backend that was asked last is counted in.
    fn series(&self) -> Option<&BackendMetrics> {
        self.asked.as_ref()?.series.as_deref()
    }

    fn trace_end(&self, end: RequestEnd, took: Duration) {
        let (Some(tracer), Some(ids)) = (&self.sink.tracer, self.trace.ids()) else {
            return;
        };
        tracer.take(FinishedRequest {
            ids,
            request_id: self.id.clone(),
            at: self.at,
            took,
            first_event: self.first_event,
            requested: self.requested.clone(),
            model: self.model.clone(),
            backend: self
                .asked
                .as_ref()
                .map(|asked| (asked.id, Arc::clone(&asked.api_base))),
            stream: self.stream,
            attempts: self.attempts,
            status: end.status,
            outcome: end.outcome,
            code: end.code,
            usage: self.usage,
            cache: self.cache,
        });
    }
}

impl Drop for RequestLog {
    fn drop(&mut self) {
        self.settle();
    }
}

fn milliseconds(duration: Duration) -> u32 {
    u32::try_from(duration.as_millis()).unwrap_or(u32::MAX)
}
