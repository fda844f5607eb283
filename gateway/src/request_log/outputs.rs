//! What is told of a request: to control, and in the log.

use std::borrow::Cow;
use std::time::Duration;

use fastllm_contract::{Micros, ModelName, Tokens, UsageEvent};
use fastllm_wire::{Quantities, Usage};

use super::{RequestEnd, RequestLog, milliseconds};
use crate::http::ProxiedEndpoint;
use crate::telemetry::{AccessLine, CacheUse, Displayed, Outcome};

impl RequestLog {
    /// Whoever is not known, or has not named a model that exists, is counted
    /// only; so are refusals without a kind. What the client says of it is still to
    /// come.
    pub(super) fn event(&self, end: RequestEnd, took: Duration) -> Option<UsageEvent> {
        let (Some(attribution), Some(model)) = (&self.attribution, &self.model) else {
            return None;
        };
        if end.outcome == Outcome::Rejected && end.refusal.is_none() {
            return None;
        }
        let usage = self.reported().filter(|_| end.refusal.is_none());
        let estimate = self.estimate().filter(|_| usage.is_none());
        let (prompt, completion) = usage
            .map(|usage| (usage.prompt_tokens, usage.completion_tokens.unwrap_or(0)))
            .or(estimate)
            .unwrap_or_default();
        let answered = end.refusal.is_none() && end.status < 400;
        let quantities = self.quantities.as_deref().copied();
        let Quantities {
            images,
            input_characters,
            audio_ms,
            audio_bytes,
        } = quantities
            .filter(|_| answered || estimate.is_some())
            .unwrap_or_default();
        let detail = |read: fn(Usage) -> Option<u64>| usage.and_then(read).map(Tokens);
        Some(UsageEvent {
            cache_write_tokens: detail(|usage| usage.cache_write_tokens),
            audio_prompt_tokens: detail(|usage| usage.audio_prompt_tokens),
            audio_completion_tokens: detail(|usage| usage.audio_completion_tokens),
            images,
            input_characters,
            audio_ms,
            audio_bytes,
            cached: self.is_hit(),
            metadata: None,
            principal_id: attribution.principal,
            key_id: Some(attribution.key),
            model: model.clone(),
            requested_model: self
                .requested
                .clone()
                .filter(|requested| requested != model),
            endpoint: self
                .endpoint
                .map(ProxiedEndpoint::sub_path)
                .map(Cow::Borrowed),
            request_id: self.id.to_str().ok().map(str::to_owned),
            attempts: Some(self.attempts),
            prompt_tokens: Tokens(prompt),
            completion_tokens: Tokens(completion),
            cached_tokens: detail(|usage| usage.cached_tokens),
            reasoning_tokens: detail(|usage| usage.reasoning_tokens),
            usage_reported: usage.is_some() || end.refusal.is_some(),
            estimated: estimate.is_some(),
            refusal: end.refusal,
            at: self.at,
            duration_ms: Some(milliseconds(took)),
            ttft_ms: self.first_event.map(milliseconds),
            status: Some(end.status),
            cost_micros: usage.and_then(|usage| usage.cost_micros).map(Micros),
        })
    }

    /// What the answer said that it used. One that has tokens of its own and
    /// does not count them has not said it.
    pub(crate) fn reported(&self) -> Option<Usage> {
        let counted = self.endpoint.is_none_or(ProxiedEndpoint::has_completion);
        self.usage
            .filter(|usage| usage.completion_tokens.is_some() || !counted)
    }

    /// Tokens of the answer, as it said or else by a rough count.
    pub(crate) fn completion(&self) -> Option<u64> {
        match self.reported() {
            Some(usage) => usage.completion_tokens,
            None => self.estimate().map(|(_, completion)| completion),
        }
    }

    /// Tokens of prompt and answer by a rough count, for an answer that had begun,
    /// and for an unstreamed one whose client left once an upstream had the
    /// request: it may have been worked on to its end.
    fn estimate(&self) -> Option<(u64, u64)> {
        let left = self.sent.is_set() && !self.stream;
        let completion = self.came.or(left.then_some(0))?;
        let is_text = self.endpoint.is_none_or(ProxiedEndpoint::writes_text);
        let said = self.usage.map(|usage| usage.prompt_tokens);
        let prompt = said.unwrap_or(self.prompt_estimate);
        Some((prompt, if is_text { completion } else { 0 }))
    }

    /// Writes the access line.
    pub(super) fn log(&self, end: RequestEnd, took: Duration) {
        let requested = self.requested.as_ref();
        AccessLine {
            request_id: self.id.to_str().unwrap_or_default(),
            trace_id: self.trace.id().map(Displayed),
            principal: self.attribution.as_ref().map(|who| &*who.name),
            requested_model: requested
                .filter(|requested| Some(*requested) != self.model.as_ref())
                .map(ModelName::as_str),
            model: self.model.as_ref().map(ModelName::as_str),
            backend: self.asked.as_ref().map(|asked| asked.id.0),
            attempts: self.attempts,
            stream: self.stream,
            cache: self.cache.map(CacheUse::as_str),
            status: end.status,
            code: end.code,
            prompt_tokens: self.usage.map(|usage| usage.prompt_tokens),
            completion_tokens: self.usage.and_then(|usage| usage.completion_tokens),
            ttft_ms: self.first_event.map(milliseconds),
            ms: milliseconds(took),
        }
        .log(self.sink.log_format, self.at_after(took));
    }
}
