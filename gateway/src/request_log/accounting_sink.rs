use std::fmt::Write as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use fastllm_process::logging::LogFormat;
use http::header::HeaderValue;

use crate::cache::CachedResponses;
use crate::control_plane::UsageQueue;
use crate::http::Head;
use crate::http::REQUEST_ID;
use crate::telemetry::{Metrics, Tracer};

/// Where accounts go, and where request ids come from.
#[derive(Debug)]
pub(crate) struct AccountingSink {
    pub(crate) metrics: Arc<Metrics>,
    pub(super) usage: UsageQueue,
    boot_id: Arc<str>,
    requests: AtomicU64,
    cached: Option<Arc<CachedResponses>>,
    pub(super) tracer: Option<Tracer>,
    pub(super) log_format: LogFormat,
}

impl AccountingSink {
    pub(crate) fn new(metrics: Arc<Metrics>, usage: UsageQueue, boot_id: Arc<str>) -> Self {
        Self {
            metrics,
            usage,
            boot_id,
            requests: AtomicU64::new(0),
            cached: None,
            tracer: None,
            log_format: LogFormat::default(),
        }
    }

    /// The same, with access lines of this form.
    pub(crate) fn logged_as(mut self, format: LogFormat) -> Self {
        self.log_format = format;
        self
    }

    /// The same, with answers that are given again.
    pub(crate) fn with_cache(mut self, cached: Arc<CachedResponses>) -> Self {
        self.cached = Some(cached);
        self
    }

    /// The same, with traces.
    pub(crate) fn traced(mut self, tracer: Option<Tracer>) -> Self {
        self.tracer = tracer;
        self
    }

    /// Usage events waiting to be sent.
    pub(crate) fn queued(&self) -> usize {
        self.usage.len()
    }

    /// Measures what is shown as it is at the moment.
    pub(crate) fn take_stock(&self) {
        if let Some(cached) = &self.cached {
            self.metrics.cache_holds(cached.usage());
        }
    }

    /// The client's own request id where it is usable, else a new one.
    pub(super) fn request_id(&self, head: &Head) -> HeaderValue {
        /// Longest request id that is taken from a client, in bytes.
        const LONGEST: usize = 128;
        let given = head.field(REQUEST_ID).filter(|value| {
            (1..=LONGEST).contains(&value.len()) && value.iter().all(u8::is_ascii_graphic)
        });
        if let Some(given) = given.and_then(|given| HeaderValue::from_bytes(given).ok()) {
            return given;
        }
        let number = self.requests.fetch_add(1, Ordering::Relaxed);
        // As long as it will be, so that it is not moved again.
        let digits = 16 - number.leading_zeros() as usize / 4;
        let mut id = String::with_capacity(self.boot_id.len() + 1 + digits.max(1));
        let written = write!(id, "{}-{number:x}", self.boot_id).ok();
        written
            .and_then(|()| HeaderValue::try_from(id).ok())
            .unwrap_or(HeaderValue::from_static("unknown"))
    }
}
