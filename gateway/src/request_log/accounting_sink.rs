use std::fmt::Write as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use fastllm_process::logging::LogFormat;
use http::header::HeaderValue;

use crate::control_plane::UsageQueue;
use crate::http::{Head, REQUEST_ID};
use crate::telemetry::{Metrics, Tracer};

/// Where request logs go when they end, and where request IDs come from.
#[derive(Debug)]
pub(crate) struct AccountingSink {
    pub(super) metrics: Arc<Metrics>,
    pub(super) usage: UsageQueue,
    pub(super) tracer: Option<Tracer>,
    pub(super) log_format: LogFormat,
    boot_id: Arc<str>,
    requests: AtomicU64,
}

/// What a sink is built from.
#[derive(Debug)]
pub(crate) struct AccountingConfig {
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) usage: UsageQueue,
    pub(crate) tracer: Option<Tracer>,
    pub(crate) log_format: LogFormat,
    /// The prefix of generated request IDs.
    pub(crate) boot_id: Arc<str>,
}

impl AccountingConfig {
    pub(crate) fn build(self) -> Arc<AccountingSink> {
        let Self {
            metrics,
            usage,
            tracer,
            log_format,
            boot_id,
        } = self;
        Arc::new(AccountingSink {
            metrics,
            usage,
            tracer,
            log_format,
            boot_id,
            requests: AtomicU64::new(0),
        })
    }
}

impl AccountingSink {
    /// The client's own request ID where it is valid, else a new one.
    pub(super) fn request_id(&self, head: &Head) -> HeaderValue {
        /// The longest request ID that is accepted from a client, in bytes.
        const MAX_REQUEST_ID_BYTES: usize = 128;
        let given = head.field(REQUEST_ID).filter(|value| {
            (1..=MAX_REQUEST_ID_BYTES).contains(&value.len())
                && value.iter().all(u8::is_ascii_graphic)
        });
        if let Some(given) = given.and_then(|given| HeaderValue::from_bytes(given).ok()) {
            return given;
        }
        let number = self.requests.fetch_add(1, Ordering::Relaxed);
        // The final length, so that the text is not reallocated.
        let digits = 16 - number.leading_zeros() as usize / 4;
        let mut id = String::with_capacity(self.boot_id.len() + 1 + digits.max(1));
        let written = write!(id, "{}-{number:x}", self.boot_id).ok();
        written
            .and_then(|()| HeaderValue::try_from(id).ok())
            .unwrap_or(HeaderValue::from_static("unknown"))
    }
}
