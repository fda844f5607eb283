use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use fastllm_process::back_off;
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::resource::v1::Resource;
use prost::Message;
use tokio::sync::mpsc::Receiver;
use tokio::time::{sleep, timeout_at};
use tokio_util::sync::CancellationToken;

use super::collector::{Collector, SendOutcome};
use super::span::FinishedRequest;
use crate::runtime::clock;
use crate::telemetry::Metrics;
use crate::telemetry::metrics::SpanLoss;
use crate::telemetry::traces::span;

/// The maximum number of spans in a batch.
const BATCH: usize = 512;

/// The longest time that a span waits for its batch to fill.
const FLUSH_EVERY: Duration = Duration::from_secs(1);

/// The number of attempts after which a batch is dropped.
const TRIES: u32 = 3;

/// The waits between two attempts.
const INITIAL_BACK_OFF: Duration = Duration::from_millis(500);
const MAX_BACK_OFF: Duration = Duration::from_secs(5);

/// How long the last spans may take during shutdown.
const LAST_FLUSH: Duration = Duration::from_secs(2);

/// The interval at which failures of the collector are logged.
const COMPLAIN_EVERY: Duration = Duration::from_mins(1);

/// Sends spans to the collector in batches, one at a time. If the collector is
/// unavailable, spans are dropped, and nothing else is affected.
#[derive(Debug)]
pub(crate) struct TraceExporter {
    collector: Collector,
    resource: Resource,
    waiting: Receiver<FinishedRequest>,
    /// The spans of the next batch.
    batch: Vec<FinishedRequest>,
    /// The number of spans in flight.
    sending: u64,
    metrics: Arc<Metrics>,
    complained: Option<Instant>,
}

impl TraceExporter {
    pub(super) fn new(
        collector: Collector,
        resource: Resource,
        waiting: Receiver<FinishedRequest>,
        metrics: Arc<Metrics>,
    ) -> Self {
        Self {
            collector,
            resource,
            waiting,
            batch: Vec::with_capacity(BATCH),
            sending: 0,
            metrics,
            complained: None,
        }
    }

    /// Runs until `stop`, then sends the queued spans for a short time.
    pub(crate) async fn run(mut self, stop: CancellationToken) {
        let late = async {
            stop.cancelled().await;
            sleep(LAST_FLUSH).await;
        };
        tokio::select! {
            () = self.send_all(&stop) => {}
            () = late => self.give_up(),
        }
    }

    async fn send_all(&mut self, stop: &CancellationToken) {
        while !stop.is_cancelled() {
            tokio::select! {
                () = self.gather() => self.send().await,
                () = stop.cancelled() => {}
            }
        }
        loop {
            self.take_waiting();
            if self.batch.is_empty() {
                return;
            }
            self.send().await;
        }
    }

    /// Counts the spans that could not be sent before shutdown.
    fn give_up(&self) {
        let left = self.sending + (self.batch.len() + self.waiting.len()) as u64;
        self.metrics.spans_lost(SpanLoss::Shutdown, left);
        tracing::warn!(spans = left, "spans could not be sent before shutdown");
    }

    /// Waits for a first span, then until the batch is full or the time is over.
    async fn gather(&mut self) {
        while self.batch.is_empty() {
            match self.waiting.recv().await {
                Some(finished) => self.batch.push(finished),
                None => std::future::pending().await,
            }
        }
        let due = tokio::time::Instant::now() + FLUSH_EVERY;
        while self.batch.len() < BATCH {
            match timeout_at(due, self.waiting.recv()).await {
                Ok(Some(finished)) => self.batch.push(finished),
                Ok(None) | Err(_) => return,
            }
        }
    }

    fn take_waiting(&mut self) {
        while self.batch.len() < BATCH {
            match self.waiting.try_recv() {
                Ok(finished) => self.batch.push(finished),
                Err(_) => return,
            }
        }
    }

    /// Sends a batch, with retries if the failure may be temporary.
    async fn send(&mut self) {
        self.sending = self.batch.len() as u64;
        self.deliver().await;
        self.sending = 0;
    }

    async fn deliver(&mut self) {
        let count = self.sending;
        let spans = self
            .batch
            .drain(..)
            .map(FinishedRequest::into_span)
            .collect();
        let request = ExportTraceServiceRequest {
            resource_spans: vec![span::batch(&self.resource, spans)],
        };
        let body = Bytes::from(request.encode_to_vec());
        let mut back_off = back_off::Config::new(INITIAL_BACK_OFF, MAX_BACK_OFF).build();
        for try_number in 1..=TRIES {
            match self.collector.send(body.clone()).await {
                SendOutcome::Taken => return self.metrics.spans_exported(count),
                SendOutcome::Partly { refused, reason } => {
                    let refused = refused.min(count);
                    self.metrics.spans_exported(count - refused);
                    return self.lost(SpanLoss::Refused, refused, &reason);
                }
                SendOutcome::Refused(reason) => {
                    return self.lost(SpanLoss::Refused, count, &reason);
                }
                SendOutcome::Away(reason) if try_number == TRIES => {
                    return self.lost(SpanLoss::Unreachable, count, &reason);
                }
                SendOutcome::Away(_) => sleep(back_off.next_delay()).await,
            }
        }
    }

    fn lost(&mut self, loss: SpanLoss, count: u64, reason: &str) {
        self.metrics.spans_lost(loss, count);
        let now = clock::now();
        let due = |last| now.saturating_duration_since(last) >= COMPLAIN_EVERY;
        if self.complained.is_none_or(due) {
            self.complained = Some(now);
            tracing::warn!(reason, spans = count, "the collector does not take spans");
        }
    }
}
