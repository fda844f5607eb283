use std::sync::atomic::{AtomicI64, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use fastllm_contract::Timestamp;

use super::pick_context::{ENDPOINTS, EndpointIndex};

/// Consecutive rejections after which a backend is ejected for their endpoint. A
/// request that only looks like a wrong configuration cannot eject it alone.
const EJECTED_AFTER: u32 = 3;

/// The first ejection time after rejections; each further ejection doubles it. It
/// is long, since an operator has to act.
const EJECTED_FOR: Duration = Duration::from_secs(30);

/// The longest ejection after rejections.
const MAX_EJECTION: Duration = Duration::from_mins(5);

/// How long after an ejection the share of requests grows back to 100 %,
/// microseconds.
const RECOVERY: i64 = 30_000_000;

/// The share right after an ejection, in percent.
const FIRST_SHARE: i64 = 10;

/// What a backend rejects of the gateway. A client's request is not at fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum UpstreamRejection {
    /// The credential, or the account behind it.
    Credential,
    /// The address, the endpoint or the model.
    Configuration,
}

/// Why a backend is ejected.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum EjectionReason {
    /// Consecutive failed attempts.
    Failures,
    /// Consecutive rejections.
    Rejected(UpstreamRejection),
}

impl EjectionReason {
    /// Every reason, for metrics.
    pub const ALL: [Self; 3] = [
        Self::Failures,
        Self::Rejected(UpstreamRejection::Credential),
        Self::Rejected(UpstreamRejection::Configuration),
    ];

    /// The label value.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Failures => "failures",
            Self::Rejected(UpstreamRejection::Credential) => "credential",
            Self::Rejected(UpstreamRejection::Configuration) => "configuration",
        }
    }
}

/// A time until which a backend gets no requests: microseconds since 1970, 0 for
/// never.
#[derive(Debug, Default)]
pub(super) struct Ejection(AtomicI64);

impl Ejection {
    pub(super) fn is_active(&self, at: Timestamp) -> bool {
        self.0.load(Ordering::Relaxed) > at.0
    }

    /// The share of requests afterwards, in percent: it grows to 100.
    pub(super) fn share_after(&self, at: Timestamp) -> u64 {
        let until = self.0.load(Ordering::Relaxed);
        if until == 0 {
            return 100;
        }
        let since = at.0.saturating_sub(until).clamp(0, RECOVERY);
        (FIRST_SHARE + (100 - FIRST_SHARE) * since / RECOVERY).unsigned_abs()
    }

    /// Extends it to at least `pause` after `at`.
    pub(super) fn extend(&self, at: Timestamp, pause: Duration) {
        self.0.fetch_max(end_of(at, pause), Ordering::Relaxed);
    }

    /// Ends it now, if it is active.
    fn end(&self, at: Timestamp) {
        self.0.fetch_min(at.0, Ordering::Relaxed);
    }
}

/// The end of a pause, in microseconds since 1970.
pub(super) fn end_of(at: Timestamp, pause: Duration) -> i64 {
    let pause = i64::try_from(pause.as_micros()).unwrap_or(i64::MAX);
    at.0.saturating_add(pause)
}

/// The rejections by a backend, by endpoint: a credential may lack the permission
/// for one endpoint, and a backend may serve only some. A client that uses one of
/// the others must not move the requests of all clients.
#[derive(Debug, Default)]
pub(super) struct Rejections {
    endpoints: [EndpointRejections; ENDPOINTS],
    /// Ejections because of the credential.
    credential: AtomicU64,
    /// Ejections because of the configuration.
    configuration: AtomicU64,
}

#[derive(Debug, Default)]
struct EndpointRejections {
    /// Consecutive rejections, without those during an ejection.
    in_a_row: AtomicU32,
    credential: Ejection,
    configuration: Ejection,
}

impl EndpointRejections {
    fn ejection(&self, by: UpstreamRejection) -> &Ejection {
        match by {
            UpstreamRejection::Credential => &self.credential,
            UpstreamRejection::Configuration => &self.configuration,
        }
    }

    fn both(&self) -> [&Ejection; 2] {
        [&self.credential, &self.configuration]
    }

    fn is_ejecting(&self, at: Timestamp) -> bool {
        self.both().iter().any(|ejection| ejection.is_active(at))
    }
}

impl Rejections {
    fn of(&self, endpoint: EndpointIndex) -> &EndpointRejections {
        &self.endpoints[endpoint.index()]
    }

    pub(super) fn record(&self, by: UpstreamRejection, endpoint: EndpointIndex, at: Timestamp) {
        let rejections = self.of(endpoint);
        // Requests in flight before an ejection, and those that no other backend
        // can take, do not extend it.
        if rejections.is_ejecting(at) {
            return;
        }
        let in_a_row = rejections.in_a_row.fetch_add(1, Ordering::Relaxed);
        if let Some(further) = in_a_row.checked_sub(EJECTED_AFTER - 1) {
            let pause = EJECTED_FOR * (1 << further.min(4));
            rejections.ejection(by).extend(at, pause.min(MAX_EJECTION));
            self.counter(by).fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Forgets the rejections of an endpoint.
    pub(super) fn clear(&self, endpoint: EndpointIndex, at: Timestamp) {
        let rejections = self.of(endpoint);
        // Almost always 0: without a store the cache line stays shared.
        if rejections.in_a_row.load(Ordering::Relaxed) != 0 {
            rejections.in_a_row.store(0, Ordering::Relaxed);
            for ejection in rejections.both() {
                ejection.end(at);
            }
        }
    }

    pub(super) fn are_ejecting(&self, endpoint: EndpointIndex, at: Timestamp) -> bool {
        self.of(endpoint).is_ejecting(at)
    }

    /// Whether any endpoint is ejected for this reason.
    pub(super) fn are_ejecting_any(&self, by: UpstreamRejection, at: Timestamp) -> bool {
        let mut endpoints = self.endpoints.iter();
        endpoints.any(|rejections| rejections.ejection(by).is_active(at))
    }

    pub(super) fn share_after(&self, endpoint: EndpointIndex, at: Timestamp) -> u64 {
        let both = self.of(endpoint).both();
        let shares = both.map(|ejection| ejection.share_after(at));
        shares[0].min(shares[1])
    }

    /// Ejections so far.
    pub(super) fn ejections(&self, by: UpstreamRejection) -> u64 {
        self.counter(by).load(Ordering::Relaxed)
    }

    fn counter(&self, by: UpstreamRejection) -> &AtomicU64 {
        match by {
            UpstreamRejection::Credential => &self.credential,
            UpstreamRejection::Configuration => &self.configuration,
        }
    }
}
