//! The path of a request: each room in its order, and one place that turns a
//! refusal into an answer.

use std::sync::Arc;

use fastllm_contract::Timestamp;
use fastllm_engine::{
    Ask, Boundary, Caller, Chain, Refusal, Resolved, Tables, granted_models, identify, resolve,
};
use fastllm_wire::{Members, ScanError, scan_chat};
use http::request::Parts;
use http::{HeaderMap, Response};

use crate::forward::{Forwarder, Outgoing};
use crate::prompt::{Prompt, estimated_tokens};
use crate::record::{Ledger, Record};
use crate::serve::{AnswerBody, BodyLimits, ClientBody, Endpoint, Received, answer};
use crate::snapshot::Current;

/// The rooms of the request path.
#[derive(Debug)]
pub(crate) struct Pipeline {
    pub(crate) current: Arc<Current>,
    pub(crate) ledger: Arc<Ledger>,
    pub(crate) forwarder: Forwarder,
    pub(crate) bodies: BodyLimits,
}

/// Who asks for what, and by which tables that was decided.
struct Entered {
    tables: Arc<Tables>,
    caller: Caller,
    endpoint: Endpoint,
}

/// A request that was let in: what is needed to forward it.
struct Admitted {
    chain: Chain,
    prompt: Vec<Boundary>,
    members: Members,
    body: Received,
    ask_usage: bool,
}

impl Pipeline {
    /// Answers one request, whatever it is.
    pub(crate) async fn handle(&self, head: Parts, body: ClientBody) -> Response<AnswerBody> {
        let mut record = Record::begin(&self.ledger, &head.headers);
        let entered = match self.enter(&head, &mut record) {
            Ok(entered) => entered,
            Err(refusal) => return refuse(record, &refusal),
        };
        match entered.endpoint {
            Endpoint::Models => models(record, &entered),
            Endpoint::ChatCompletions => self.chat(record, entered, &head, body).await,
        }
    }

    /// Who is it, and do they ask for something that exists?
    fn enter(&self, head: &Parts, record: &mut Record) -> Result<Entered, Refusal> {
        let tables = self.current.tables().ok_or(Refusal::NotReady)?;
        let caller = caller_of(&tables, &head.headers, record)?;
        let endpoint = Endpoint::find(&head.method, head.uri.path()).ok_or(Refusal::NoRoute)?;
        Ok(Entered {
            tables,
            caller,
            endpoint,
        })
    }

    async fn chat(
        &self,
        mut record: Record,
        entered: Entered,
        head: &Parts,
        body: ClientBody,
    ) -> Response<AnswerBody> {
        let admitted = match self.admit(&mut record, entered, &head.headers, body).await {
            Ok(admitted) => admitted,
            Err(refusal) => return refuse(record, &refusal),
        };
        let outgoing = Outgoing {
            sub_path: Endpoint::ChatCompletions.sub_path(),
            headers: &head.headers,
            body: admitted.body.bytes(),
            members: &admitted.members,
            prompt: &admitted.prompt,
            ask_usage: admitted.ask_usage,
        };
        match self
            .forwarder
            .send(&admitted.chain, &outgoing, &mut record)
            .await
        {
            Ok(arrived) => arrived
                .into_answer(record)
                .map(|relay| AnswerBody::Relay(Box::new(relay))),
            Err(refusal) => refuse(record, &refusal),
        }
    }

    async fn admit(
        &self,
        record: &mut Record,
        entered: Entered,
        headers: &HeaderMap,
        body: ClientBody,
    ) -> Result<Admitted, Refusal> {
        let body = body.read(headers, &self.bodies).await?;
        let members = scan_chat(&body.bytes()).map_err(invalid)?;
        let Entered {
            tables: before,
            mut caller,
            endpoint: _,
        } = entered;
        let tables = self.current.load();
        let tables = tables.as_ref().ok_or(Refusal::NotReady)?;
        // A body may take long to come: who asks and what they may do is
        // decided by the same tables as the model that they get.
        if !Arc::ptr_eq(tables, &before) {
            caller = caller_of(tables, headers, record)?;
        }
        let resolved = resolve(tables, members.model())?;
        record.requested(resolved.name(), resolved.model(), members.is_stream());
        let request = Request {
            members: &members,
            headers,
            body: &body.bytes(),
        };
        let (chain, prompt) = request.route(resolved, &caller, record.at())?;
        let known = caller.identified().is_some();
        let ask_usage = known && members.is_stream() && !members.wants_usage();
        Ok(Admitted {
            chain,
            prompt,
            members,
            body,
            ask_usage,
        })
    }
}

/// What a request is routed by.
struct Request<'a> {
    members: &'a Members,
    headers: &'a HeaderMap,
    body: &'a [u8],
}

impl Request<'_> {
    /// The candidates, and what they may know of the prompt. It is read only
    /// where it makes a difference.
    fn route(
        &self,
        resolved: Resolved<'_>,
        caller: &Caller,
        at: Timestamp,
    ) -> Result<(Chain, Vec<Boundary>), Refusal> {
        let read = resolved.reads_prompt().then(|| Prompt::read(self.body));
        let ask = Ask {
            stream: self.members.is_stream(),
            prompt_tokens: estimated_tokens(self.body),
            max_tokens: self.members.ceiling(),
            headers: self.headers,
            at,
            prompt: read.as_ref().map_or(0, Prompt::beginning),
            budget_used_percent: None,
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
fn caller_of(tables: &Tables, headers: &HeaderMap, record: &mut Record) -> Result<Caller, Refusal> {
    let caller = identify(tables, presented_key(headers), record.at())?;
    if let Some(identified) = caller.identified() {
        record.identified(identified);
    }
    Ok(caller)
}

fn models(record: Record, entered: &Entered) -> Response<AnswerBody> {
    let models = granted_models(&entered.tables, &entered.caller);
    let list = answer::model_list(models.into_iter(), record.id());
    record.served();
    list
}

fn refuse(record: Record, refusal: &Refusal) -> Response<AnswerBody> {
    let response = answer::refusal(refusal, record.id());
    record.refused(refusal);
    response
}

fn invalid(error: ScanError) -> Refusal {
    Refusal::InvalidRequest {
        message: error.to_string().into(),
        code: error.code(),
        param: error.member(),
    }
}

/// The key that a client presents: `authorization: Bearer` (the scheme in any
/// case) or `x-api-key`.
fn presented_key(headers: &HeaderMap) -> Option<&[u8]> {
    const SCHEME: &[u8] = b"bearer ";
    if let Some(value) = headers.get(http::header::AUTHORIZATION) {
        let (scheme, key) = value.as_bytes().split_at_checked(SCHEME.len())?;
        return scheme
            .eq_ignore_ascii_case(SCHEME)
            .then(|| key.trim_ascii());
    }
    headers
        .get("x-api-key")
        .map(|value| value.as_bytes().trim_ascii())
}

#[cfg(test)]
mod tests {
    use http::HeaderMap;

    use super::presented_key;

    fn key(name: &'static str, value: &'static str) -> Option<Vec<u8>> {
        let mut headers = HeaderMap::new();
        headers.insert(name, value.parse().unwrap());
        presented_key(&headers).map(<[u8]>::to_vec)
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
