use std::sync::Arc;
use std::time::Duration;

use fastllm_contract::{BackendId, ModelName, Timestamp};
use fastllm_wire::Usage;
use http::header::HeaderValue;
use opentelemetry_proto::tonic::common::v1::{AnyValue, InstrumentationScope, KeyValue, any_value};
use opentelemetry_proto::tonic::resource::v1::Resource;
use opentelemetry_proto::tonic::trace::v1::span::{Event, SpanKind};
use opentelemetry_proto::tonic::trace::v1::status::StatusCode;
use opentelemetry_proto::tonic::trace::v1::{ResourceSpans, ScopeSpans, Span, Status};
use url::Url;

use super::{SpanIds, TracingConfig, collector};
use crate::telemetry::{CacheUse, Outcome};

/// The only proxied operation.
const OPERATION: &str = "chat";

/// The API of every backend.
const PROVIDER: &str = "openai";

/// The traced properties of a finished request: no content, and nothing that
/// identifies the caller.
#[derive(Debug)]
pub(crate) struct FinishedRequest {
    pub(crate) ids: SpanIds,
    pub(crate) request_id: HeaderValue,
    pub(crate) at: Timestamp,
    pub(crate) took: Duration,
    pub(crate) first_event: Option<Duration>,
    pub(crate) requested: Option<ModelName>,
    pub(crate) model: Option<ModelName>,
    pub(crate) backend: Option<(BackendId, Arc<str>)>,
    pub(crate) stream: bool,
    pub(crate) attempts: u32,
    pub(crate) status: u16,
    pub(crate) outcome: Outcome,
    /// The error code of the gateway's own rejection.
    pub(crate) code: Option<&'static str>,
    pub(crate) usage: Option<Usage>,
    /// The outcome of the cache lookup, if there was one.
    pub(crate) cache: Option<CacheUse>,
}

/// Collects attributes; unknown values are omitted.
#[derive(Default)]
struct Attributes(Vec<KeyValue>);

impl Attributes {
    fn add(&mut self, key: &str, value: any_value::Value) {
        self.0.push(KeyValue {
            key: key.to_owned(),
            value: Some(AnyValue { value: Some(value) }),
            ..KeyValue::default()
        });
    }

    fn text(&mut self, key: &str, value: Option<impl Into<String>>) {
        if let Some(value) = value {
            self.add(key, any_value::Value::StringValue(value.into()));
        }
    }

    fn number(&mut self, key: &str, value: Option<impl TryInto<i64>>) {
        if let Some(value) = value {
            let value = value.try_into().unwrap_or(i64::MAX);
            self.add(key, any_value::Value::IntValue(value));
        }
    }

    fn seconds(&mut self, key: &str, value: Option<Duration>) {
        if let Some(value) = value {
            self.add(key, any_value::Value::DoubleValue(value.as_secs_f64()));
        }
    }

    fn flag(&mut self, key: &str, value: bool) {
        self.add(key, any_value::Value::BoolValue(value));
    }
}

impl FinishedRequest {
    /// Builds the span according to OpenTelemetry's conventions for generative
    /// AI, with additional attributes of this product.
    pub(super) fn into_span(self) -> Span {
        let error = self.error();
        let start = u64::try_from(self.at.0)
            .unwrap_or_default()
            .saturating_mul(1_000);
        let requested = self.requested.as_ref().map(ModelName::as_str);
        let name = requested.map_or_else(
            || OPERATION.to_owned(),
            |model| format!("{OPERATION} {model}"),
        );
        Span {
            trace_id: self.ids.trace.to_vec(),
            span_id: self.ids.span.to_vec(),
            parent_span_id: self.ids.parent.map(Vec::from).unwrap_or_default(),
            flags: 1,
            name,
            kind: SpanKind::Client as i32,
            start_time_unix_nano: start,
            end_time_unix_nano: after(start, self.took),
            attributes: self.attributes(requested, error.as_deref()),
            events: self
                .first_event
                .map(|first| Event {
                    time_unix_nano: after(start, first),
                    name: "first_token".to_owned(),
                    ..Event::default()
                })
                .into_iter()
                .collect(),
            status: error.map(|message| Status {
                message,
                code: StatusCode::Error as i32,
            }),
            ..Span::default()
        }
    }

    fn attributes(&self, requested: Option<&str>, error: Option<&str>) -> Vec<KeyValue> {
        let mut attributes = Attributes::default();
        let served = self.model.as_ref().map(ModelName::as_str);
        let hit = self.cache == Some(CacheUse::Hit);
        let answered = served.filter(|_| hit || self.backend.is_some());
        attributes.text("gen_ai.operation.name", Some(OPERATION));
        attributes.text("gen_ai.provider.name", Some(PROVIDER));
        attributes.text("gen_ai.request.model", requested);
        attributes.text("gen_ai.response.model", answered);
        let usage = self.usage;
        let input = usage.map(|usage| usage.prompt_tokens);
        let output = usage.and_then(|usage| usage.completion_tokens);
        attributes.number("gen_ai.usage.input_tokens", input);
        attributes.number("gen_ai.usage.output_tokens", output);
        attributes.flag("gen_ai.request.stream", self.stream);
        attributes.seconds("gen_ai.response.time_to_first_chunk", self.first_event);
        attributes.text("error.type", error);
        attributes.number("http.response.status_code", Some(self.status));
        if let Some((id, api_base)) = &self.backend {
            if let Ok(url) = Url::parse(api_base) {
                attributes.text("server.address", url.host_str());
                attributes.number("server.port", url.port_or_known_default());
            }
            attributes.text("backend", Some(&**api_base));
            attributes.number("backend_id", Some(id.0));
        }
        attributes.text("model", requested);
        attributes.text("served_model", answered);
        attributes.flag("stream", self.stream);
        attributes.text("cache", self.cache.map(CacheUse::as_str));
        attributes.number("status", Some(self.status));
        attributes.number("attempts", Some(self.attempts));
        attributes.text("request_id", self.request_id.to_str().ok());
        attributes.0
    }

    /// The error type, a value of low cardinality.
    fn error(&self) -> Option<String> {
        match self.outcome {
            Outcome::Ok => None,
            Outcome::ClientGone => Some("client_gone".to_owned()),
            Outcome::Rejected | Outcome::Unavailable | Outcome::UpstreamError => {
                let code = self.code.map(str::to_owned);
                code.or_else(|| (self.status >= 400).then(|| self.status.to_string()))
                    .or_else(|| Some("upstream_aborted".to_owned()))
            }
        }
    }
}

fn after(start: u64, time: Duration) -> u64 {
    start.saturating_add(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX))
}

/// The resource: attributes common to all spans of this process.
pub(super) fn resource(config: &TracingConfig) -> Resource {
    let mut attributes = Attributes::default();
    attributes.text("service.name", Some(&*config.service_name));
    attributes.text("service.version", Some(env!("CARGO_PKG_VERSION")));
    attributes.text("service.instance.id", Some(&*config.instance_id));
    let taken: Vec<String> = attributes.0.iter().map(|pair| pair.key.clone()).collect();
    for (key, value) in collector::pairs(&config.resource_attributes) {
        if !taken.contains(&key) {
            attributes.text(&key, Some(value));
        }
    }
    Resource {
        attributes: attributes.0,
        ..Resource::default()
    }
}

/// The OTLP form of spans.
pub(super) fn batch(resource: &Resource, spans: Vec<Span>) -> ResourceSpans {
    ResourceSpans {
        resource: Some(resource.clone()),
        scope_spans: vec![ScopeSpans {
            scope: Some(InstrumentationScope {
                name: env!("CARGO_PKG_NAME").to_owned(),
                version: env!("CARGO_PKG_VERSION").to_owned(),
                ..InstrumentationScope::default()
            }),
            spans,
            ..ScopeSpans::default()
        }],
        ..ResourceSpans::default()
    }
}
