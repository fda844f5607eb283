use std::sync::Arc;
use std::time::Instant;

use fastllm_contract::{BackendId, ModelName};
use fastllm_engine::{Backend, BackendState, EndpointIndex, InFlight, Pool, UpstreamRejection};
use fastllm_wire::{ErrorClass, FirstEvent, streamed_response_id};
use http::StatusCode;

use super::ForwardedResponse;
use super::forwarded_response::Unfinished;
use super::outgoing::Outgoing;
use super::response_stream::{ResponseStream, StreamEnd};
use super::slot::Slot;
use super::stored_objects::ObjectOwner;
use crate::cache::{CacheableResponse, PendingEntry};
use crate::http::ForwardedFields;
use crate::request_log::RequestLog;
use crate::runtime::clock;

/// A response that goes to the client unless a better one arrives.
#[derive(Debug)]
pub(crate) struct UpstreamResponse {
    pub(super) status: StatusCode,
    /// The class of the error, also of one in the first event of a stream or in the
    /// complete body of a response with a success status.
    pub(super) error: Option<ErrorClass>,
    /// The backend does not store an object that the request refers to.
    pub(super) lacks_object: bool,
    pub(super) stream: ResponseStream,
    /// The fields of the head that the client sees.
    pub(super) fields: ForwardedFields,
    pub(super) attempt: Attempt,
    pub(super) model: ModelName,
    pub(super) backend: BackendId,
    pub(super) api_base: Arc<str>,
}

/// A response that has begun, and the fields of its head that the client sees.
#[derive(Debug)]
pub(super) struct ReceivedResponse {
    pub(super) stream: ResponseStream,
    pub(super) fields: ForwardedFields,
}

/// A request in progress at a backend.
#[derive(Debug)]
pub(super) struct Attempt {
    live: Arc<BackendState>,
    /// Released once a better response is looked for.
    pub(super) slot: Option<InFlight>,
    pub(super) began: Instant,
    endpoint: EndpointIndex,
    /// Where the endpoint stores objects.
    owner: Option<ObjectOwner>,
    stream: bool,
    /// The number of choices that the client requested.
    choices: u64,
}

impl Attempt {
    /// An attempt at the backend with this slot; nothing if the pool has none such.
    pub(super) fn new(pool: &Arc<Pool>, slot: Slot, outgoing: &Outgoing<'_, '_>) -> Option<Self> {
        let (index, in_flight) = slot;
        Some(Self {
            live: Arc::clone(pool.backends().get(index)?.state()),
            owner: ObjectOwner::new(pool, index, outgoing),
            slot: Some(in_flight),
            began: clock::now(),
            endpoint: outgoing.endpoint.index(),
            stream: outgoing.members.is_stream(),
            choices: outgoing.members.choices(),
        })
    }

    /// The response was successful, and this is its ID.
    pub(super) fn record_object(&self, id: impl FnOnce() -> Option<String>) {
        if let Some(owner) = &self.owner
            && let Some(id) = id()
        {
            owner.record(&id);
        }
    }

    /// The response began successfully, and the backend aborted it or ended it with
    /// an error of its own.
    pub(super) fn failed(&self) {
        self.live.record_failure(clock::timestamp());
    }

    /// The response was successful and is complete, with this many tokens where
    /// they are known. Zero tokens are ignored: the response was no text, or was
    /// not inspected.
    pub(super) fn succeeded(&self, tokens: Option<u64>) {
        self.live.record_success(clock::timestamp(), self.endpoint);
        let took = clock::now().saturating_duration_since(self.began);
        self.live.record_latency(self.stream, took);
        if let Some(tokens) = tokens.filter(|tokens| *tokens > 0) {
            self.live
                .record_completion_tokens(tokens.div_ceil(self.choices));
        }
    }
}

/// Whether a response with this status is no success.
pub(super) fn is_error(status: StatusCode) -> bool {
    status.as_u16() >= 300
}

impl UpstreamResponse {
    /// A response, whose error is classified.
    pub(super) fn new(
        backend: &Backend,
        model: &ModelName,
        status: StatusCode,
        received: ReceivedResponse,
        attempt: Attempt,
    ) -> Self {
        let ReceivedResponse { stream, fields } = received;
        let error = match stream.first() {
            FirstEvent::Error(class) => Some(class),
            FirstEvent::Response | FirstEvent::Pending if is_error(status) => {
                let text = stream.held_text();
                Some(ErrorClass::of_response(status.as_u16(), text))
            }
            FirstEvent::Response | FirstEvent::Pending => {
                let is_complete = stream.end() == Some(&StreamEnd::Complete);
                let text = stream.held_text();
                is_complete
                    .then(|| ErrorClass::of_successful_body(text))
                    .flatten()
            }
        };
        Self {
            status,
            error,
            lacks_object: false,
            stream,
            fields,
            attempt,
            model: model.clone(),
            backend: backend.id(),
            api_base: Arc::clone(backend.api_base()),
        }
    }

    /// What the backend rejects of the gateway. The client must not receive such a
    /// response: it is about a credential and a configuration that it does not have.
    pub(super) fn rejection(&self) -> Option<UpstreamRejection> {
        match self.error? {
            ErrorClass::Credential => Some(UpstreamRejection::Credential),
            ErrorClass::Configuration => Some(UpstreamRejection::Configuration),
            ErrorClass::Client
            | ErrorClass::Unsupported
            | ErrorClass::Capacity
            | ErrorClass::Backend => None,
        }
    }

    /// With `lacks_object`, the backend does not store an object that the request
    /// refers to: neither it nor the gateway's configuration is at fault.
    pub(super) fn with_lacking(mut self, lacks_object: bool) -> Self {
        if lacks_object {
            self.lacks_object = true;
            self.error = Some(ErrorClass::Client);
        }
        self
    }

    /// Whether another backend may have a better response.
    pub(super) fn is_worth_a_retry(&self) -> bool {
        self.error.is_some_and(|class| class != ErrorClass::Client)
    }

    /// A rate limit ends, other errors may not.
    pub(super) fn usefulness(&self) -> u8 {
        let is_limited = self.status == StatusCode::TOO_MANY_REQUESTS || self.status.is_success();
        u8::from(is_limited && self.error == Some(ErrorClass::Capacity))
    }

    /// What may be cached of the response; nothing for errors, streams, and
    /// responses that end with the connection.
    pub(crate) fn cacheable(&self) -> Option<CacheableResponse<'_>> {
        let head = self.stream.in_one_piece()?;
        let good = self.status == StatusCode::OK && self.error.is_none();
        good.then(|| CacheableResponse {
            model: &self.model,
            fields: head.fields(),
            forwarded: self.fields,
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
        if self.status.is_success() && self.error.is_none() {
            if let Some(owner) = &self.attempt.owner {
                owner.record_referred();
            }
            let events = self.stream.is_stream().then(|| self.stream.held_text());
            self.attempt
                .record_object(|| events.and_then(streamed_response_id));
        }
        let status = self.status.as_u16();
        let unfinished = Unfinished {
            log,
            attempt: self.attempt,
            pending_entry,
        };
        ForwardedResponse::new(self.stream, status, self.fields, self.error, unfinished)
    }
}
