use std::sync::Arc;
use std::time::Instant;

use fastllm_contract::{BackendId, ModelName};
use fastllm_engine::{Backend, BackendState, InFlight};
use fastllm_wire::FirstEvent;
use http::StatusCode;

use super::ForwardedResponse;
use super::forwarded_response::Unfinished;
use super::outgoing::Outgoing;
use super::response_stream::ResponseStream;
use crate::cache::{CacheableResponse, PendingEntry};
use crate::request_log::RequestLog;
use crate::runtime::clock;

/// A response that goes to the client unless a better one arrives.
#[derive(Debug)]
pub(crate) struct UpstreamResponse {
    pub(super) status: StatusCode,
    pub(super) stream: ResponseStream,
    pub(super) attempt: Attempt,
    pub(super) model: ModelName,
    pub(super) backend: BackendId,
    pub(super) api_base: Arc<str>,
}

/// A request in progress at a backend.
#[derive(Debug)]
pub(super) struct Attempt {
    live: Arc<BackendState>,
    /// Released once a better response is looked for.
    pub(super) slot: Option<InFlight>,
    pub(super) began: Instant,
    stream: bool,
    /// The number of choices that the client requested.
    choices: u64,
}

impl Attempt {
    pub(super) fn new(backend: &Backend, slot: InFlight, outgoing: &Outgoing<'_, '_>) -> Self {
        Self {
            live: Arc::clone(backend.state()),
            slot: Some(slot),
            began: clock::now(),
            stream: outgoing.members.is_stream(),
            choices: outgoing.members.choices(),
        }
    }

    /// The response began successfully, and was aborted or ended with an error.
    pub(super) fn failed(&self) {
        self.live.record_failure(clock::timestamp());
    }

    /// The response was successful and is complete, with this many tokens where
    /// they are known. Zero tokens are ignored: the response was no text, or was
    /// not inspected.
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
    /// The effective status: that of an error event in a successful response, if
    /// the event has one.
    pub(super) fn real_status(&self) -> StatusCode {
        match self.stream.first() {
            FirstEvent::Error { status } => status
                .and_then(|status| StatusCode::from_u16(status).ok())
                .unwrap_or(StatusCode::BAD_GATEWAY),
            FirstEvent::Response | FirstEvent::Pending => self.status,
        }
    }

    pub(super) fn is_worth_a_retry(&self) -> bool {
        let status = self.real_status();
        status.is_server_error() || status == StatusCode::TOO_MANY_REQUESTS
    }

    /// A 429 states when to retry, other errors do not.
    pub(super) fn usefulness(&self) -> u8 {
        u8::from(self.real_status() == StatusCode::TOO_MANY_REQUESTS)
    }

    /// What may be cached of the response; nothing for errors, streams, and
    /// responses that end with the connection.
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
