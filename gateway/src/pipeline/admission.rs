//! Decides whether and where a request is forwarded. Requests are rejected for
//! models that do not exist or are not granted, and for rate limits and budgets.

use std::sync::Arc;

use fastllm_engine::{
    Boundary, Caller, Chain, Cost, Refusal, Resolved, RouteQuery, object_hash, reserve, resolve,
};
use fastllm_wire::{FormReader, Members, ScanError, scan};

use super::authentication::{Authenticated, authenticate};
use super::estimate::{RequestBody, estimated_quantities};
use super::prompt::Prompt;
use super::{Pipeline, metadata};
use crate::cache::{CachePolicy, CacheableRequest};
use crate::http::{
    BodyKind, ClientFields, ClientQuery, ForwardedHeader, Head, ProxiedEndpoint, ReceivedBody,
    RequestContext, invalid_body,
};
use crate::request_log::RequestLog;

/// A request to be forwarded, before its body has arrived.
#[derive(Debug, Clone, Copy)]
pub(super) struct ProxyRequest<'a> {
    pub(super) endpoint: ProxiedEndpoint,
    pub(super) head: &'a Head,
    pub(super) query: ClientQuery<'a>,
}

impl<'a> ProxyRequest<'a> {
    /// The client's header fields, of which upstreams see the usual ones and
    /// those in `forwarded`.
    pub(super) fn client(self, forwarded: &'a [ForwardedHeader]) -> ClientFields<'a> {
        ClientFields {
            fields: self.head.fields(),
            forwarded,
        }
    }

    /// Reads the form that the content type announces.
    fn form(self) -> Result<FormReader, ScanError> {
        let mut types = self.head.fields().all("content-type");
        match (types.next(), types.next()) {
            (Some(content_type), None) => FormReader::new(content_type),
            _ => Err(ScanError::NotAForm),
        }
    }
}

/// The part of a body that admission needs.
struct ParsedBody {
    body: ReceivedBody,
    members: Members,
    /// Reads the rest of a form.
    form: Option<FormReader>,
}

/// A request that may be forwarded.
pub(super) struct Admitted {
    pub(super) target: Target,
    pub(super) body: ReceivedBody,
    /// Reads the rest of a form.
    pub(super) form: Option<FormReader>,
    pub(super) cache_policy: Option<Box<CachePolicy>>,
}

/// The route of an admitted request, and its properties.
pub(super) struct Target {
    pub(super) chain: Chain,
    pub(super) members: Members,
    /// The ends of the prompt's messages, where a policy reads them.
    pub(super) prompt: Vec<Boundary>,
    /// The stored objects that the request refers to, by the hashes of their IDs.
    pub(super) stored: Vec<u64>,
    /// Request usage from the upstream although the client does not.
    pub(super) ask_usage: bool,
}

impl Pipeline {
    /// Reads the body, routes the request, and reserves its part of limits and
    /// budgets.
    pub(super) async fn admit(
        &self,
        log: &mut RequestLog,
        authenticated: Authenticated,
        request: ProxyRequest<'_>,
        context: &mut RequestContext<'_>,
    ) -> Result<Admitted, Refusal> {
        let ParsedBody {
            body,
            members,
            form,
        } = self.read(request, context).await?;
        let bytes = body.bytes();
        log.usage.set_metadata(metadata::read(&members, &bytes)?);
        let Authenticated {
            tables: before,
            mut caller,
        } = authenticated;
        let tables = self.current.load();
        let tables = tables.as_ref().ok_or(Refusal::NotReady)?;
        // A body may take long to arrive: the caller, its permissions and the
        // model are checked against the same tables.
        if !Arc::ptr_eq(tables, &before) {
            caller = authenticate(tables, request.head, log)?;
        }
        let resolved = resolve(tables, members.model())?;
        log.set_model(resolved.name(), resolved.model(), members.is_stream());
        // The response of a fallback would reveal whether the model exists.
        if self.config.hide_ungranted && !resolved.is_granted_to(&caller) {
            return Err(Refusal::ModelAccessDenied);
        }
        let stored = hashes(members.stored_ids());
        let input = RoutingInput {
            request,
            members: &members,
            stored: &stored,
            body: &bytes,
        };
        log.usage.set_prompt_estimate(members.prompt_tokens());
        let (mut chain, prompt) = input.route(resolved, &caller, log)?;
        let claim = input.claim(log);
        let (reservation, rates) = reserve(&caller, &mut chain, &claim, tables.accounts())?;
        log.set_reservation(reservation, rates);
        let known = caller.identified().is_some();
        let ask_usage = known && members.can_request_usage();
        let cacheable = CacheableRequest {
            endpoint: request.endpoint,
            client: request.client(&self.config.forwarded.headers),
            query: request.query,
            members: &members,
            body: &bytes,
        };
        let cache_policy = self
            .cached
            .policy(&caller, &chain, request.head, &cacheable);
        Ok(Admitted {
            target: Target {
                chain,
                members,
                prompt,
                stored,
                ask_usage,
            },
            body,
            form,
            cache_policy,
        })
    }

    /// Reads the body: JSON to its end, a form until its model is known.
    async fn read(
        &self,
        request: ProxyRequest<'_>,
        context: &mut RequestContext<'_>,
    ) -> Result<ParsedBody, Refusal> {
        let fields = match request.endpoint.body() {
            BodyKind::Json(fields) => fields,
            BodyKind::Form => return Box::pin(self.read_form(request, context)).await,
        };
        let body = self.bodies.read(context).await?;
        let members = scan(&body.bytes(), fields).map_err(invalid_body)?;
        Ok(ParsedBody {
            body,
            members,
            form: None,
        })
    }

    async fn read_form(
        &self,
        request: ProxyRequest<'_>,
        context: &mut RequestContext<'_>,
    ) -> Result<ParsedBody, Refusal> {
        let mut form = request.form().map_err(invalid_body)?;
        let enough = |read: &[u8]| {
            form.push(read).map_err(invalid_body)?;
            Ok(form.members().is_some())
        };
        let body = self.bodies.read_until(context, enough).await?;
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
}

/// The hashes of the IDs of stored objects.
fn hashes(ids: &[String]) -> Vec<u64> {
    ids.iter().map(|id| object_hash(id)).collect()
}

/// The properties by which a request is routed.
struct RoutingInput<'a> {
    request: ProxyRequest<'a>,
    members: &'a Members,
    /// The stored objects that it refers to.
    stored: &'a [u64],
    body: &'a [u8],
}

impl RoutingInput<'_> {
    /// The candidates, and the boundaries of the prompt. The prompt is read
    /// only if a rule or a policy depends on it.
    fn route(
        &self,
        resolved: Resolved<'_>,
        caller: &Caller,
        log: &RequestLog,
    ) -> Result<(Chain, Vec<Boundary>), Refusal> {
        let at = log.arrived_at();
        let read = resolved.reads_prompt().then(|| Prompt::read(self.body));
        let ask = RouteQuery {
            stream: self.members.is_stream(),
            endpoint: self.request.endpoint.index(),
            prompt_tokens: self.members.prompt_tokens(),
            max_tokens: self.members.ceiling(),
            headers: self.request.head,
            at,
            prompt_hash: read.as_ref().map_or(0, Prompt::beginning),
            budget_used_percent: read.as_ref().and_then(|_| caller.budget_used_percent(at)),
        };
        let mut chain = resolved.route(caller, &ask, None)?;
        chain.prefer_owner(self.stored);
        let prompt = if chain.reads_prompt() {
            read.unwrap_or_else(|| Prompt::read(self.body))
                .into_boundaries()
        } else {
            Vec::new()
        };
        Ok((chain, prompt))
    }

    /// The amounts to reserve.
    fn claim(&self, log: &RequestLog) -> Cost {
        let body = RequestBody {
            members: self.members,
            bytes: self.body,
        };
        let ProxyRequest {
            endpoint,
            head,
            query: _,
        } = self.request;
        Cost {
            at: log.arrived_at(),
            prompt_tokens: self.members.prompt_tokens(),
            max_tokens: self.members.ceiling(),
            has_completion: endpoint.has_completion(),
            choices: self.members.choices(),
            quantities: estimated_quantities(endpoint, head, body),
        }
    }
}
