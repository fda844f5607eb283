use std::sync::Arc;
use std::time::{Duration, Instant};

use fastllm_contract::{BackendId, ModelName};
use fastllm_engine::{Backend, BackendState, Chain, InFlight, NoSlot, Pool, Refusal};
use fastllm_wire::First;
use fastllm_wire::http1::Fields;
use http::StatusCode;
use tokio::time::sleep;

use super::AttemptError;
use super::outgoing::{Outgoing, Payload};
use super::response_stream::{ResponseStream, StreamEnd};
use super::slot::{Slot, wait_for_slot};
use super::{ForwardedResponse, IdleTimeouts, back_off};
use crate::cache::PendingEntry;
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

/// Sends a request to the backends of a chain until one answers.
#[derive(Debug)]
pub(crate) struct Forwarder {
    pub(crate) upstreams: Upstreams,
    /// How long one attempt waits for an answer.
    pub(crate) timeout: Duration,
    /// Further attempts per model.
    pub(crate) max_retries: u32,
    /// How long an answer may be silent.
    pub(crate) idle_timeouts: IdleTimeouts,
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
    answers: u64,
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
        record: &mut RequestLog,
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
                record.metrics().failed_over();
            }
            let attempts = PoolAttempts {
                index,
                pool,
                outgoing,
                is_last: index == last,
            };
            let start = (Vec::new(), None);
            if let Some(response) = self
                .try_pool(&attempts, start, record, &mut retry_state)
                .await
            {
                if chain.is_fallback(index) {
                    record.metrics().fallback_used();
                }
                return Ok(response);
            }
        }
        if let Some(response) = self.wait(chain, outgoing, record, &mut retry_state).await {
            return Ok(response);
        }
        retry_state.finish(record)
    }

    /// No model could answer, and one of them had no place: waits for one there.
    async fn wait(
        &self,
        chain: &Chain,
        outgoing: &Outgoing<'_, '_>,
        record: &mut RequestLog,
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
        let attempts = PoolAttempts {
            index,
            pool,
            outgoing,
            is_last: true,
        };
        self.try_pool(&attempts, (tried, Some(slot)), record, retry_state)
            .await
    }

    async fn try_pool(
        &self,
        attempts: &PoolAttempts<'_, '_>,
        (mut tried, mut given): (Vec<usize>, Option<Slot>),
        record: &mut RequestLog,
        retry_state: &mut RetryState<'_>,
    ) -> Option<UpstreamResponse> {
        let PoolAttempts { pool, outgoing, .. } = attempts;
        let mut failure = AttemptFailure::default();
        for retry in 0..=self.max_retries {
            if let Some(before) = retry.checked_sub(1) {
                let wait = attempts.wait(&mut tried, before, failure)?;
                if retry_state.is_spent_after(wait) {
                    return None;
                }
                record.metrics().retried();
                sleep(wait).await;
            }
            let slot = match given.take() {
                Some(slot) => Ok(slot),
                None => pool.acquire(&tried, &outgoing.pick()),
            };
            let (index, in_flight) = match slot {
                Ok(slot) => slot,
                Err(NoSlot::Exhausted) => return None,
                Err(NoSlot::Full) => {
                    retry_state.full.get_or_insert((attempts.index, tried));
                    return None;
                }
            };
            let backend = pool.backends().get(index)?;
            record.asked(pool.model(), backend);
            retry_state.left = retry_state.left.saturating_sub(1);
            let outcome = self
                .attempt(attempts, (backend, in_flight), record, retry_state)
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
                        request_id = record.id().to_str().unwrap_or_default(),
                        backend = backend.id().0,
                        %error,
                        "an attempt failed"
                    );
                    retry_state.last = Some(error);
                }
            }
            tried.push(index);
        }
        None
    }

    async fn attempt(
        &self,
        attempts: &PoolAttempts<'_, '_>,
        (backend, in_flight): (&Backend, InFlight),
        record: &RequestLog,
        retry_state: &mut RetryState<'_>,
    ) -> Result<UpstreamResponse, AttemptError> {
        let PoolAttempts { pool, outgoing, .. } = attempts;
        let attempt = Attempt {
            live: Arc::clone(backend.state()),
            slot: Some(in_flight),
            began: clock::now(),
            stream: outgoing.members.is_stream(),
            answers: outgoing.members.answers(),
        };
        let left = retry_state.until.saturating_duration_since(attempt.began);
        let limit = left.min(self.timeout);
        let (upstreams, origin) = (&self.upstreams, backend.origin());
        let sent = record.sent();
        let exchanged = match &outgoing.payload {
            Payload::Whole(body) => {
                let request = outgoing.request(backend, record, body)?;
                upstreams
                    .exchange(origin, request, limit, retry_state.deadline, sent)
                    .await
                    .map_err(AttemptError::from)
            }
            Payload::Upload(upload) => {
                let request = outgoing.uploading(backend, record, upload)?;
                let way = (upstreams, origin);
                Box::pin(request.exchange(way, limit, retry_state.deadline, sent)).await
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
            if stream.first() == First::Pending {
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
}

impl PoolAttempts<'_, '_> {
    /// How long to wait before the next attempt; nothing where there is none.
    ///
    /// Each backend is asked once. Where none is left, and no other model
    /// either, one is asked again if what was wrong may pass.
    fn wait(
        &self,
        tried: &mut Vec<usize>,
        retry: u32,
        failure: AttemptFailure,
    ) -> Option<Duration> {
        let wait = back_off::before_retry(retry, failure.status);
        if self.pool.has_another(tried) {
            return Some(wait);
        }
        let asked_for = failure.wait.unwrap_or_default();
        if !self.is_last || !failure.may_pass || asked_for > LONGEST_RETRY_AFTER {
            return None;
        }
        tried.clear();
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
    fn finish(self, record: &mut RequestLog) -> Result<UpstreamResponse, Refusal> {
        if self.deadline.request_is_over() {
            return Err(Refusal::UpstreamTimeout);
        }
        match (self.best, self.last) {
            (Some(best), _) => {
                record.answered_by(&best.model, best.backend, &best.api_base);
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
                .record_completion_tokens(tokens.div_ceil(self.answers));
        }
    }
}

impl UpstreamResponse {
    /// The status that counts: that of an error under a good status, if it
    /// names one.
    fn real_status(&self) -> StatusCode {
        match self.stream.first() {
            First::Error { status } => status
                .and_then(|status| StatusCode::from_u16(status).ok())
                .unwrap_or(StatusCode::BAD_GATEWAY),
            First::Answer | First::Pending => self.status,
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

    /// The model that answers.
    pub(crate) fn model(&self) -> &ModelName {
        &self.model
    }

    /// The header fields of a good answer that is no stream, and how many bytes
    /// it has where that is known; nothing where only the connection's end would
    /// be that of the answer.
    pub(crate) fn in_one_piece(&self) -> Option<(Fields<'_>, Option<u64>)> {
        let head = self.stream.in_one_piece()?;
        let good = self.status == StatusCode::OK;
        good.then(|| (head.fields(), self.stream.length()))
    }

    /// The client's answer, which may be kept. The record goes with it and ends
    /// with it.
    pub(crate) fn into_answer(
        self,
        mut record: Box<RequestLog>,
        keeping: Option<PendingEntry>,
    ) -> ForwardedResponse {
        record.begins_to_answer();
        record.metrics().forwarded(self.status);
        let status = self.status.as_u16();
        ForwardedResponse::new(self.stream, status, (record, self.attempt), keeping)
    }
}
