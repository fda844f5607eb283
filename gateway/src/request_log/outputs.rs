//! What a finished request log is turned into: metrics, the span, the usage
//! event, and the access line.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use fastllm_contract::{Micros, ModelName, Tokens, UsageEvent};
use fastllm_wire::{Quantities, Usage};

use super::{RequestEnd, RequestLog};
use crate::control_plane::QueuedUsage;
use crate::http::ProxiedEndpoint;
use crate::telemetry::{AccessLine, CacheUse, Displayed, FinishedRequest, Outcome};

/// Tokens of a prompt and its response, roughly.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct EstimatedTokens {
    pub(super) prompt: u64,
    pub(super) completion: u64,
}

impl RequestLog {
    /// Ends the request: counts it, settles its reservation, and reports it.
    pub(super) fn settle(&mut self) {
        let took = self.timing.started.elapsed();
        let end = self.end.unwrap_or(RequestEnd::DISCONNECTED);
        // The gateway's own responses do not count as proxied requests; cached
        // ones do.
        let proxied = self.route.backend().is_some() || self.route.is_cache_hit();
        if end.outcome != Outcome::Ok || proxied {
            self.count(end, took);
            self.decide_trace();
            self.export_span(end, took);
        }
        let event = self.event(end, took);
        let settlement = self
            .limits
            .take()
            .map(|limits| limits.settle(end.is_rejection(), event.as_ref(), self.timing.at(took)));
        if let Some(mut event) = event {
            event.metadata = self.usage.metadata.take();
            self.sink.usage.push(QueuedUsage {
                event,
                settlement: settlement.unwrap_or_default(),
            });
        }
        self.write_access_line(end, took);
    }

    fn count(&self, end: RequestEnd, took: Duration) {
        let metrics = &self.sink.metrics;
        metrics.finished(end.outcome, took);
        if let (true, Some(backend)) = (end.has_response(), self.route.backend_metrics()) {
            backend.record_response(took);
            let usage = self.usage.reported.as_ref();
            if let Some(usage) = usage {
                backend.record_tokens(usage.prompt_tokens, usage.completion_tokens.unwrap_or(0));
            }
            metrics.used(self.usage.metadata.as_ref(), usage);
        }
    }

    fn export_span(&self, end: RequestEnd, took: Duration) {
        let (Some(tracer), Some(ids)) = (&self.sink.tracer, self.trace.ids()) else {
            return;
        };
        let backend = self.route.backend();
        tracer.take(FinishedRequest {
            ids,
            request_id: self.request_id.clone(),
            at: self.timing.arrived_at,
            took,
            first_event: self.timing.first_event,
            requested: self.route.requested().cloned(),
            model: self.route.model().cloned(),
            backend: backend.map(|backend| (backend.id, Arc::clone(&backend.api_base))),
            stream: self.route.is_stream(),
            attempts: self.route.attempts(),
            status: end.status,
            outcome: end.outcome,
            code: end.code,
            usage: self.usage.reported,
            cache: self.route.cache(),
        });
    }

    /// The usage event, still without `metadata`. There is none for callers that
    /// are not authenticated, models that do not exist, and rejections without a
    /// kind.
    fn event(&self, end: RequestEnd, took: Duration) -> Option<UsageEvent> {
        let (Some(caller), Some(model)) = (&self.caller, self.route.model()) else {
            return None;
        };
        if end.is_rejection() && end.refusal.is_none() {
            return None;
        }
        let usage = self.reported_usage().filter(|_| end.refusal.is_none());
        let estimate = self.estimate().filter(|_| usage.is_none());
        let tokens = usage
            .map(|usage| EstimatedTokens {
                prompt: usage.prompt_tokens,
                completion: usage.completion_tokens.unwrap_or(0),
            })
            .or(estimate)
            .unwrap_or_default();
        let answered = end.refusal.is_none() && end.status < 400;
        let Quantities {
            images,
            input_characters,
            audio_ms,
            audio_bytes,
        } = if answered || estimate.is_some() {
            self.usage.quantities()
        } else {
            Quantities::default()
        };
        let detail = |read: fn(Usage) -> Option<u64>| usage.and_then(read).map(Tokens);
        let endpoint = self.route.endpoint();
        Some(UsageEvent {
            cache_write_tokens: detail(|usage| usage.cache_write_tokens),
            audio_prompt_tokens: detail(|usage| usage.audio_prompt_tokens),
            audio_completion_tokens: detail(|usage| usage.audio_completion_tokens),
            images,
            input_characters,
            audio_ms,
            audio_bytes,
            cached: self.route.is_cache_hit(),
            metadata: None,
            principal_id: caller.principal,
            key_id: Some(caller.key),
            model: model.clone(),
            requested_model: self.route.alias().cloned(),
            endpoint: endpoint.map(ProxiedEndpoint::sub_path).map(Cow::Borrowed),
            request_id: self.request_id.to_str().ok().map(str::to_owned),
            attempts: Some(self.route.attempts()),
            prompt_tokens: Tokens(tokens.prompt),
            completion_tokens: Tokens(tokens.completion),
            cached_tokens: detail(|usage| usage.cached_tokens),
            reasoning_tokens: detail(|usage| usage.reasoning_tokens),
            usage_reported: usage.is_some() || end.refusal.is_some(),
            estimated: estimate.is_some(),
            refusal: end.refusal,
            at: self.timing.arrived_at,
            duration_ms: Some(milliseconds(took)),
            ttft_ms: self.timing.first_event.map(milliseconds),
            status: Some(end.status),
            cost_micros: usage.and_then(|usage| usage.cost_micros).map(Micros),
        })
    }

    /// Estimated tokens of a response that had begun, and of an unstreamed one
    /// whose client disconnected while an upstream had the request, which may
    /// have been processed to its end.
    pub(super) fn estimate(&self) -> Option<EstimatedTokens> {
        let abandoned = self.awaiting_response.is_set() && !self.route.is_stream();
        let completion = self.usage.received_tokens.or(abandoned.then_some(0))?;
        let endpoint = self.route.endpoint();
        let is_text = endpoint.is_none_or(ProxiedEndpoint::writes_text);
        Some(EstimatedTokens {
            prompt: self.usage.prompt_tokens(),
            completion: if is_text { completion } else { 0 },
        })
    }

    fn write_access_line(&self, end: RequestEnd, took: Duration) {
        let usage = self.usage.reported;
        AccessLine {
            request_id: self.request_id.to_str().unwrap_or_default(),
            trace_id: self.trace.id().map(Displayed),
            principal: self.caller.as_ref().map(|caller| &*caller.name),
            requested_model: self.route.alias().map(ModelName::as_str),
            model: self.route.model().map(ModelName::as_str),
            backend: self.route.backend().map(|backend| backend.id.0),
            attempts: self.route.attempts(),
            stream: self.route.is_stream(),
            cache: self.route.cache().map(CacheUse::as_str),
            status: end.status,
            code: end.code,
            prompt_tokens: usage.map(|usage| usage.prompt_tokens),
            completion_tokens: usage.and_then(|usage| usage.completion_tokens),
            ttft_ms: self.timing.first_event.map(milliseconds),
            ms: milliseconds(took),
        }
        .log(self.sink.log_format, self.timing.at(took));
    }
}

fn milliseconds(duration: Duration) -> u32 {
    u32::try_from(duration.as_millis()).unwrap_or(u32::MAX)
}
