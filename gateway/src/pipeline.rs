//! The path of a request: authentication, admission, cache lookup, forwarding;
//! and the one place where a refusal becomes a response.

mod admission;
mod authentication;
mod estimate;
mod metadata;
pub(crate) mod prompt;
mod response;

pub(crate) use response::ClientResponse;

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use fastllm_engine::{Chain, Refusal, granted_models, resolve};
use fastllm_wire::FormReader;
use http::Method;
use parking_lot::Mutex;

use crate::cache::{CachePolicy, CachedResponses, cached_response};
use crate::forward::{Forwarder, Outgoing, Payload, Upload};
use crate::http::{
    BodyLimits, BodyTimeouts, ClientQuery, Endpoint, ForwardedHeader, ForwardedParameter,
    ForwardedResponseHeader, Head, LocalResponse, RequestContext, local_response,
};
use crate::request_log::{AccountingSink, RequestLog};
use crate::runtime::Deadline;
use crate::snapshot::CurrentSnapshot;
use admission::{Admitted, ProxyRequest, Target};
use authentication::{Authenticated, authenticate};

/// What requests may do.
#[derive(Debug, Clone)]
pub(crate) struct Config {
    /// The largest request body.
    pub(crate) max_body_bytes: u64,
    pub(crate) body_timeouts: BodyTimeouts,
    /// The longest time from the head of a request to the end of its response.
    pub(crate) request_timeout: Option<Duration>,
    /// Models that are not granted are reported as not found.
    pub(crate) hide_ungranted: bool,
    /// What is forwarded in addition to the usual.
    pub(crate) forwarded: ForwardedNames,
}

/// What is forwarded in addition to the usual.
#[derive(Debug, Clone)]
pub(crate) struct ForwardedNames {
    /// Header fields of clients, to upstreams.
    pub(crate) headers: Arc<[ForwardedHeader]>,
    /// Query parameters of clients, to upstreams.
    pub(crate) query: Arc<[ForwardedParameter]>,
    /// Header fields of responses, to clients.
    pub(crate) response_headers: Arc<[ForwardedResponseHeader]>,
}

impl Config {
    /// The bounds on request bodies, which all threads share.
    pub(crate) fn body_limits(&self) -> Arc<BodyLimits> {
        Arc::new(BodyLimits::new(self.max_body_bytes, self.body_timeouts))
    }
}

/// Handles the requests of one thread.
#[derive(Debug)]
pub(crate) struct Pipeline {
    pub(crate) config: Config,
    pub(crate) current: Arc<CurrentSnapshot>,
    pub(crate) sink: Arc<AccountingSink>,
    pub(crate) forwarder: Forwarder,
    pub(crate) bodies: Arc<BodyLimits>,
    pub(crate) cached: Arc<CachedResponses>,
}

/// A request of a known caller to one of the endpoints.
struct Entered<'a> {
    authenticated: Authenticated,
    endpoint: Endpoint<'a>,
    query: ClientQuery<'a>,
}

/// A request that can be sent.
struct ReadyRequest<'r, 'a, 'c> {
    log: Box<RequestLog>,
    chain: &'r Chain,
    outgoing: &'r Outgoing<'a, 'c>,
    cache_policy: Option<Box<CachePolicy>>,
}

impl Pipeline {
    /// Responds to one request; `None` if the client has disconnected.
    pub(crate) async fn handle(
        &self,
        head: &Head,
        mut context: RequestContext<'_>,
    ) -> Option<ClientResponse> {
        let mut log = RequestLog::begin(&self.sink, head);
        context.deadline.begin_request(self.config.request_timeout);
        let Entered {
            authenticated,
            endpoint,
            query,
        } = match self.enter(head, &mut log) {
            Ok(entered) => entered,
            Err(refusal) => return Some(self.refuse(log, &refusal)),
        };
        match endpoint {
            Endpoint::Models => Some(local(models(log, &authenticated))),
            Endpoint::Model(id) => Some(self.model(log, &authenticated, &id)),
            Endpoint::Proxied(endpoint) => {
                log.route.set_endpoint(endpoint);
                let request = ProxyRequest {
                    endpoint,
                    head,
                    query,
                };
                let admitted = self
                    .admit(&mut log, authenticated, request, &mut context)
                    .await;
                match admitted {
                    Ok(mut admitted) => match admitted.form.take() {
                        None => self.forward(log, &mut admitted, request, context).await,
                        // Large, and uploads are few.
                        Some(form) => {
                            Box::pin(self.upload(log, admitted, form, request, context)).await
                        }
                    },
                    Err(refusal) => Some(self.refuse(log, &refusal)),
                }
            }
        }
    }

    /// Authenticates the caller, finds the endpoint, and checks the query.
    fn enter<'a>(&self, head: &'a Head, log: &mut RequestLog) -> Result<Entered<'a>, Refusal> {
        let tables = self.current.tables().ok_or(Refusal::NotReady)?;
        let caller = authenticate(&tables, head, log)?;
        let endpoint = Method::from_bytes(head.method())
            .ok()
            .and_then(|method| Endpoint::find(&method, head.path()))
            .ok_or(Refusal::NoRoute)?;
        let query = ClientQuery::new(head.query(), &self.config.forwarded.query)
            .map_err(Refusal::InvalidQuery)?;
        Ok(Entered {
            authenticated: Authenticated { tables, caller },
            endpoint,
            query,
        })
    }

    /// Describes one model, if the caller may use it.
    fn model(
        &self,
        log: Box<RequestLog>,
        authenticated: &Authenticated,
        id: &str,
    ) -> ClientResponse {
        let Authenticated { tables, caller } = authenticated;
        if granted_models(tables, caller).contains(&id) {
            let listed = local_response::model(id, log.request_id());
            log.finish_local();
            return local(listed);
        }
        let refusal =
            resolve(tables, id).map_or_else(|refusal| refusal, |_| Refusal::ModelAccessDenied);
        self.refuse(log, &refusal)
    }

    /// Rejects the request. The client may receive a generic error; the request
    /// log records the actual reason.
    fn refuse(&self, log: Box<RequestLog>, refusal: &Refusal) -> ClientResponse {
        let shown = match refusal {
            Refusal::ModelAccessDenied if self.config.hide_ungranted => &Refusal::ModelNotFound,
            shown => shown,
        };
        let mut response = local_response::refusal(shown, log.request_id());
        if shown.is_permanent() || log.route.was_retried() {
            local_response::forbid_retries(&mut response);
        }
        log.finish_rejected(refusal, shown.status());
        local(response)
    }

    /// Responds from the cache, or sends a complete body upstream for as long as
    /// the client is connected.
    async fn forward(
        &self,
        mut log: Box<RequestLog>,
        admitted: &mut Admitted,
        request: ProxyRequest<'_>,
        context: RequestContext<'_>,
    ) -> Option<ClientResponse> {
        let mut cache_policy = admitted.cache_policy.take();
        let RequestContext { client, deadline } = context;
        let payload = Payload::Whole(admitted.body.bytes());
        let outgoing = self.outgoing(request, &admitted.target, payload);
        let chain = &admitted.target.chain;
        if let Some(policy) = &mut cache_policy
            && let Some(cacheable) = outgoing.cacheable()
            && let Some(hit) = policy.look_up(chain, &cacheable, &mut log)
        {
            return Some(local(cached_response(&hit, log)));
        }
        let ready = ReadyRequest {
            log,
            chain,
            outgoing: &outgoing,
            cache_policy,
        };
        self.send(ready, deadline, |cx| client.poll_disconnected(cx))
            .await
    }

    /// Sends a form upstream while it arrives.
    async fn upload(
        &self,
        log: Box<RequestLog>,
        admitted: Admitted,
        form: FormReader,
        request: ProxyRequest<'_>,
        context: RequestContext<'_>,
    ) -> Option<ClientResponse> {
        let Admitted { target, body, .. } = admitted;
        let RequestContext { client, deadline } = context;
        let upload = Mutex::new(Upload::new(client, body, form, Arc::clone(&self.bodies)));
        let outgoing = self.outgoing(request, &target, Payload::Upload(&upload));
        let ready = ReadyRequest {
            log,
            chain: &target.chain,
            outgoing: &outgoing,
            cache_policy: None,
        };
        let disconnected = |cx: &mut Context<'_>| upload.lock().poll_disconnected(cx);
        self.send(ready, deadline, disconnected).await
    }

    fn outgoing<'a, 'c>(
        &'a self,
        request: ProxyRequest<'a>,
        target: &'a Target,
        payload: Payload<'a, 'c>,
    ) -> Outgoing<'a, 'c> {
        Outgoing {
            endpoint: request.endpoint,
            client: request.client(&self.config.forwarded.headers),
            query: request.query,
            payload,
            members: &target.members,
            prompt: &target.prompt,
            stored: &target.stored,
            ask_usage: target.ask_usage,
            response_headers: &self.config.forwarded.response_headers,
        }
    }

    async fn send(
        &self,
        ready: ReadyRequest<'_, '_, '_>,
        deadline: &mut Deadline,
        mut disconnected: impl FnMut(&mut Context<'_>) -> Poll<()>,
    ) -> Option<ClientResponse> {
        let ReadyRequest {
            mut log,
            chain,
            outgoing,
            cache_policy,
        } = ready;
        let outcome = {
            let sent = self.forwarder.send(chain, outgoing, &mut log, deadline);
            let mut sent = pin!(sent);
            poll_fn(|cx| match sent.as_mut().poll(cx) {
                Poll::Ready(outcome) => Poll::Ready(Some(outcome)),
                Poll::Pending => disconnected(cx).map(|()| None),
            })
            .await
        };
        log.usage.add_quantities(outgoing.sent());
        log.usage.set_prompt_estimate(outgoing.prompt_tokens());
        Some(match outcome? {
            Ok(response) => {
                let pending_entry = cache_policy
                    .zip(outgoing.cacheable())
                    .zip(response.cacheable())
                    .and_then(|((policy, request), response)| {
                        policy.begin_entry(chain, &request, &response)
                    });
                ClientResponse::Forwarded(Box::new(response.into_forwarded(log, pending_entry)))
            }
            Err(refusal) => self.refuse(log, &refusal),
        })
    }
}

fn models(log: Box<RequestLog>, authenticated: &Authenticated) -> LocalResponse {
    let models = granted_models(&authenticated.tables, &authenticated.caller);
    let list = local_response::model_list(models.into_iter(), log.request_id());
    log.finish_local();
    list
}

fn local(response: LocalResponse) -> ClientResponse {
    ClientResponse::Local(Box::new(response))
}
