use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use serde::Serialize;

use super::connection::Done;
use crate::{Error, clock};

/// The result of a window.
#[derive(Debug, Serialize)]
pub struct Outcome {
    /// Number of requests with complete responses.
    pub requests: u64,
    /// Number of events in all responses.
    pub events: u64,
    /// Total size of all bodies without framing, in bytes.
    pub content_bytes: u64,
    /// Time from the first request to the end of the last response.
    pub seconds: f64,
    /// Time from the requests to the ends of their responses, in microseconds.
    pub latency_us: Quantiles,
    /// Time from the requests to the first bytes of their responses, in
    /// microseconds.
    pub first_byte_us: Quantiles,
}

/// Quantiles of a latency, in microseconds.
#[derive(Debug, Serialize)]
pub struct Quantiles {
    /// The median.
    pub p50: f64,
    /// The 99th percentile.
    pub p99: f64,
}

/// Maximum latency that is recorded: one minute, in nanoseconds.
const LONGEST: u64 = 60_000_000_000;

/// The counters of a running window.
pub(super) struct WindowCounters {
    events: u64,
    content: u64,
    latency: Histogram<u64>,
    first_byte: Histogram<u64>,
}

impl WindowCounters {
    pub(super) fn new() -> Result<Self, Error> {
        let histogram = || {
            Histogram::new_with_max(LONGEST, 3).map_err(|error| Error::Histogram(error.to_string()))
        };
        Ok(Self {
            events: 0,
            content: 0,
            latency: histogram()?,
            first_byte: histogram()?,
        })
    }

    pub(super) fn note(&mut self, done: &Done, now: Instant) {
        self.events += done.events;
        self.content += done.content;
        record(&mut self.latency, now - done.began);
        let first = done.first_byte.unwrap_or(now);
        record(&mut self.first_byte, first - done.began);
    }

    pub(super) fn outcome(&self, began: Instant) -> Outcome {
        Outcome {
            requests: self.latency.len(),
            events: self.events,
            content_bytes: self.content,
            seconds: (clock::now() - began).as_secs_f64(),
            latency_us: quantiles(&self.latency),
            first_byte_us: quantiles(&self.first_byte),
        }
    }
}

fn record(histogram: &mut Histogram<u64>, latency: Duration) {
    let nanoseconds = u64::try_from(latency.as_nanos()).unwrap_or(LONGEST);
    histogram.saturating_record(nanoseconds.clamp(1, LONGEST));
}

fn quantiles(histogram: &Histogram<u64>) -> Quantiles {
    let at = |quantile| {
        let nanoseconds = histogram.value_at_quantile(quantile);
        Duration::from_nanos(nanoseconds).as_secs_f64() * 1e6
    };
    Quantiles {
        p50: at(0.5),
        p99: at(0.99),
    }
}
