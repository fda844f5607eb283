use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use fastllm_contract::{Backend, Protocol};

/// Consecutive failed probes that make a backend unhealthy.
pub const UNHEALTHY_AFTER: u32 = 2;

/// What makes two snapshot entries the same backend: as long as it is
/// unchanged, counters and health are kept.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Identity {
    api_base: String,
    upstream_model: String,
    protocol: Protocol,
    auth_header: String,
    auth_scheme: Option<String>,
    credential: Option<[u8; 32]>,
    default_max_tokens: Option<u32>,
}

impl Identity {
    pub(crate) fn of(backend: &Backend) -> Self {
        let credential = backend
            .api_key
            .as_ref()
            .map(|key| crate::identify::hash_key(key.expose().as_bytes()).0);
        Self {
            api_base: backend.api_base.clone(),
            upstream_model: backend.upstream_model.clone(),
            protocol: backend.protocol,
            auth_header: backend.auth_header.clone(),
            auth_scheme: backend.auth_scheme.clone(),
            credential,
            default_max_tokens: backend.default_max_tokens,
        }
    }
}

/// What is learnt about a backend while it serves: shared by all threads and
/// by every snapshot that names it unchanged.
#[derive(Debug, Default)]
pub struct Live {
    in_flight: AtomicU64,
    requests: AtomicU64,
    errors: AtomicU64,
    failed_probes: AtomicU32,
}

impl Live {
    /// Requests under way.
    pub fn in_flight(&self) -> u64 {
        self.in_flight.load(Ordering::Relaxed)
    }

    /// Attempts since the start.
    pub fn requests(&self) -> u64 {
        self.requests.load(Ordering::Relaxed)
    }

    /// Attempts that failed: no connection, no answer in time, 5xx.
    pub fn errors(&self) -> u64 {
        self.errors.load(Ordering::Relaxed)
    }

    /// Whether its probes succeed; true until shown otherwise.
    pub fn healthy(&self) -> bool {
        self.failed_probes.load(Ordering::Relaxed) < UNHEALTHY_AFTER
    }

    /// Counts an attempt; the guard counts it as under way until dropped.
    pub fn begin(self: &Arc<Self>) -> InFlight {
        self.requests.fetch_add(1, Ordering::Relaxed);
        self.in_flight.fetch_add(1, Ordering::Relaxed);
        InFlight(Arc::clone(self))
    }

    /// Counts a failed attempt.
    pub fn failed(&self) {
        self.errors.fetch_add(1, Ordering::Relaxed);
    }

    /// Takes note of a probe. Returns the new health where it changed.
    pub fn probed(&self, succeeded: bool) -> Option<bool> {
        let before = self.healthy();
        if succeeded {
            self.failed_probes.store(0, Ordering::Relaxed);
        } else {
            // Stops at the threshold, so it cannot wrap.
            let failures = self.failed_probes.load(Ordering::Relaxed);
            self.failed_probes
                .store((failures + 1).min(UNHEALTHY_AFTER), Ordering::Relaxed);
        }
        let after = self.healthy();
        (before != after).then_some(after)
    }
}

/// One request under way at a backend. Dropping it ends the count.
#[derive(Debug)]
#[must_use]
pub struct InFlight(Arc<Live>);

impl Drop for InFlight {
    fn drop(&mut self) {
        self.0.in_flight.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::Live;

    #[test]
    fn two_failures_in_a_row_make_it_unhealthy_and_one_success_heals() {
        let live = Live::default();
        assert_eq!(live.probed(false), None);
        assert_eq!(live.probed(true), None);
        assert_eq!(live.probed(false), None);
        assert_eq!(live.probed(false), Some(false));
        assert_eq!(live.probed(false), None);
        assert!(!live.healthy());
        assert_eq!(live.probed(true), Some(true));
    }

    #[test]
    fn dropping_the_guard_ends_the_request() {
        let live = Arc::new(Live::default());
        let first = live.begin();
        let second = live.begin();
        assert_eq!((live.in_flight(), live.requests()), (2, 2));
        drop(first);
        assert_eq!(live.in_flight(), 1);
        drop(second);
        assert_eq!((live.in_flight(), live.requests()), (0, 2));
    }
}
