//! The path of a request: each room in its order, and one place that turns a
//! refusal into an answer.

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

use fastllm_contract::Timestamp;
use fastllm_engine::{
    Boundary, Caller, Chain, Cost, Refusal, Resolved, RouteQuery, RoutingState, granted_models,
    identify, reserve, resolve,
};
use fastllm_wire::{FormReader, Members, ScanError, scan};
use http::Method;
use parking_lot::Mutex;

use crate::cache::{CachePolicy, CachedResponses, cached_response};
use crate::forward::{Forwarder, Outgoing, Payload, Upload};
use crate::http::ForwardedHeader;
use crate::http::{
    BodyKind, BodyLimits, BodySource, Endpoint, Head, ProxiedEndpoint, ReceivedBody, invalid_body,
};
use crate::http::{LocalResponse, local_response};
use crate::request_log::{AccountingSink, RequestLog};
use crate::runtime::Deadline;
use crate::snapshot::CurrentSnapshot;
use estimate::{beside, prompt_tokens};
use prompt::Prompt;

/// The rooms of the request path.
#[derive(Debug)]
pub(crate) struct Pipeline {
    pub(crate) current: Arc<CurrentSnapshot>,
    pub(crate) sink: Arc<AccountingSink>,
    pub(crate) forwarder: Forwarder,
    pub(crate) bodies: Arc<BodyLimits>,
    /// How long a request may take, from its head to the end of its answer.
    pub(crate) request_timeout: Option<Duration>,
    /// A model that is not granted is as good as none.
    pub(crate) hide_ungranted: bool,
    /// The answers that are given again.
    pub(crate) cached: Arc<CachedResponses>,
    /// Further headers of clients that upstreams see.
    pub(crate) forwarded: Arc<[ForwardedHeader]>,
}

/// Who asks for what, and by which tables that was decided.
struct Authenticated {
    tables: Arc<RoutingState>,
    caller: Caller,
}

/// What is to be sent on, before its body is there.
#[derive(Debug, Clone, Copy)]
struct ProxyRequest<'a> {
    proxied: ProxiedEndpoint,
    head: &'a Head,
}

impl ProxyRequest<'_> {
    /// The form that the body will be.
    fn form(&self) -> Result<FormReader, ScanError> {
        let mut types = self.head.fields().all("content-type");
        match (types.next(), types.next()) {
            (Some(content_type), None) => FormReader::new(content_type),
            _ => Err(ScanError::NotAForm),
        }
    }
}

/// A body as far as it is needed to know what is asked for.
struct ParsedBody {
    body: ReceivedBody,
    members: Members,
    /// What sees the rest of a form.
    form: Option<FormReader>,
}

/// A request that was let in: what is needed to forward it.
struct Admitted {
    chain: Chain,
    prompt: Vec<Boundary>,
    read: ParsedBody,
    ask_usage: bool,
    /// Where its answer may have been given before, or may be given again.
    cache_policy: Option<Box<CachePolicy>>,
}

impl Pipeline {
    /// Answers one request, whatever it is; nothing where the client has left.
    pub(crate) async fn handle(
        &self,
        head: &Head,
        client: &mut dyn BodySource,
        deadline: &mut Deadline,
    ) -> Option<ClientResponse> {
        let mut record = RequestLog::begin(&self.sink, head);
        deadline.begin_request(self.request_timeout);
        let (authenticated, endpoint) = match self.enter(head, &mut record) {
            Ok(authenticated) => authenticated,
            Err(refusal) => return Some(self.refuse(record, &refusal)),
        };
        match endpoint {
            Endpoint::Models => Some(own(models(record, &authenticated))),
            Endpoint::Model(id) => Some(self.model(record, &authenticated, &id)),
            Endpoint::ProxiedEndpoint(proxied) => {
                record.endpoint(proxied);
                let asked = ProxyRequest { proxied, head };
                let admitted = self.admit(&mut record, authenticated, asked, (client, deadline));
                match admitted.await {
                    Ok(mut admitted) => match admitted.read.form.take() {
                        None => {
                            self.forward(record, &mut admitted, asked, (client, deadline))
                                .await
                        }
                        // Large, and uploads are few.
                        Some(form) => {
                            let admitted = (admitted, form);
                            Box::pin(self.upload(record, admitted, asked, (client, deadline))).await
                        }
                    },
                    Err(refusal) => Some(self.refuse(record, &refusal)),
                }
            }
        }
    }

    /// The one model that is asked about, if the caller may use it.
    fn model(
        &self,
        record: Box<RequestLog>,
        authenticated: &Authenticated,
        id: &str,
    ) -> ClientResponse {
        let Authenticated { tables, caller } = authenticated;
        if granted_models(tables, caller).contains(&id) {
            let listed = local_response::model(id, record.id());
            record.served();
            return own(listed);
        }
        let refusal =
            resolve(tables, id).map_or_else(|refusal| refusal, |_| Refusal::ModelAccessDenied);
        self.refuse(record, &refusal)
    }

    /// Says no. The account has the real reason, which the client may not be
    /// meant to know.
    fn refuse(&self, record: Box<RequestLog>, refusal: &Refusal) -> ClientResponse {
        let shown = match refusal {
            Refusal::ModelAccessDenied if self.hide_ungranted => &Refusal::ModelNotFound,
            shown => shown,
        };
        let response = local_response::refusal(shown, record.id());
        record.refused(refusal, shown.status());
        own(response)
    }

    /// Who is it, and do they ask for something that exists?
    fn enter<'a>(
        &self,
        head: &'a Head,
        record: &mut RequestLog,
    ) -> Result<(Authenticated, Endpoint<'a>), Refusal> {
        let tables = self.current.tables().ok_or(Refusal::NotReady)?;
        let caller = caller_of(&tables, head, record)?;
        let endpoint = Method::from_bytes(head.method())
            .ok()
            .and_then(|method| Endpoint::find(&method, head.path()))
            .ok_or(Refusal::NoRoute)?;
        Ok((Authenticated { tables, caller }, endpoint))
    }

    /// Gives the answer that was kept, or sends a body that is there upstream for
    /// as long as the client is.
    async fn forward(
        &self,
        mut record: Box<RequestLog>,
        admitted: &mut Admitted,
        asked: ProxyRequest<'_>,
        (client, deadline): (&mut dyn BodySource, &mut Deadline),
    ) -> Option<ClientResponse> {
        let mut cache_policy = admitted.cache_policy.take();
        let Admitted {
            chain,
            prompt,
            read,
            ask_usage,
            ..
        } = &*admitted;
        let known = (&read.members, prompt.as_slice(), *ask_usage);
        let outgoing = self.outgoing(asked, known, Payload::Whole(read.body.bytes()));
        if let Some(cache_policy) = &mut cache_policy
            && let Some(hit) = cache_policy.look_up(chain, &outgoing, &mut record)
        {
            return Some(own(cached_response(&hit, record)));
        }
        let request = (record, chain, cache_policy, deadline);
        self.send(request, &outgoing, |cx| client.poll_disconnected(cx))
            .await
    }

    /// Sends a form upstream while it still comes.
    async fn upload(
        &self,
        record: Box<RequestLog>,
        (admitted, form): (Admitted, FormReader),
        asked: ProxyRequest<'_>,
        (client, deadline): (&mut dyn BodySource, &mut Deadline),
    ) -> Option<ClientResponse> {
        let Admitted {
            chain,
            prompt,
            read: ParsedBody { body, members, .. },
            ask_usage,
            cache_policy: _,
        } = admitted;
        let upload = Upload::new(client, body, form, Arc::clone(&self.bodies));
        let upload = Mutex::new(upload);
        let known = (&members, prompt.as_slice(), ask_usage);
        let outgoing = self.outgoing(asked, known, Payload::Upload(&upload));
        let gone = |cx: &mut Context<'_>| upload.lock().poll_disconnected(cx);
        let request = (record, &chain, None, deadline);
        self.send(request, &outgoing, gone).await
    }

    fn outgoing<'a, 'c>(
        &'a self,
        asked: ProxyRequest<'a>,
        (members, prompt, ask_usage): (&'a Members, &'a [Boundary], bool),
        payload: Payload<'a, 'c>,
    ) -> Outgoing<'a, 'c> {
        Outgoing {
            endpoint: asked.proxied,
            headers: asked.head.fields(),
            forwarded: &self.forwarded,
            payload,
            members,
            prompt,
            ask_usage,
        }
    }

    async fn send(
        &self,
        (mut record, chain, cache_policy, deadline): (
            Box<RequestLog>,
            &Chain,
            Option<Box<CachePolicy>>,
            &mut Deadline,
        ),
        outgoing: &Outgoing<'_, '_>,
        mut gone: impl FnMut(&mut Context<'_>) -> Poll<()>,
    ) -> Option<ClientResponse> {
        let outcome = {
            let sent = self.forwarder.send(chain, outgoing, &mut record, deadline);
            let mut sent = pin!(sent);
            poll_fn(|cx| match sent.as_mut().poll(cx) {
                Poll::Ready(outcome) => Poll::Ready(Some(outcome)),
                Poll::Pending => gone(cx).map(|()| None),
            })
            .await
        };
        record.measured(outgoing.sent());
        Some(match outcome? {
            Ok(response) => {
                let keeping = cache_policy
                    .and_then(|cache_policy| cache_policy.keep(chain, outgoing, &response));
                ClientResponse::Forwarded(Box::new(response.into_answer(record, keeping)))
            }
            Err(refusal) => self.refuse(record, &refusal),
        })
    }

    /// Reads the body of what is asked: JSON to its end, a form until it has
    /// named its model.
    async fn read(
        &self,
        asked: ProxyRequest<'_>,
        client: &mut dyn BodySource,
        deadline: &mut Deadline,
    ) -> Result<ParsedBody, Refusal> {
        let fields = match asked.proxied.body() {
            BodyKind::Json(fields) => fields,
            BodyKind::Form => return Box::pin(self.read_form(asked, client, deadline)).await,
        };
        let body = self.bodies.read(client, deadline).await?;
        let members = scan(&body.bytes(), fields).map_err(invalid_body)?;
        Ok(ParsedBody {
            body,
            members,
            form: None,
        })
    }

    async fn read_form(
        &self,
        asked: ProxyRequest<'_>,
        client: &mut dyn BodySource,
        deadline: &mut Deadline,
    ) -> Result<ParsedBody, Refusal> {
        let mut form = asked.form().map_err(invalid_body)?;
        let enough = |read: &[u8]| {
            form.push(read).map_err(invalid_body)?;
            Ok(form.members().is_some())
        };
        let body = self.bodies.read_until(client, deadline, enough).await?;
        let (members, form) = match form.members().cloned() {
            Some(members) if !body.is_whole() => (members, Some(form)),
            _ => (form.finish().map_err(invalid_body)?, None),
        };
        Ok(ParsedBody {
            body,
            members,
            form,
        })
    }

    async fn admit(
        &self,
        record: &mut RequestLog,
        authenticated: Authenticated,
        asked: ProxyRequest<'_>,
        (client, deadline): (&mut dyn BodySource, &mut Deadline),
    ) -> Result<Admitted, Refusal> {
        let read = self.read(asked, client, deadline).await?;
        let members = &read.members;
        record.metadata(metadata::read(members, &read.body.bytes())?);
        let Authenticated {
            tables: before,
            mut caller,
        } = authenticated;
        let tables = self.current.load();
        let tables = tables.as_ref().ok_or(Refusal::NotReady)?;
        // A body may take long to come: who asks and what they may do is
        // decided by the same tables as the model that they get.
        if !Arc::ptr_eq(tables, &before) {
            caller = caller_of(tables, asked.head, record)?;
        }
        let resolved = resolve(tables, members.model())?;
        record.requested(resolved.name(), resolved.model(), members.is_stream());
        // The answer of a fallback would tell it from a name that nobody has.
        if self.hide_ungranted && !resolved.is_granted_to(&caller) {
            return Err(Refusal::ModelAccessDenied);
        }
        let request = RoutingInput {
            members,
            head: asked.head,
            body: &read.body.bytes(),
            prompt_tokens: prompt_tokens(members, &read.body.bytes()),
        };
        record.prompt(request.prompt_tokens);
        let (mut chain, prompt) = request.route(resolved, &caller, record.at())?;
        let claim = Cost {
            at: record.at(),
            prompt_tokens: request.prompt_tokens,
            max_tokens: members.ceiling(),
            has_completion: asked.proxied.has_completion(),
            choices: members.answers(),
            quantities: beside((asked.proxied, asked.head), (members, request.body)),
        };
        let (reservation, rates) = reserve(&caller, &mut chain, &claim, tables.accounts())?;
        record.reserved(reservation, rates);
        let known = caller.identified().is_some();
        let ask_usage = known && members.may_ask_usage();
        let cache_policy = self.cached.cache_policy(
            (&caller, &chain),
            (asked.proxied, asked.head),
            (members, request.body),
        );
        Ok(Admitted {
            chain,
            prompt,
            read,
            ask_usage,
            cache_policy,
        })
    }
}

/// What a request is routed by.
struct RoutingInput<'a> {
    members: &'a Members,
    head: &'a Head,
    body: &'a [u8],
    /// By a rough count.
    prompt_tokens: u64,
}

impl RoutingInput<'_> {
    /// The candidates, and what they may know of the prompt. It is read only
    /// where it makes a difference.
    fn route(
        &self,
        resolved: Resolved<'_>,
        caller: &Caller,
        at: Timestamp,
    ) -> Result<(Chain, Vec<Boundary>), Refusal> {
        let read = resolved.reads_prompt().then(|| Prompt::read(self.body));
        let ask = RouteQuery {
            stream: self.members.is_stream(),
            prompt_tokens: self.prompt_tokens,
            max_tokens: self.members.ceiling(),
            headers: self.head,
            at,
            prompt_hash: read.as_ref().map_or(0, Prompt::beginning),
            budget_used_percent: read.as_ref().and_then(|_| caller.budget_used_percent(at)),
        };
        let chain = resolved.route(caller, &ask, None)?;
        let prompt = if chain.reads_prompt() {
            read.unwrap_or_else(|| Prompt::read(self.body))
                .into_boundaries()
        } else {
            Vec::new()
        };
        Ok((chain, prompt))
    }
}

/// Who presents a key, by these tables and the time of the request's arrival.
fn caller_of(
    tables: &RoutingState,
    head: &Head,
    record: &mut RequestLog,
) -> Result<Caller, Refusal> {
    let caller = identify(tables, presented_key(head), record.at())?;
    if let Some(identified) = caller.identified() {
        record.identified(identified);
    }
    Ok(caller)
}

fn models(record: Box<RequestLog>, authenticated: &Authenticated) -> LocalResponse {
    let models = granted_models(&authenticated.tables, &authenticated.caller);
    let list = local_response::model_list(models.into_iter(), record.id());
    record.served();
    list
}

fn own(own: LocalResponse) -> ClientResponse {
    ClientResponse::Local(Box::new(own))
}

/// The key that a client presents: `authorization: Bearer` (the scheme in any
/// case) or `x-api-key`.
fn presented_key(head: &Head) -> Option<&[u8]> {
    const SCHEME: &[u8] = b"bearer ";
    if let Some(value) = head.field("authorization") {
        let (scheme, key) = value.split_at_checked(SCHEME.len())?;
        return scheme
            .eq_ignore_ascii_case(SCHEME)
            .then(|| key.trim_ascii());
    }
    head.field("x-api-key").map(<[u8]>::trim_ascii)
}

#[cfg(test)]
mod tests {
    use super::presented_key;
    use crate::http::Head;

    fn key(name: &str, value: &str) -> Option<Vec<u8>> {
        presented_key(&Head::with(&format!("{name}: {value}\r\n"))).map(<[u8]>::to_vec)
    }

    #[test]
    fn a_key_comes_as_bearer_in_any_case_or_as_x_api_key() {
        assert_eq!(key("authorization", "Bearer sk-1").unwrap(), b"sk-1");
        assert_eq!(key("authorization", "bEARER  sk-1 ").unwrap(), b"sk-1");
        assert_eq!(key("x-api-key", "sk-1").unwrap(), b"sk-1");
        assert_eq!(key("authorization", "Basic sk-1"), None);
        assert_eq!(key("authorization", "Bearer"), None);
        assert_eq!(key("authorization", "Bearersk-1"), None);
        assert_eq!(key("cookie", "sk-1"), None);
    }
}
