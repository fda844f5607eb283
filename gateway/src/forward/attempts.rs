use std::sync::Arc;
use std::time::{Duration, Instant};

use fastllm_contract::{BackendId, ModelName};
use fastllm_engine::{Backend, BackendState, Chain, InFlight, NoSlot, Pool, Refusal};
use fastllm_wire::FirstEvent;
use http::StatusCode;
use tokio::time::sleep;

use super::AttemptError;
use super::forwarded_response::Unfinished;
use super::outgoing::{Outgoing, Payload};
use super::response_stream::{ResponseStream, StreamEnd};
use super::slot::{Slot, wait_for_slot};
use super::{ForwardedResponse, IdleTimeouts, back_off};
use crate::cache::{CacheableResponse, PendingEntry};
use crate::request_log::RequestLog;
use crate::runtime::Deadline;
use crate::runtime::clock;
use crate::upstream::ExchangeError;
use crate::upstream::Upstreams;

/// However long a chain and whatever is allowed per model: the most attempts
/// that one request costs.
const MOST_ATTEMPTS: u32 = 32;

/// All attempts together may wait this many times as long as one may.
const TOTAL_TIMEOUT_FACTOR: u32 = 2;

/// The longest that a client is kept waiting because an upstream asked to be
/// left alone.
const LONGEST_RETRY_AFTER: Duration = Duration::from_secs(5);

/// How requests are forwarded.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Config {
    /// How long one attempt waits for a response head.
    pub(crate) timeout: Duration,
    /// Further attempts per model.
    pub(crate) max_retries: u32,
    /// How long an upstream may be idle in the middle of a response.
    pub(crate) stream_idle_timeout: Duration,
    /// How often a comment is sent on an idle stream.
    pub(crate) sse_heartbeat: Option<Duration>,
}

impl Config {
    /// A forwarder over the connections of one thread.
    pub(crate) fn build(self, upstreams: Upstreams) -> Forwarder {
        Forwarder {
            upstreams,
            timeout: self.timeout,
            max_retries: self.max_retries,
            idle_timeouts: IdleTimeouts::new(self.stream_idle_timeout, self.sse_heartbeat),
        }
    }
}

/// Sends a request to the backends of a chain until one responds.
#[derive(Debug)]
pub(crate) struct Forwarder {
    upstreams: Upstreams,
    timeout: Duration,
    max_retries: u32,
    idle_timeouts: IdleTimeouts,
}

/// An answer that goes to the client unless a better one comes.
#[derive(Debug)]
pub(crate) struct UpstreamResponse {
    status: StatusCode,
    stream: ResponseStream,
    attempt: Attempt,
    model: ModelName,
    backend: BackendId,
    api_base: Arc<str>,
}

/// One request under way at a backend.
#[derive(Debug)]
pub(super) struct Attempt {
    live: Arc<BackendState>,
    /// Until it is known that a better answer is looked for.
    slot: Option<InFlight>,
    began: Instant,
    stream: bool,
    /// How many answers are asked for.
    choices: u64,
}

/// What a request may still cost, and what it has brought so far.
#[derive(Debug)]
struct RetryState<'d> {
    until: Instant,
    left: u32,
    best: Option<UpstreamResponse>,
    last: Option<AttemptError>,
    /// The first model that had no place: its place in the chain, and which of
    /// its backends were tried before.
    full: Option<(usize, Vec<usize>)>,
    deadline: &'d mut Deadline,
}

/// How an attempt failed.
#[derive(Debug, Clone, Copy, Default)]
struct AttemptFailure {
    status: Option<StatusCode>,
    /// What the upstream asked for.
    wait: Option<Duration>,
    /// The same backend may well answer soon.
    may_pass: bool,
}

impl Forwarder {
    /// The first answer that is not worth a retry; else the most useful one
    /// that came; else a refusal. Nothing of it has left for the client.
    pub(crate) async fn send(
        &self,
        chain: &Chain,
        outgoing: &Outgoing<'_, '_>,
        log: &mut RequestLog,
        deadline: &mut Deadline,
    ) -> Result<UpstreamResponse, Refusal> {
        let until = clock::now() + self.timeout * TOTAL_TIMEOUT_FACTOR;
        let mut retry_state = RetryState {
            until: deadline.request_end().map_or(until, |end| until.min(end)),
            left: MOST_ATTEMPTS,
            best: None,
            last: None,
            full: None,
            deadline,
        };
        let last = chain.pools().len().saturating_sub(1);
        for (index, pool) in chain.pools().iter().enumerate() {
            if index > 0 {
                if retry_state.is_spent() {
                    break;
                }
                log.metrics().failed_over();
            }
            let mut attempts = PoolAttempts {
                index,
                pool,
                outgoing,
                is_last: index == last,
                tried: Vec::new(),
                granted: None,
            };
            if let Some(response) = self.try_pool(&mut attempts, log, &mut retry_state).await {
                if chain.is_fallback(index) {
                    log.metrics().fallback_used();
                }
                return Ok(response);
            }
        }
        if let Some(response) = self.wait(chain, outgoing, log, &mut retry_state).await {
            return Ok(response);
        }
        retry_state.finish(log)
    }

    /// No model could answer, and one of them had no place: waits for one there.
    async fn wait(
        &self,
        chain: &Chain,
        outgoing: &Outgoing<'_, '_>,
        log: &mut RequestLog,
        retry_state: &mut RetryState<'_>,
    ) -> Option<UpstreamResponse> {
        let (index, tried) = retry_state.full.as_mut()?;
        let (index, tried) = (*index, std::mem::take(tried));
        let pool = chain.pools().get(index)?;
        if retry_state.left == 0 {
            return None;
        }
        let pick = outgoing.pick();
        let slot = wait_for_slot(pool, &tried, &pick, retry_state.remaining()).await?;
        retry_state.full = None;
        let mut attempts = PoolAttempts {
            index,
            pool,
            outgoing,
            is_last: true,
            tried,
            granted: Some(slot),
        };
        self.try_pool(&mut attempts, log, retry_state).await
    }

    async fn try_pool(
        &self,
        attempts: &mut PoolAttempts<'_, '_>,
        log: &mut RequestLog,
        retry_state: &mut RetryState<'_>,
    ) -> Option<UpstreamResponse> {
        let (pool, outgoing) = (attempts.pool, attempts.outgoing);
        let mut failure = AttemptFailure::default();
        for retry in 0..=self.max_retries {
            if let Some(before) = retry.checked_sub(1) {
                let wait = attempts.wait(before, failure)?;
                if retry_state.is_spent_after(wait) {
                    return None;
                }
                log.metrics().retried();
                sleep(wait).await;
            }
            let slot = match attempts.granted.take() {
                Some(slot) => Ok(slot),
                None => pool.acquire(&attempts.tried, &outgoing.pick()),
            };
            let (index, in_flight) = match slot {
                Ok(slot) => slot,
                Err(NoSlot::Exhausted) => return None,
                Err(NoSlot::Full) => {
                    let tried = std::mem::take(&mut attempts.tried);
                    retry_state.full.get_or_insert((attempts.index, tried));
                    return None;
                }
            };
            let backend = pool.backends().get(index)?;
            log.route.record_attempt(pool.model(), backend);
            retry_state.left = retry_state.left.saturating_sub(1);
            let attempt = Attempt::new(backend, in_flight, outgoing);
            let outcome = self
                .attempt(attempt, backend, attempts, log, retry_state)
                .await;
            let outcome = retry_state.check(outgoing, outcome)?;
            failure = AttemptFailure::of(&outcome);
            if !matches!(
                outcome,
                Err(AttemptError::Exchange(ExchangeError::RequestTimeout))
            ) {
                failure.record(backend.state());
            }
            match outcome {
                Ok(response) if !response.is_worth_a_retry() => return Some(response),
                Ok(response) => retry_state.offer(response),
                Err(error) => {
                    tracing::warn!(
                        request_id = log.request_id().to_str().unwrap_or_default(),
                        backend = backend.id().0,
                        %error,
                        "an attempt failed"
                    );
                    retry_state.last = Some(error);
                }
            }
            attempts.tried.push(index);
        }
        None
    }

    async fn attempt(
        &self,
        attempt: Attempt,
        backend: &Backend,
        attempts: &PoolAttempts<'_, '_>,
        log: &RequestLog,
        retry_state: &mut RetryState<'_>,
    ) -> Result<UpstreamResponse, AttemptError> {
        let (pool, outgoing) = (attempts.pool, attempts.outgoing);
        let left = retry_state.until.saturating_duration_since(attempt.began);
        let limit = left.min(self.timeout);
        let (upstreams, origin) = (&self.upstreams, backend.origin());
        let sent = log.awaiting_response();
        let exchanged = match &outgoing.payload {
            Payload::Whole(body) => {
                let request = outgoing.request(backend, log, body)?;
                upstreams
                    .exchange(origin, request, limit, retry_state.deadline, sent)
                    .await
                    .map_err(AttemptError::from)
            }
            Payload::Upload(upload) => {
                let request = outgoing.uploading(backend, log, upload)?;
                let lease = upstreams.connect(origin);
                Box::pin(request.exchange(lease, limit, retry_state.deadline, sent)).await
            }
        };
        sent.clear();
        let lease = exchanged?;
        let status = StatusCode::from_u16(lease.connection.status())
            .map_err(|error| AttemptError::Exchange(ExchangeError::Broken(error.to_string())))?;
        let usage_tap = outgoing.usage_tap(&lease);
        let mut stream = ResponseStream::new(lease, usage_tap, self.idle_timeouts);
        if stream.is_stream() {
            stream.hold(retry_state.deadline).await;
            if stream.first() == FirstEvent::Pending {
                if let Some(StreamEnd::Aborted(reason)) = stream.end() {
                    return Err(AttemptError::Exchange(ExchangeError::Broken(
                        reason.clone(),
                    )));
                }
                if retry_state.deadline.request_is_over() {
                    return Err(AttemptError::Exchange(ExchangeError::RequestTimeout));
                }
            }
        }
        Ok(UpstreamResponse {
            status,
            stream,
            attempt,
            model: pool.model().clone(),
            backend: backend.id(),
            api_base: Arc::clone(backend.api_base()),
        })
    }
}

/// The attempts at one model of a chain.
struct PoolAttempts<'a, 'c> {
    /// Its place in the chain.
    index: usize,
    pool: &'a Pool,
    outgoing: &'a Outgoing<'a, 'c>,
    /// No other model is left.
    is_last: bool,
    /// The backends that were attempted.
    tried: Vec<usize>,
    /// A slot that was waited for, for the first attempt.
    granted: Option<Slot>,
}

impl PoolAttempts<'_, '_> {
    /// How long to wait before the next attempt; nothing where there is none.
    ///
    /// Each backend is asked once. Where none is left, and no other model
    /// either, one is asked again if what was wrong may pass.
    fn wait(&mut self, retry: u32, failure: AttemptFailure) -> Option<Duration> {
        let wait = back_off::before_retry(retry, failure.status);
        if self.pool.has_another(&self.tried) {
            return Some(wait);
        }
        let asked_for = failure.wait.unwrap_or_default();
        if !self.is_last || !failure.may_pass || asked_for > LONGEST_RETRY_AFTER {
            return None;
        }
        self.tried.clear();
        Some(wait.max(asked_for))
    }
}

impl RetryState<'_> {
    fn remaining(&self) -> Duration {
        self.until.saturating_duration_since(clock::now())
    }

    fn is_spent_after(&self, wait: Duration) -> bool {
        self.left == 0 || self.remaining() <= wait
    }

    fn is_spent(&self) -> bool {
        self.is_spent_after(Duration::ZERO)
    }

    /// Keeps the answer that tells the client most; of equal ones the last.
    fn offer(&mut self, mut response: UpstreamResponse) {
        // It has failed: further attempts, its own among them, must not wait
        // for the place that it had.
        response.attempt.slot = None;
        let before = self.best.as_ref().map(UpstreamResponse::usefulness);
        if before.is_none_or(|before| response.usefulness() >= before) {
            self.best = Some(response);
        }
    }

    /// Nothing where the client's body has ended the request, whatever was
    /// answered before.
    fn check(
        &mut self,
        outgoing: &Outgoing<'_, '_>,
        outcome: Result<UpstreamResponse, AttemptError>,
    ) -> Option<Result<UpstreamResponse, AttemptError>> {
        if !outgoing.can_replay() {
            self.left = 0;
        }
        if let Err(refused @ AttemptError::Refused(_)) = outcome {
            self.left = 0;
            self.best = None;
            self.last = Some(refused);
            return None;
        }
        Some(outcome)
    }

    /// Nothing helped: the best that there is.
    fn finish(self, log: &mut RequestLog) -> Result<UpstreamResponse, Refusal> {
        if self.deadline.request_is_over() {
            return Err(Refusal::UpstreamTimeout);
        }
        match (self.best, self.last) {
            (Some(best), _) => {
                log.route
                    .set_responding_backend(&best.model, best.backend, &best.api_base);
                Ok(best)
            }
            (None, Some(AttemptError::Refused(refusal))) => Err(refusal),
            // Coming again is what helps, whatever else went wrong.
            (None, _) if self.full.is_some() => Err(Refusal::Overloaded),
            (None, Some(AttemptError::Exchange(ExchangeError::Timeout))) => {
                Err(Refusal::UpstreamTimeout)
            }
            (None, Some(AttemptError::Request(_))) => Err(Refusal::Internal),
            (None, _) => Err(Refusal::UpstreamUnavailable),
        }
    }
}

impl AttemptFailure {
    fn of(outcome: &Result<UpstreamResponse, AttemptError>) -> Self {
        match outcome {
            Ok(response) => {
                let status = response.real_status();
                Self {
                    status: Some(status),
                    wait: response.stream.head().and_then(|head| {
                        back_off::asked_for(status, |name| head.fields().get(name))
                    }),
                    may_pass: matches!(status.as_u16(), 429 | 502 | 503),
                }
            }
            // One that broke off may have been what broke the upstream.
            Err(error) => Self {
                may_pass: matches!(error, AttemptError::Exchange(ExchangeError::Connect(_))),
                ..Self::default()
            },
        }
    }

    /// Lets the choices of other requests know.
    fn record(self, live: &BackendState) {
        if self.status.is_none_or(|status| status.is_server_error()) {
            live.record_failure(clock::timestamp());
        } else {
            live.record_success();
        }
        if let Some(wait) = self.wait {
            live.back_off(clock::timestamp(), wait);
        }
    }
}

impl Attempt {
    fn new(backend: &Backend, slot: InFlight, outgoing: &Outgoing<'_, '_>) -> Self {
        Self {
            live: Arc::clone(backend.state()),
            slot: Some(slot),
            began: clock::now(),
            stream: outgoing.members.is_stream(),
            choices: outgoing.members.answers(),
        }
    }

    /// The answer began well, and broke off or ended with an error.
    pub(super) fn failed(&self) {
        self.live.record_failure(clock::timestamp());
    }

    /// The answer was good, and has come to its end, with so many tokens where
    /// that is known. None at all say nothing of other answers: it was no text, or
    /// was not looked into.
    pub(super) fn succeeded(&self, tokens: Option<u64>) {
        let took = clock::now().saturating_duration_since(self.began);
        self.live.record_latency(self.stream, took);
        if let Some(tokens) = tokens.filter(|tokens| *tokens > 0) {
            self.live
                .record_completion_tokens(tokens.div_ceil(self.choices));
        }
    }
}

impl UpstreamResponse {
    /// The status that counts: that of an error under a good status, if it
    /// names one.
    fn real_status(&self) -> StatusCode {
        match self.stream.first() {
            FirstEvent::Error { status } => status
                .and_then(|status| StatusCode::from_u16(status).ok())
                .unwrap_or(StatusCode::BAD_GATEWAY),
            FirstEvent::Answer | FirstEvent::Pending => self.status,
        }
    }

    fn is_worth_a_retry(&self) -> bool {
        let status = self.real_status();
        status.is_server_error() || status == StatusCode::TOO_MANY_REQUESTS
    }

    /// 429 says what to do, other errors only that something is wrong.
    fn usefulness(&self) -> u8 {
        u8::from(self.real_status() == StatusCode::TOO_MANY_REQUESTS)
    }

    /// The header fields of a good answer that is no stream, and how many bytes
    /// it has where that is known; nothing where only the connection's end would
    /// be that of the answer.
    pub(crate) fn cacheable(&self) -> Option<CacheableResponse<'_>> {
        let head = self.stream.in_one_piece()?;
        let good = self.status == StatusCode::OK;
        good.then(|| CacheableResponse {
            model: &self.model,
            fields: head.fields(),
            length: self.stream.length(),
        })
    }

    /// The client's response, which may be cached. The log goes with it and ends
    /// with it.
    pub(crate) fn into_forwarded(
        self,
        mut log: Box<RequestLog>,
        pending_entry: Option<PendingEntry>,
    ) -> ForwardedResponse {
        log.record_response_start();
        log.metrics().forwarded(self.status);
        let status = self.status.as_u16();
        let unfinished = Unfinished {
            log,
            attempt: self.attempt,
            pending_entry,
        };
        ForwardedResponse::new(self.stream, status, unfinished)
    }
}
