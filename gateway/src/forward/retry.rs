//! The attempts that remain, and the best response of the failed ones.

use std::time::{Duration, Instant};

use fastllm_engine::{BackendState, EndpointIndex, Refusal, UpstreamRejection};
use fastllm_wire::ErrorClass;
use http::StatusCode;

use super::outgoing::Outgoing;
use super::upstream_response::UpstreamResponse;
use super::{AttemptError, back_off};
use crate::http::SHOULD_RETRY;
use crate::request_log::RequestLog;
use crate::runtime::{Deadline, clock};
use crate::upstream::ExchangeError;

/// The most attempts of one request, however long its chain is.
const MAX_ATTEMPTS: u32 = 32;

/// The attempts that a request has left, and the best response so far.
#[derive(Debug)]
pub(super) struct RetryState<'d> {
    /// When the attempts have to end.
    pub(super) until: Instant,
    /// Attempts that are left.
    pub(super) left: u32,
    best: Option<UpstreamResponse>,
    /// The first response of a backend that does not store an object which the
    /// request refers to.
    lacking: Option<UpstreamResponse>,
    /// What the last backend rejected of the gateway, if one did.
    pub(super) rejected: Option<UpstreamRejection>,
    pub(super) last: Option<AttemptError>,
    /// The first model whose backends were full.
    pub(super) full: Option<FullPool>,
    pub(super) deadline: &'d mut Deadline,
}

/// A model whose backends are full.
#[derive(Debug)]
pub(super) struct FullPool {
    /// Its position in the chain.
    pub(super) index: usize,
    /// Its backends that were attempted before.
    pub(super) tried: Vec<usize>,
}

/// How an attempt failed.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct AttemptFailure {
    /// The upstream limits its rate or is overloaded.
    pub(super) is_capacity: bool,
    /// The `retry-after` of the upstream.
    pub(super) wait: Option<Duration>,
    /// The failure may be temporary.
    pub(super) may_pass: bool,
    /// The backend would fail again.
    pub(super) is_hopeless: bool,
    recorded: RecordedFailure,
}

/// What an attempt means for the choices of other requests.
#[derive(Debug, Clone, Copy, Default)]
enum RecordedFailure {
    /// Nothing: it is not known yet, or not the backend's.
    #[default]
    None,
    Failure,
    Rejection(UpstreamRejection),
    /// Nothing: the backend does not store an object that the request refers to.
    LacksObject,
}

impl<'d> RetryState<'d> {
    /// Attempts that may take as long as `timeout` together, within the time of
    /// the request.
    pub(super) fn new(timeout: Duration, deadline: &'d mut Deadline) -> Self {
        let until = clock::now() + timeout;
        Self {
            until: deadline.request_end().map_or(until, |end| until.min(end)),
            left: MAX_ATTEMPTS,
            best: None,
            lacking: None,
            rejected: None,
            last: None,
            full: None,
            deadline,
        }
    }

    pub(super) fn remaining(&self) -> Duration {
        self.until.saturating_duration_since(clock::now())
    }

    pub(super) fn is_spent_after(&self, wait: Duration) -> bool {
        self.left == 0 || self.remaining() <= wait
    }

    pub(super) fn is_spent(&self) -> bool {
        self.is_spent_after(Duration::ZERO)
    }

    /// Keeps the response that is most useful to the client; of equal ones the
    /// last.
    pub(super) fn offer(&mut self, mut response: UpstreamResponse) {
        // The attempt has failed: its slot must be free for further attempts.
        response.attempt.slot = None;
        let before = self.best.as_ref().map(UpstreamResponse::usefulness);
        if before.is_none_or(|before| response.usefulness() >= before) {
            self.best = Some(response);
        }
    }

    /// Keeps the first response of a backend that does not store an object which
    /// the request refers to.
    pub(super) fn offer_lacking(&mut self, mut response: UpstreamResponse) {
        response.attempt.slot = None;
        self.lacking.get_or_insert(response);
    }

    /// Whether every backend that was attempted lacks an object.
    pub(super) fn only_lacks_object(&self) -> bool {
        let failed = self.last.is_some() || self.rejected.is_some() || self.full.is_some();
        self.lacking.is_some() && self.best.is_none() && !failed
    }

    /// `None` if the client's body caused the failure, which ends the request.
    pub(super) fn check(
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

    /// The best response of all attempts, or else a refusal.
    pub(super) fn finish(self, log: &mut RequestLog) -> Result<UpstreamResponse, Refusal> {
        if self.deadline.request_is_over() {
            return Err(Refusal::UpstreamTimeout);
        }
        // Otherwise the object may be stored where the attempt failed.
        let lacking = if self.only_lacks_object() {
            self.lacking
        } else {
            None
        };
        match (self.best.or(lacking), self.last) {
            (Some(best), _) => {
                log.route
                    .set_responding_backend(&best.model, best.backend, &best.api_base);
                Ok(best)
            }
            (None, Some(AttemptError::Refused(refusal))) => Err(refusal),
            // A later request may succeed, regardless of the other failures.
            (None, _) if self.full.is_some() => Err(Refusal::Overloaded),
            (None, Some(AttemptError::Exchange(ExchangeError::Timeout))) => {
                Err(Refusal::UpstreamTimeout)
            }
            (None, Some(AttemptError::Request(_))) => Err(Refusal::Internal),
            // Other failures may be temporary, rejections are not.
            (None, Some(AttemptError::Exchange(_))) => Err(Refusal::UpstreamUnavailable),
            (None, None) => Err(match self.rejected {
                Some(UpstreamRejection::Credential) => Refusal::UpstreamCredentialRejected,
                Some(UpstreamRejection::Configuration) => Refusal::UpstreamMisconfigured,
                None => Refusal::UpstreamUnavailable,
            }),
        }
    }
}

impl AttemptFailure {
    pub(super) fn of(outcome: &Result<UpstreamResponse, AttemptError>) -> Self {
        match outcome {
            Ok(response) => Self::of_response(response),
            // The request itself may have caused the connection failure.
            Err(error) => Self {
                may_pass: matches!(error, AttemptError::Exchange(ExchangeError::Connect(_))),
                recorded: match error {
                    AttemptError::Exchange(ExchangeError::RequestTimeout) => RecordedFailure::None,
                    _ => RecordedFailure::Failure,
                },
                ..Self::default()
            },
        }
    }

    fn of_response(response: &UpstreamResponse) -> Self {
        let status = response.status;
        let head = response.stream.head();
        let fields = head.as_ref().map(|head| head.fields());
        let field = |name| fields.as_ref()?.get(name);
        let is_event = status.is_success();
        let is_capacity = response.error == Some(ErrorClass::Capacity);
        let is_failure = response.error == Some(ErrorClass::Backend)
            || (is_capacity && status.is_server_error());
        let is_temporary =
            is_capacity || (is_failure && (is_event || status == StatusCode::BAD_GATEWAY));
        Self {
            is_capacity,
            wait: is_capacity.then(|| back_off::requested(field)).flatten(),
            is_hopeless: response.lacks_object
                || response.rejection().is_some()
                || response.error == Some(ErrorClass::Unsupported),
            may_pass: is_temporary && field(SHOULD_RETRY) != Some(b"false"),
            recorded: match response.rejection() {
                Some(by) => RecordedFailure::Rejection(by),
                None if response.lacks_object => RecordedFailure::LacksObject,
                None if is_failure => RecordedFailure::Failure,
                None => RecordedFailure::None,
            },
        }
    }

    /// The attempt cost the upstream no work: it rejected the gateway's credential
    /// or configuration, or does not store an object that the request refers to.
    pub(super) fn is_free(&self) -> bool {
        matches!(
            self.recorded,
            RecordedFailure::Rejection(_) | RecordedFailure::LacksObject
        )
    }

    /// Records the outcome of an attempt at this endpoint for the choices of other
    /// requests. A success is only recorded when the response is complete.
    pub(super) fn record(self, live: &BackendState, endpoint: EndpointIndex) {
        match self.recorded {
            RecordedFailure::None | RecordedFailure::LacksObject => {}
            RecordedFailure::Failure => live.record_failure(clock::timestamp()),
            RecordedFailure::Rejection(by) => {
                live.record_rejection(by, clock::timestamp(), endpoint);
            }
        }
        if let Some(wait) = self.wait {
            live.back_off(clock::timestamp(), wait);
        }
    }
}
