use std::sync::Arc;
use std::time::{Duration, Instant};

use fastllm_engine::{Backend, Chain, NoSlot, Pool, Refusal, UpstreamRejection};
use fastllm_wire::FirstEvent;
use http::StatusCode;
use tokio::time::sleep;

use super::buffers::ResponseBuffers;
use super::outgoing::{Outgoing, Payload};
use super::response_stream::{ResponseStream, StreamEnd};
use super::retry::{AttemptFailure, FullPool, RetryState};
use super::slot::{Slot, wait_for_slot};
use super::upstream_response::{Attempt, ReceivedResponse, UpstreamResponse, is_error};
use super::{AttemptError, IdleTimeouts, back_off, error_excerpt, stored_objects};
use crate::request_log::RequestLog;
use crate::runtime::{Deadline, clock};
use crate::upstream::{ExchangeError, Upstreams};

/// All attempts together may take this many times as long as one.
const TOTAL_TIMEOUT_FACTOR: u32 = 2;

/// The longest `retry-after` of an upstream that is waited for.
const MAX_RETRY_AFTER: Duration = Duration::from_secs(5);

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
    /// The size up to which complete responses are held, in bytes.
    pub(crate) response_buffer_bytes: u64,
}

impl Config {
    /// A forwarder over the connections of one thread.
    pub(crate) fn build(self, upstreams: Upstreams, buffers: ResponseBuffers) -> Forwarder {
        Forwarder {
            upstreams,
            buffers,
            sse_heartbeat: self.sse_heartbeat,
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
    buffers: ResponseBuffers,
    sse_heartbeat: Option<Duration>,
    timeout: Duration,
    max_retries: u32,
    idle_timeouts: IdleTimeouts,
}

impl Forwarder {
    /// The first response that is not worth a retry, else the most useful one,
    /// else a refusal. Nothing of it has been sent to the client.
    pub(crate) async fn send(
        &self,
        chain: &Chain,
        outgoing: &Outgoing<'_, '_>,
        log: &mut RequestLog,
        deadline: &mut Deadline,
    ) -> Result<UpstreamResponse, Refusal> {
        let mut retry_state = RetryState::new(self.total_timeout(chain, outgoing), deadline);
        let last = chain.pools().len().saturating_sub(1);
        for (index, pool) in chain.pools().iter().enumerate() {
            if index > 0 {
                // A fallback model is no substitute for the conversation.
                let is_lost = retry_state.only_lacks_object() && chain.is_fallback(index);
                if retry_state.is_spent() || is_lost {
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
                given_up: Vec::new(),
                retries: 0,
                last_failure: None,
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

    /// How long one attempt waits for a response head.
    fn timeout_of(&self, pool: &Pool, outgoing: &Outgoing<'_, '_>) -> Duration {
        let failover = pool.failover();
        let of_stream = failover.stream_timeout_ms;
        let of_stream = of_stream.filter(|_| outgoing.members.is_stream());
        let timeout = of_stream.or(failover.timeout_ms);
        timeout.map_or(self.timeout, Duration::from_millis)
    }

    /// How long all attempts together may take.
    fn total_timeout(&self, chain: &Chain, outgoing: &Outgoing<'_, '_>) -> Duration {
        let pools = chain.pools().iter();
        let timeouts = pools.map(|pool| self.timeout_of(pool, outgoing));
        timeouts.max().unwrap_or(self.timeout) * TOTAL_TIMEOUT_FACTOR
    }

    /// Waits for a slot of the first model whose backends were full, if no
    /// model responded.
    async fn wait(
        &self,
        chain: &Chain,
        outgoing: &Outgoing<'_, '_>,
        log: &mut RequestLog,
        retry_state: &mut RetryState<'_>,
    ) -> Option<UpstreamResponse> {
        let FullPool { index, tried } = retry_state.full.as_mut()?;
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
            given_up: Vec::new(),
            retries: 0,
            last_failure: None,
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
        let max_retries = pool.failover().max_retries.unwrap_or(self.max_retries);
        let mut failure = None;
        loop {
            if let Some(failure) = failure.take() {
                let wait = attempts.wait(max_retries, failure)?;
                if retry_state.is_spent_after(wait) {
                    return None;
                }
                log.metrics().retried();
                if !wait.is_zero() {
                    sleep(wait).await;
                }
            }
            let slot = attempts.acquire(retry_state)?;
            let index = slot.0;
            let backend = pool.backends().get(index)?;
            log.route.record_attempt(pool.model(), backend);
            retry_state.left = retry_state.left.saturating_sub(1);
            let attempt = Attempt::new(pool, slot, outgoing)?;
            let outcome = self
                .attempt(attempt, backend, attempts, log, retry_state)
                .await;
            let outcome = retry_state.check(outgoing, outcome)?;
            let failed = AttemptFailure::of(&outcome);
            failed.record(backend.state(), outgoing.endpoint.index());
            match outcome {
                Ok(response) if response.lacks_object => retry_state.offer_lacking(response),
                Ok(response) if !response.is_worth_a_retry() => return Some(response),
                failed => keep_failed(failed, backend, log, retry_state),
            }
            attempts.tried.push(index);
            if failed.is_hopeless {
                attempts.given_up.push(index);
            }
            failure = Some(failed);
        }
    }

    async fn attempt(
        &self,
        attempt: Attempt,
        backend: &Backend,
        attempts: &PoolAttempts<'_, '_>,
        log: &RequestLog,
        retry_state: &mut RetryState<'_>,
    ) -> Result<UpstreamResponse, AttemptError> {
        let (model, outgoing) = (attempts.pool.model(), attempts.outgoing);
        let left = retry_state.until.saturating_duration_since(attempt.began);
        let limit = left.min(self.timeout_of(attempts.pool, outgoing));
        let began = attempt.began;
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
        let usage_tap = outgoing.usage_tap(&lease, backend);
        let mut stream = ResponseStream::new(lease, usage_tap, self.idle_timeouts);
        self.hold(&mut stream, status, backend, began + limit, retry_state)
            .await?;
        let lacks_object = stored_objects::lacks_object(outgoing, status, &stream);
        let fields = outgoing.forwarded_fields(&stream, backend);
        let received = ReceivedResponse { stream, fields };
        let response = UpstreamResponse::new(backend, model, status, received, attempt);
        Ok(response.with_lacking(lacks_object))
    }

    /// Holds the beginning of a response as long as another backend could replace it,
    /// at most until this moment: an error, a stream until its first event, a complete
    /// body until its end.
    async fn hold(
        &self,
        stream: &mut ResponseStream,
        status: StatusCode,
        backend: &Backend,
        until: Instant,
        retry_state: &mut RetryState<'_>,
    ) -> Result<(), AttemptError> {
        let deadline = &mut *retry_state.deadline;
        let mut is_replaceable = is_error(status);
        if is_replaceable {
            stream.hold_error(deadline).await;
        } else if stream.is_stream() {
            // The head is due with the first heartbeat.
            let heartbeat = self.sse_heartbeat.map(|after| clock::now() + after);
            let due = heartbeat.map_or(until, |at| at.min(until));
            let in_time = stream.hold(deadline, due).await;
            if let Some(class) = stream.compressed_error()
                && !backend.secrets().is_empty()
            {
                return Err(AttemptError::compressed(class));
            }
            is_replaceable = stream.first() == FirstEvent::Pending;
            if !in_time && due == until && !deadline.request_is_over() {
                return Err(ExchangeError::Timeout.into());
            }
        } else {
            is_replaceable = stream.hold_whole(deadline, until, &self.buffers).await;
            if stream.end() == Some(&StreamEnd::Complete) && !stream.is_whole() {
                return Err(ExchangeError::Broken("the response is incomplete".to_owned()).into());
            }
        }
        match stream.end() {
            Some(StreamEnd::Aborted(reason)) if is_replaceable => {
                Err(ExchangeError::Broken(reason.clone()).into())
            }
            None if is_replaceable && deadline.request_is_over() => {
                Err(ExchangeError::RequestTimeout.into())
            }
            _ => Ok(()),
        }
    }
}

/// Keeps the outcome of a failed attempt, in case that no other one succeeds.
fn keep_failed(
    outcome: Result<UpstreamResponse, AttemptError>,
    backend: &Backend,
    log: &RequestLog,
    retry_state: &mut RetryState<'_>,
) {
    match outcome {
        Ok(response) => match response.rejection() {
            Some(rejection) => {
                log_rejection(rejection, &response, backend, log);
                retry_state.rejected = Some(rejection);
            }
            None => retry_state.offer(response),
        },
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
}

/// Logs what an upstream rejects, for the operator: the client does not receive
/// its text.
fn log_rejection(
    by: UpstreamRejection,
    response: &UpstreamResponse,
    backend: &Backend,
    log: &RequestLog,
) {
    let rejected = match by {
        UpstreamRejection::Credential => "credential",
        UpstreamRejection::Configuration => "configuration",
    };
    tracing::warn!(
        request_id = log.request_id().to_str().unwrap_or_default(),
        model = response.model.as_str(),
        backend = backend.id().0,
        rejected,
        status = response.status.as_u16(),
        response = error_excerpt::of(response.stream.held_text()),
        "an upstream rejected the gateway's credential or configuration"
    );
}

/// The attempts at one model of a chain.
struct PoolAttempts<'a, 'c> {
    /// Its position in the chain.
    index: usize,
    pool: &'a Arc<Pool>,
    outgoing: &'a Outgoing<'a, 'c>,
    /// No other model is left.
    is_last: bool,
    /// The backends that were attempted.
    tried: Vec<usize>,
    /// Those that are not attempted again.
    given_up: Vec<usize>,
    /// Further attempts so far that count as retries.
    retries: u32,
    /// The last failure that cost the upstream work.
    last_failure: Option<AttemptFailure>,
    /// A slot that was waited for, for the first attempt.
    granted: Option<Slot>,
}

impl PoolAttempts<'_, '_> {
    /// A slot for the next attempt. If all backends are full, the request may
    /// queue later.
    fn acquire(&mut self, retry_state: &mut RetryState<'_>) -> Option<Slot> {
        if let Some(slot) = self.granted.take() {
            return Some(slot);
        }
        match self.pool.acquire(&self.tried, &self.outgoing.pick()) {
            Ok(slot) => Some(slot),
            Err(NoSlot::Exhausted) => None,
            Err(NoSlot::Full) => {
                let (index, tried) = (self.index, std::mem::take(&mut self.tried));
                retry_state.full.get_or_insert(FullPool { index, tried });
                None
            }
        }
    }

    /// The back-off before the next attempt; `None` if there is none.
    ///
    /// Each backend is attempted once. Where no other backend and no other model
    /// is left, one is attempted again if the failure may be temporary. A rejection
    /// or a missing object costs no upstream any work, so the next backend is
    /// attempted at once, and that is no retry.
    fn wait(&mut self, max_retries: u32, failure: AttemptFailure) -> Option<Duration> {
        let has_another = self.pool.has_another(&self.tried);
        let is_free = failure.is_free();
        if is_free && has_another {
            return Some(Duration::ZERO);
        }
        if !is_free {
            self.last_failure = Some(failure);
        }
        let failure = self.last_failure?;
        if self.retries == max_retries {
            return None;
        }
        let wait = back_off::before_retry(self.retries, failure.is_capacity);
        self.retries += 1;
        if has_another {
            return Some(wait);
        }
        let asked_for = failure.wait.unwrap_or_default();
        let may_repeat = self.is_last && failure.may_pass && asked_for <= MAX_RETRY_AFTER;
        if !may_repeat || !self.pool.has_another(&self.given_up) {
            return None;
        }
        self.tried.clone_from(&self.given_up);
        Some(wait.max(asked_for))
    }
}
