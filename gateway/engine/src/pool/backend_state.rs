use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use fastllm_contract::{Backend, Protocol, RequestOptions, Secret, Timestamp};

use super::ejections::{Ejection, EjectionReason, Rejections, UpstreamRejection, end_of};
use super::pick_context::EndpointIndex;
use super::queue::{self, Queue};
use super::response_sizes::ResponseSizes;

/// Consecutive failed probes that make a backend unhealthy, by default.
pub const UNHEALTHY_AFTER: u32 = 2;

/// Consecutive failed attempts after which a backend is ejected.
const EJECTED_AFTER: u32 = 5;

/// The first ejection time; each further failure doubles it.
const EJECTED_FOR: Duration = Duration::from_secs(1);

/// The longest back-off or ejection after failures, whatever the backend requests.
const MAX_PAUSE: Duration = Duration::from_mins(1);

/// Identifies a backend across snapshots: while it is equal, counters and
/// health are kept.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct BackendIdentity {
    api_base: String,
    upstream_model: String,
    protocol: Protocol,
    auth_header: String,
    auth_scheme: Option<String>,
    credential: Option<[u8; 32]>,
    default_max_tokens: Option<u32>,
    headers: Vec<(String, [u8; 32])>,
    query: BTreeMap<String, String>,
    path_template: Option<String>,
}

impl BackendIdentity {
    pub(crate) fn of(backend: &Backend) -> Self {
        let digest = |secret: &Secret| crate::caller::hash_key(secret.expose().as_bytes()).0;
        let credential = backend.api_key.as_ref().map(digest);
        let RequestOptions {
            headers,
            query,
            path_template,
        } = &backend.request_options;
        let headers = headers.iter();
        let headers = headers.map(|(name, value)| (name.clone(), digest(value)));
        Self {
            api_base: backend.api_base.clone(),
            upstream_model: backend.upstream_model.clone(),
            protocol: backend.protocol,
            auth_header: backend.auth_header.clone(),
            auth_scheme: backend.auth_scheme.clone(),
            credential,
            default_max_tokens: backend.default_max_tokens,
            headers: headers.collect(),
            query: query.clone(),
            path_template: path_template.clone(),
        }
    }
}

/// Counters and health of a backend, shared by all threads and by every
/// snapshot that describes it identically.
#[derive(Debug)]
pub struct BackendState {
    in_flight: AtomicU64,
    requests: AtomicU64,
    errors: AtomicU64,
    ejections: AtomicU64,
    rejections: Rejections,
    probe_failures: AtomicU64,
    unhealthy_after: u32,
    consecutive_probe_failures: AtomicU32,
    consecutive_failures: AtomicU32,
    /// By request of the backend; microseconds since 1970.
    backs_off_until: AtomicI64,
    /// By failed attempts.
    ejection: Ejection,
    queue: Queue,
    /// Conversations assigned to this backend.
    conversations: AtomicU64,
    /// Mean latency of successful responses in microseconds, plain and
    /// streamed; 0 is unknown.
    latency: [AtomicU64; 2],
    sizes: ResponseSizes,
}

impl Default for BackendState {
    fn default() -> Self {
        Self::new(UNHEALTHY_AFTER)
    }
}

impl BackendState {
    /// A state without history. This number of consecutive failed probes, at
    /// least 1, makes the backend unhealthy.
    pub fn new(unhealthy_after: u32) -> Self {
        Self {
            in_flight: AtomicU64::new(0),
            requests: AtomicU64::new(0),
            errors: AtomicU64::new(0),
            ejections: AtomicU64::new(0),
            rejections: Rejections::default(),
            probe_failures: AtomicU64::new(0),
            unhealthy_after: unhealthy_after.max(1),
            consecutive_probe_failures: AtomicU32::new(0),
            consecutive_failures: AtomicU32::new(0),
            backs_off_until: AtomicI64::new(0),
            ejection: Ejection::default(),
            queue: Queue::default(),
            conversations: AtomicU64::new(0),
            latency: [const { AtomicU64::new(0) }; 2],
            sizes: ResponseSizes::default(),
        }
    }

    /// Requests in flight.
    pub fn in_flight(&self) -> u64 {
        self.in_flight.load(Ordering::Relaxed)
    }

    /// Queued requests. A request queued at several backends is counted at
    /// each.
    pub fn waiting(&self) -> usize {
        self.queue.len()
    }

    pub(super) fn queue(&self) -> &Queue {
        &self.queue
    }

    /// Attempts since the start.
    pub fn requests(&self) -> u64 {
        self.requests.load(Ordering::Relaxed)
    }

    /// Failed attempts: connection error, timeout, 5xx, aborted response, or a
    /// rejection of the gateway's credential or configuration.
    pub fn errors(&self) -> u64 {
        self.errors.load(Ordering::Relaxed)
    }

    /// Ejections for this reason. The endpoints of a backend are ejected one by
    /// one after rejections.
    pub fn ejections(&self, reason: EjectionReason) -> u64 {
        match reason {
            EjectionReason::Failures => self.ejections.load(Ordering::Relaxed),
            EjectionReason::Rejected(by) => self.rejections.ejections(by),
        }
    }

    /// Failed probes.
    pub fn probe_failures(&self) -> u64 {
        self.probe_failures.load(Ordering::Relaxed)
    }

    /// Whether its probes succeed; true until a failure.
    pub fn healthy(&self) -> bool {
        self.consecutive_probe_failures.load(Ordering::Relaxed) < self.unhealthy_after
    }

    /// Starts an attempt, counted as in flight until the guard is dropped.
    pub fn acquire(self: &Arc<Self>) -> InFlight {
        self.requests.fetch_add(1, Ordering::Relaxed);
        self.in_flight.fetch_add(1, Ordering::Relaxed);
        InFlight(Arc::clone(self))
    }

    /// Starts an attempt if fewer than `max` are in flight and no request is
    /// queued.
    pub fn try_acquire(self: &Arc<Self>, max: u64) -> Option<InFlight> {
        if self.queue.len() > 0 {
            return None;
        }
        self.acquire_slot(max)
    }

    /// A slot for the next request of the queue.
    pub(super) fn acquire_slot(self: &Arc<Self>, max: u64) -> Option<InFlight> {
        self.in_flight
            .fetch_update(Ordering::SeqCst, Ordering::SeqCst, |in_flight| {
                (in_flight < max).then_some(in_flight + 1)
            })
            .ok()?;
        self.requests.fetch_add(1, Ordering::Relaxed);
        Some(InFlight(Arc::clone(self)))
    }

    /// Whether it is available for requests to this endpoint: its probes succeed,
    /// it is not ejected, and no back-off that it requested is in effect.
    pub fn is_available(&self, at: Timestamp, endpoint: EndpointIndex) -> bool {
        self.healthy()
            && self.backs_off_until.load(Ordering::Relaxed) <= at.0
            && !self.ejection.is_active(at)
            && !self.rejections.are_ejecting(endpoint, at)
    }

    /// Whether it is ejected for this reason, for at least one endpoint.
    pub fn is_ejected(&self, reason: EjectionReason, at: Timestamp) -> bool {
        match reason {
            EjectionReason::Failures => self.ejection.is_active(at),
            EjectionReason::Rejected(by) => self.rejections.are_ejecting_any(by, at),
        }
    }

    /// Whether it accepts this request: always, except for some time after an
    /// ejection, when its share grows from a tenth to the whole. `draw` is a
    /// random number.
    pub(super) fn admits(&self, at: Timestamp, endpoint: EndpointIndex, draw: u64) -> bool {
        let share = self.ejection.share_after(at);
        let share = share.min(self.rejections.share_after(endpoint, at));
        draw % 100 < share
    }

    /// Records a failed attempt. Several in a row eject the backend: for 1 s,
    /// doubled by each further failure, at most a minute.
    pub fn record_failure(&self, at: Timestamp) {
        self.errors.fetch_add(1, Ordering::Relaxed);
        let in_a_row = self.consecutive_failures.fetch_add(1, Ordering::Relaxed);
        if let Some(further) = in_a_row.checked_sub(EJECTED_AFTER - 1) {
            if !self.ejection.is_active(at) {
                self.ejections.fetch_add(1, Ordering::Relaxed);
            }
            let pause = EJECTED_FOR * (1 << further.min(6));
            self.ejection.extend(at, pause.min(MAX_PAUSE));
        }
    }

    /// Records that the backend rejected the gateway's credential or
    /// configuration. Several rejections in a row of requests to one endpoint
    /// eject the backend for this endpoint: for half a minute, doubled by each
    /// further ejection, at most 5 minutes.
    pub fn record_rejection(&self, by: UpstreamRejection, at: Timestamp, endpoint: EndpointIndex) {
        self.errors.fetch_add(1, Ordering::Relaxed);
        self.rejections.record(by, endpoint, at);
    }

    /// Records a complete, successful response of this endpoint: failures and
    /// rejections before it no longer count, and its rejections no longer eject.
    pub fn record_success(&self, at: Timestamp, endpoint: EndpointIndex) {
        // Almost always 0: without a store the cache line stays shared.
        if self.consecutive_failures.load(Ordering::Relaxed) != 0 {
            self.consecutive_failures.store(0, Ordering::Relaxed);
        }
        self.rejections.clear(endpoint, at);
    }

    /// Stops new requests for a time that the backend requested, at most a
    /// minute. This is no failure: afterwards it receives its whole share at
    /// once.
    pub fn back_off(&self, at: Timestamp, wait: Duration) {
        let end = end_of(at, wait.min(MAX_PAUSE));
        self.backs_off_until.fetch_max(end, Ordering::Relaxed);
    }

    /// Records the latency of a successful response, from the start of the
    /// attempt to the end of the response.
    pub fn record_latency(&self, stream: bool, took: Duration) {
        let sample = u64::try_from(took.as_micros()).unwrap_or(u64::MAX).max(1);
        let mean = &self.latency[usize::from(stream)];
        let before = mean.load(Ordering::Relaxed);
        let after = if before == 0 {
            sample
        } else {
            (before - before / 8).saturating_add(sample / 8).max(1)
        };
        // Of two concurrent updates one may be lost: the mean is approximate.
        mean.store(after, Ordering::Relaxed);
    }

    /// The mean latency in microseconds; the last response has a weight of 1/8.
    pub(super) fn latency(&self, stream: bool) -> Option<u64> {
        let mean = self.latency[usize::from(stream)].load(Ordering::Relaxed);
        (mean != 0).then_some(mean)
    }

    /// Records the completion tokens of a response.
    pub fn record_completion_tokens(&self, tokens: u64) {
        self.sizes.record(tokens);
    }

    /// Tokens that 95 of 100 responses do not exceed.
    pub(super) fn typical_completion_tokens(&self) -> u64 {
        self.sizes.typical()
    }

    /// Records a conversation that starts at this backend.
    pub(super) fn record_conversation(&self) {
        self.conversations.fetch_add(1, Ordering::Relaxed);
    }

    /// Conversations that started at this backend.
    pub(super) fn conversations(&self) -> u64 {
        self.conversations.load(Ordering::Relaxed)
    }

    /// Records a probe. Returns the new health if it changed.
    pub fn record_probe(&self, succeeded: bool) -> Option<bool> {
        let before = self.healthy();
        if succeeded {
            self.consecutive_probe_failures.store(0, Ordering::Relaxed);
        } else {
            self.probe_failures.fetch_add(1, Ordering::Relaxed);
            // Capped at the threshold, so it cannot overflow.
            let failures = self.consecutive_probe_failures.load(Ordering::Relaxed);
            self.consecutive_probe_failures
                .store((failures + 1).min(self.unhealthy_after), Ordering::Relaxed);
        }
        let after = self.healthy();
        (before != after).then_some(after)
    }
}

/// One request in flight at a backend, until it is dropped.
#[derive(Debug)]
#[must_use]
pub struct InFlight(Arc<BackendState>);

impl InFlight {
    /// The state of its backend.
    pub fn state(&self) -> &BackendState {
        &self.0
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        // The order matters: see [`Queue`].
        self.0.in_flight.fetch_sub(1, Ordering::SeqCst);
        if self.0.queue.len() > 0 {
            queue::grant_free_slots(&self.0);
        }
    }
}

#[cfg(test)]
mod tests;
