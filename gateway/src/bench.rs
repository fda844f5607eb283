//! Single steps of a request, for the benchmark `steps`.

use std::error::Error;
use std::fmt;
use std::hint::black_box;
use std::sync::Arc;
use std::time::Duration;

use fastllm_contract::{KeyId, ModelName, PrincipalId, Timestamp, Tokens, UsageEvent};
use fastllm_engine::{Backend, Caller, RoutingState, identify};
use fastllm_process::logging::{self, LogFormat};
use fastllm_wire::Usage;
use http::StatusCode;

use crate::control_plane::{QueuedUsage, UsageQueue, UsageReceiver, usage_queue};
use crate::http::Head;
use crate::pipeline::prompt::Prompt;
use crate::request_log::{AccountingConfig, AccountingSink, RequestLog};
use crate::telemetry::{ACCESS_TARGET, AccessLine, Metrics, Outcome};

const AT: Timestamp = Timestamp(1_767_225_600_000_000);
const TOOK: Duration = Duration::from_millis(750);

/// The inputs of the steps.
#[derive(Debug)]
pub struct Input<'a> {
    /// The tables that requests are decided by.
    pub tables: &'a RoutingState,
    /// The head of a request.
    pub head: Vec<u8>,
    /// The key of its caller.
    pub key: &'a [u8],
    /// The body of its response.
    pub response: &'a [u8],
}

/// The steps that are private to this crate.
pub struct Steps<'a> {
    metrics: Arc<Metrics>,
    sink: Arc<AccountingSink>,
    queue: UsageQueue,
    receiver: UsageReceiver,
    batch: Vec<QueuedUsage>,
    head: Head,
    caller: Caller,
    model: &'a ModelName,
    backend: &'a Backend,
    usage: Option<Usage>,
}

impl fmt::Debug for Steps<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Steps").finish_non_exhaustive()
    }
}

impl<'a> Steps<'a> {
    /// Prepares everything that is not measured.
    pub fn new(input: Input<'a>) -> Result<Self, Box<dyn Error>> {
        let Input {
            tables,
            head,
            key,
            response,
        } = input;
        let metrics = Arc::new(Metrics::new()?);
        metrics.attach(tables);
        let (queue, receiver) = usage_queue(&metrics);
        let accounting = AccountingConfig {
            metrics: Arc::clone(&metrics),
            usage: queue.clone(),
            tracer: None,
            log_format: LogFormat::Text,
            boot_id: Arc::from("0123456789abcdef"),
        };
        let (model, backend) = tables.backends().next().ok_or("the tables are empty")?;
        Ok(Self {
            metrics,
            sink: accounting.build(),
            queue,
            receiver,
            batch: Vec::new(),
            head: Head::read(head)?,
            caller: identify(tables, Some(key), AT)?,
            model,
            backend,
            usage: Usage::from_response(response),
        })
    }

    /// Hashes the beginnings of a prompt, and returns how many there are.
    pub fn hash_prompt(body: &[u8]) -> usize {
        Prompt::read(body).into_boundaries().len()
    }

    /// Counts a request: five counters, three histograms.
    pub fn count_request(&self) {
        self.metrics.forwarded(StatusCode::OK);
        self.metrics.finished(Outcome::Ok, black_box(TOOK));
        if let Some(backend) = self.backend.metrics() {
            backend.record_response(TOOK);
            backend.record_tokens(250, 64);
        }
    }

    /// Makes usage events, queues them, and takes them from the queue. Returns
    /// how many were taken.
    pub fn queue_events(&mut self, count: u32) -> usize {
        for _ in 0..count {
            self.queue.push(event(black_box(self.model)));
        }
        self.drain()
    }

    /// Logs a request with its metrics and its usage event. Returns the number of
    /// events.
    pub fn log_request(&mut self) -> usize {
        let mut log = RequestLog::begin(&self.sink, &self.head);
        if let Caller::Identified(identified) = &self.caller {
            log.set_caller(identified);
        }
        log.set_model(self.model, self.model, false);
        log.route.record_attempt(self.model, self.backend);
        log.metrics().forwarded(StatusCode::OK);
        log.usage.set_reported(self.usage);
        log.finish_forwarded(200, true);
        self.drain()
    }

    fn drain(&mut self) -> usize {
        self.batch.clear();
        self.receiver.drain_into(&mut self.batch);
        self.batch.len()
    }

    /// Sets up logging to standard error, which is off before, and writes access
    /// lines with what it returns.
    pub fn access_log() -> Result<AccessLog, Box<dyn Error>> {
        let logging = logging::Config {
            preformatted_target: Some(ACCESS_TARGET),
            ..logging::Config::default()
        };
        Ok(AccessLog {
            _guard: Box::new(logging.init_buffered("info")?),
        })
    }
}

/// Writes access lines to the log of the process.
pub struct AccessLog {
    _guard: Box<dyn std::any::Any>,
}

impl fmt::Debug for AccessLog {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AccessLog").finish_non_exhaustive()
    }
}

impl AccessLog {
    /// Writes one line into the queue of the log's thread.
    pub fn write(&self, model: &str) {
        let line = AccessLine {
            request_id: "0123456789abcdef-1",
            trace_id: None,
            principal: Some("principal-0"),
            requested_model: None,
            model: Some(model),
            backend: Some(1),
            attempts: 1,
            stream: false,
            cache: None,
            status: 200,
            code: None,
            prompt_tokens: Some(250),
            completion_tokens: Some(64),
            ttft_ms: None,
            ms: 750,
        };
        black_box(&line).log(LogFormat::Text, AT);
    }
}

fn event(model: &ModelName) -> UsageEvent {
    UsageEvent {
        cache_write_tokens: None,
        audio_prompt_tokens: None,
        audio_completion_tokens: None,
        images: None,
        input_characters: None,
        audio_ms: None,
        audio_bytes: None,
        cached: false,
        metadata: None,
        principal_id: PrincipalId(1),
        key_id: Some(KeyId(1)),
        model: model.clone(),
        requested_model: None,
        endpoint: Some("/chat/completions".into()),
        request_id: Some("0123456789abcdef-1".to_owned()),
        attempts: Some(1),
        prompt_tokens: Tokens(250),
        completion_tokens: Tokens(64),
        cached_tokens: None,
        reasoning_tokens: None,
        usage_reported: true,
        estimated: false,
        refusal: None,
        at: AT,
        duration_ms: Some(750),
        ttft_ms: None,
        status: Some(200),
        cost_micros: None,
    }
}
