use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use fastllm_contract::{BackendId, ModelName};
use fastllm_engine::{Backend, Chain, InFlight, Pool, Refusal};
use fastllm_wire::{First, HeadTail, Members, Splice, StreamTail};
use http::header::{self, HeaderMap};
use http::{Method, Request, Response, StatusCode, Uri};
use tokio::time::sleep;

use super::flow::{End, Flow, Meter};
use super::headers::{is_event_stream, is_identity, request_headers, response_headers};
use super::pool::Upstreams;
use super::request_body::RequestBody;
use super::{AttemptError, Relay, back_off};
use crate::record::Record;

/// Sends a request to the backends of a chain until one answers.
#[derive(Debug)]
pub(crate) struct Forwarder {
    pub(crate) upstreams: Upstreams,
    pub(crate) timeout: Duration,
    pub(crate) max_retries: u32,
}

/// What is sent, whichever backend gets it.
#[derive(Debug)]
pub(crate) struct Outgoing<'a> {
    pub(crate) sub_path: &'static str,
    pub(crate) headers: &'a HeaderMap,
    pub(crate) body: Bytes,
    pub(crate) members: &'a Members,
    /// Ask for usage where the client did not, and keep it from the client.
    pub(crate) ask_usage: bool,
}

/// An answer that goes to the client unless a better one comes.
#[derive(Debug)]
pub(crate) struct Arrived {
    status: StatusCode,
    headers: HeaderMap,
    flow: Flow,
    in_flight: InFlight,
    model: ModelName,
    backend: BackendId,
    api_base: Arc<str>,
}

/// What a chain has brought so far.
#[derive(Debug, Default)]
struct Spoils {
    best: Option<Arrived>,
    last: Option<AttemptError>,
}

impl Outgoing<'_> {
    fn body_for(&self, backend: &Backend) -> RequestBody {
        let splice = Splice::new(self.members).model(backend.upstream_model());
        let splice = if self.ask_usage {
            splice.include_usage()
        } else {
            splice
        };
        RequestBody::new(&self.body, &splice)
    }

    fn request(
        &self,
        backend: &Backend,
        body: RequestBody,
        record: &Record,
    ) -> Result<Request<RequestBody>, AttemptError> {
        let path = backend
            .path(self.sub_path)
            .ok_or_else(|| AttemptError::Request("the path is not valid".to_owned()))?;
        let mut request = Request::new(body);
        *request.method_mut() = Method::POST;
        *request.uri_mut() = Uri::from(path);
        let mut headers = request_headers(self.headers, record.id());
        headers.insert(header::HOST, backend.host().clone());
        if let Some((name, value)) = backend.auth() {
            headers.insert(name.clone(), value.clone());
        }
        *request.headers_mut() = headers;
        Ok(request)
    }

    fn meter(&self, status: StatusCode, headers: &HeaderMap) -> Meter {
        if !status.is_success() || !is_identity(headers) {
            Meter::Blind
        } else if is_event_stream(headers) {
            Meter::Events(Box::new(StreamTail::new(self.ask_usage)))
        } else {
            Meter::Whole(HeadTail::new())
        }
    }
}

impl Forwarder {
    /// The first answer that is not worth a retry; else the most useful one
    /// that came; else a refusal. Nothing of it has left for the client.
    pub(crate) async fn send(
        &self,
        chain: &Chain,
        outgoing: &Outgoing<'_>,
        record: &mut Record,
    ) -> Result<Arrived, Refusal> {
        let mut spoils = Spoils::default();
        for pool in chain.pools() {
            if let Some(arrived) = self.try_pool(pool, outgoing, record, &mut spoils).await {
                return Ok(arrived);
            }
        }
        let Spoils { best, last } = spoils;
        match (best, last) {
            (Some(best), _) => {
                record.answered_by(&best.model, best.backend, &best.api_base);
                Ok(best)
            }
            (None, Some(AttemptError::Timeout)) => Err(Refusal::UpstreamTimeout),
            (None, Some(AttemptError::Request(_))) => Err(Refusal::Internal),
            (None, _) => Err(Refusal::UpstreamUnavailable),
        }
    }

    async fn try_pool(
        &self,
        pool: &Pool,
        outgoing: &Outgoing<'_>,
        record: &mut Record,
        spoils: &mut Spoils,
    ) -> Option<Arrived> {
        let mut tried = Vec::new();
        let mut status = None;
        for retry in 0..=self.max_retries {
            if retry > 0 && tried.len() < pool.backends().len() {
                record.metrics().retried();
                sleep(back_off::before_retry(retry - 1, status)).await;
            }
            let index = pool.choose(&tried)?;
            let backend = pool.backends().get(index)?;
            record.asked(pool.model(), backend);
            match self.attempt(pool, backend, outgoing, record).await {
                Ok(arrived) => {
                    status = Some(arrived.status);
                    if arrived.is_failure() {
                        backend.live().failed();
                    }
                    if !arrived.is_worth_a_retry() {
                        return Some(arrived);
                    }
                    spoils.keep(arrived);
                }
                Err(error) => {
                    status = None;
                    backend.live().failed();
                    tracing::warn!(
                        request_id = record.id().to_str().unwrap_or_default(),
                        backend = backend.id().0,
                        %error,
                        "an attempt failed"
                    );
                    spoils.last = Some(error);
                }
            }
            tried.push(index);
        }
        None
    }

    async fn attempt(
        &self,
        pool: &Pool,
        backend: &Backend,
        outgoing: &Outgoing<'_>,
        record: &Record,
    ) -> Result<Arrived, AttemptError> {
        let in_flight = backend.live().begin();
        let body = outgoing.body_for(backend);
        let build = || outgoing.request(backend, body.clone(), record);
        let answer = self
            .upstreams
            .exchange(backend.origin(), build, self.timeout)
            .await?;
        let meter = outgoing.meter(answer.status, &answer.headers);
        let mut flow = Flow::new(answer.body, meter);
        if flow.is_events() {
            flow.hold().await;
            if let (First::Pending, Some(End::BrokenOff(reason))) = (flow.first(), flow.end()) {
                return Err(AttemptError::Broken(reason.clone()));
            }
        }
        Ok(Arrived {
            status: answer.status,
            headers: answer.headers,
            flow,
            in_flight,
            model: pool.model().clone(),
            backend: backend.id(),
            api_base: Arc::clone(backend.api_base()),
        })
    }
}

impl Spoils {
    /// Keeps the answer that tells the client most; of equal ones the last.
    fn keep(&mut self, arrived: Arrived) {
        let before = self.best.as_ref().map(Arrived::usefulness);
        if before.is_none_or(|before| arrived.usefulness() >= before) {
            self.best = Some(arrived);
        }
    }
}

impl Arrived {
    /// The status that counts: that of an error under a good status, if it
    /// names one.
    fn real_status(&self) -> StatusCode {
        match self.flow.first() {
            First::Error { status } => status
                .and_then(|status| StatusCode::from_u16(status).ok())
                .unwrap_or(StatusCode::BAD_GATEWAY),
            First::Answer | First::Pending => self.status,
        }
    }

    fn is_failure(&self) -> bool {
        self.real_status().is_server_error()
    }

    fn is_worth_a_retry(&self) -> bool {
        self.is_failure() || self.real_status() == StatusCode::TOO_MANY_REQUESTS
    }

    /// 429 says what to do, other errors only that something is wrong.
    fn usefulness(&self) -> u8 {
        u8::from(self.real_status() == StatusCode::TOO_MANY_REQUESTS)
    }

    /// The client's answer. The record goes with the body and ends with it.
    pub(crate) fn into_answer(self, record: Record) -> Response<Relay> {
        record.metrics().forwarded(self.status);
        let headers = response_headers(&self.headers, self.flow.is_events(), record.id());
        let relay = Relay::new(self.flow, self.status.as_u16(), record, self.in_flight);
        let mut answer = Response::new(relay);
        *answer.status_mut() = self.status;
        *answer.headers_mut() = headers;
        answer
    }
}
