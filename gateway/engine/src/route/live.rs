use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use fastllm_contract::{Backend, Protocol, RequestOptions, Secret, Timestamp};

use super::queue::{self, Queue};
use super::sizes::Sizes;

/// Consecutive failed probes that make a backend unhealthy, unless told
/// otherwise.
pub const UNHEALTHY_AFTER: u32 = 2;

/// Consecutive failed attempts after which a backend is left alone for a while.
const EJECTED_AFTER: u32 = 5;

/// How long at first; each further failure doubles it.
const EJECTED_FOR: Duration = Duration::from_secs(1);

/// The longest that a backend is left alone, whatever it says itself.
const LONGEST_PAUSE: Duration = Duration::from_mins(1);

/// How long a backend that was left alone for its failures takes to get its
/// whole share again, microseconds.
const RETURN: i64 = 30_000_000;

/// The share that it begins with, in percent.
const FIRST_SHARE: i64 = 10;

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
    headers: Vec<(String, [u8; 32])>,
    query: BTreeMap<String, String>,
    path_template: Option<String>,
}

impl Identity {
    pub(crate) fn of(backend: &Backend) -> Self {
        let digest = |secret: &Secret| crate::identify::hash_key(secret.expose().as_bytes()).0;
        let credential = backend.api_key.as_ref().map(digest);
        let RequestOptions {
            headers,
            query,
            path_template,
        } = &backend.dialect;
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

/// What is learnt about a backend while it serves: shared by all threads and
/// by every snapshot that names it unchanged.
#[derive(Debug)]
pub struct Live {
    in_flight: AtomicU64,
    requests: AtomicU64,
    errors: AtomicU64,
    ejections: AtomicU64,
    probe_failures: AtomicU64,
    unhealthy_after: u32,
    failed_probes: AtomicU32,
    failed_in_a_row: AtomicU32,
    /// Because it asked for it; microseconds since 1970.
    paused_until: AtomicI64,
    /// Because its attempts failed; likewise, and 0 for never.
    ejected_until: AtomicI64,
    queue: Queue,
    /// Conversations that began here.
    claimed: AtomicU64,
    /// Mean microseconds of a good answer, plain and streamed; 0 is unknown.
    latency: [AtomicU64; 2],
    sizes: Sizes,
}

impl Default for Live {
    fn default() -> Self {
        Self::new(UNHEALTHY_AFTER)
    }
}

impl Live {
    /// Nothing is known yet. So many consecutive failed probes, at least one,
    /// will make it unhealthy.
    pub fn new(unhealthy_after: u32) -> Self {
        Self {
            in_flight: AtomicU64::new(0),
            requests: AtomicU64::new(0),
            errors: AtomicU64::new(0),
            ejections: AtomicU64::new(0),
            probe_failures: AtomicU64::new(0),
            unhealthy_after: unhealthy_after.max(1),
            failed_probes: AtomicU32::new(0),
            failed_in_a_row: AtomicU32::new(0),
            paused_until: AtomicI64::new(0),
            ejected_until: AtomicI64::new(0),
            queue: Queue::default(),
            claimed: AtomicU64::new(0),
            latency: [const { AtomicU64::new(0) }; 2],
            sizes: Sizes::default(),
        }
    }

    /// Requests under way.
    pub fn in_flight(&self) -> u64 {
        self.in_flight.load(Ordering::Relaxed)
    }

    /// Requests that wait for a place here. One that waits at several backends
    /// is counted at each.
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

    /// Attempts that failed: no connection, no answer in time, 5xx, an answer
    /// that broke off.
    pub fn errors(&self) -> u64 {
        self.errors.load(Ordering::Relaxed)
    }

    /// How often it was left alone because its attempts failed.
    pub fn ejections(&self) -> u64 {
        self.ejections.load(Ordering::Relaxed)
    }

    /// Probes that failed.
    pub fn probe_failures(&self) -> u64 {
        self.probe_failures.load(Ordering::Relaxed)
    }

    /// Whether its probes succeed; true until shown otherwise.
    pub fn healthy(&self) -> bool {
        self.failed_probes.load(Ordering::Relaxed) < self.unhealthy_after
    }

    /// Counts an attempt; the guard counts it as under way until dropped.
    pub fn begin(self: &Arc<Self>) -> InFlight {
        self.requests.fetch_add(1, Ordering::Relaxed);
        self.in_flight.fetch_add(1, Ordering::Relaxed);
        InFlight(Arc::clone(self))
    }

    /// As [`Live::begin`], where fewer than `most` are under way and nobody
    /// waits for the place.
    pub fn try_begin(self: &Arc<Self>, most: u64) -> Option<InFlight> {
        if self.queue.len() > 0 {
            return None;
        }
        self.take_place(most)
    }

    /// A place for whoever is next.
    pub(super) fn take_place(self: &Arc<Self>, most: u64) -> Option<InFlight> {
        self.in_flight
            .fetch_update(Ordering::SeqCst, Ordering::SeqCst, |under_way| {
                (under_way < most).then_some(under_way + 1)
            })
            .ok()?;
        self.requests.fetch_add(1, Ordering::Relaxed);
        Some(InFlight(Arc::clone(self)))
    }

    /// Whether it may be expected to answer: its probes succeed, it did not ask
    /// to be left alone, and its last attempts did not all fail.
    pub fn is_available(&self, at: Timestamp) -> bool {
        self.healthy() && self.paused_until.load(Ordering::Relaxed) <= at.0 && !self.is_ejected(at)
    }

    /// Whether it is left alone because its last attempts failed.
    pub fn is_ejected(&self, at: Timestamp) -> bool {
        self.ejected_until.load(Ordering::Relaxed) > at.0
    }

    /// Whether it takes its turn: always, but for some time after it was left
    /// alone for its failures, where its share grows from a tenth to the whole.
    /// `draw` is a random number.
    pub(super) fn takes_turn(&self, at: Timestamp, draw: u64) -> bool {
        let ejected_until = self.ejected_until.load(Ordering::Relaxed);
        if ejected_until == 0 {
            return true;
        }
        let since = at.0.saturating_sub(ejected_until).clamp(0, RETURN);
        let share = FIRST_SHARE + (100 - FIRST_SHARE) * since / RETURN;
        draw % 100 < share.unsigned_abs()
    }

    /// Counts a failed attempt. Several in a row, and it is left alone: 1 s,
    /// then twice as long with each further one, up to a minute.
    pub fn failed(&self, at: Timestamp) {
        self.errors.fetch_add(1, Ordering::Relaxed);
        let in_a_row = self.failed_in_a_row.fetch_add(1, Ordering::Relaxed);
        if let Some(further) = in_a_row.checked_sub(EJECTED_AFTER - 1) {
            if !self.is_ejected(at) {
                self.ejections.fetch_add(1, Ordering::Relaxed);
            }
            extend(&self.ejected_until, at, EJECTED_FOR * (1 << further.min(6)));
        }
    }

    /// Its answer was no failure.
    pub fn answered(&self) {
        // Nearly always 0: the cache line stays shared.
        if self.failed_in_a_row.load(Ordering::Relaxed) != 0 {
            self.failed_in_a_row.store(0, Ordering::Relaxed);
        }
    }

    /// It asked to be left alone for a while: for a minute at most. That is no
    /// failure, and afterwards it has its whole share at once.
    pub fn pause(&self, at: Timestamp, wait: Duration) {
        extend(&self.paused_until, at, wait);
    }

    /// Takes note of how long a good answer took, from the attempt's beginning
    /// to the end of the answer.
    pub fn took(&self, stream: bool, took: Duration) {
        let sample = u64::try_from(took.as_micros()).unwrap_or(u64::MAX).max(1);
        let mean = &self.latency[usize::from(stream)];
        let before = mean.load(Ordering::Relaxed);
        let after = if before == 0 {
            sample
        } else {
            (before - before / 8).saturating_add(sample / 8).max(1)
        };
        // Of two answers that end at once one may be lost: it is a mean.
        mean.store(after, Ordering::Relaxed);
    }

    /// The mean of these times in microseconds, 1/8 of it the last answer's.
    pub(super) fn latency(&self, stream: bool) -> Option<u64> {
        let mean = self.latency[usize::from(stream)].load(Ordering::Relaxed);
        (mean != 0).then_some(mean)
    }

    /// Takes note of how many tokens an answer had.
    pub fn answered_with(&self, tokens: u64) {
        self.sizes.note(tokens);
    }

    /// Tokens that 95 of 100 answers stay within.
    pub(super) fn usual_answer(&self) -> u64 {
        self.sizes.usual()
    }

    /// A conversation begins here.
    pub(super) fn claim(&self) {
        self.claimed.fetch_add(1, Ordering::Relaxed);
    }

    /// Conversations that began here.
    pub(super) fn claimed(&self) -> u64 {
        self.claimed.load(Ordering::Relaxed)
    }

    /// Takes note of a probe. Returns the new health where it changed.
    pub fn probed(&self, succeeded: bool) -> Option<bool> {
        let before = self.healthy();
        if succeeded {
            self.failed_probes.store(0, Ordering::Relaxed);
        } else {
            self.probe_failures.fetch_add(1, Ordering::Relaxed);
            // Stops at the threshold, so it cannot wrap.
            let failures = self.failed_probes.load(Ordering::Relaxed);
            self.failed_probes
                .store((failures + 1).min(self.unhealthy_after), Ordering::Relaxed);
        }
        let after = self.healthy();
        (before != after).then_some(after)
    }
}

/// Lets `until` be no earlier than `wait` after `at`.
fn extend(until: &AtomicI64, at: Timestamp, wait: Duration) {
    let wait = wait.min(LONGEST_PAUSE).as_micros();
    let end = at.0.saturating_add(i64::try_from(wait).unwrap_or(i64::MAX));
    until.fetch_max(end, Ordering::Relaxed);
}

/// One request under way at a backend. Dropping it ends the count.
#[derive(Debug)]
#[must_use]
pub struct InFlight(Arc<Live>);

impl InFlight {
    /// The backend that it is under way at.
    pub fn live(&self) -> &Live {
        &self.0
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        // In this order with what [`Queue`] does: see there.
        self.0.in_flight.fetch_sub(1, Ordering::SeqCst);
        if self.0.queue.len() > 0 {
            queue::call_waiting(&self.0);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use fastllm_contract::Timestamp;

    use super::Live;

    const SECOND: i64 = 1_000_000;

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
        assert_eq!(live.probe_failures(), 4);
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

    #[test]
    fn failures_in_a_row_eject_for_ever_longer_but_not_for_ever() {
        let live = Live::default();
        let start = Timestamp(0);
        for _ in 0..4 {
            live.failed(start);
        }
        assert!(live.is_available(start));
        live.answered();
        for _ in 0..5 {
            assert!(live.is_available(start));
            live.failed(start);
        }
        assert!(!live.is_available(Timestamp(SECOND - 1)));
        assert!(live.is_available(Timestamp(SECOND)));
        live.failed(start);
        assert!(!live.is_available(Timestamp(2 * SECOND - 1)));
        for _ in 0..100 {
            live.failed(start);
        }
        assert!(!live.is_available(Timestamp(59 * SECOND)));
        assert!(live.is_available(Timestamp(60 * SECOND)));
        assert_eq!(live.errors(), 110);
        assert_eq!(live.ejections(), 1);
        for _ in 0..2 {
            live.failed(Timestamp(120 * SECOND));
        }
        assert_eq!(live.ejections(), 2);
    }

    #[test]
    fn after_an_ejection_the_share_grows_from_a_tenth_to_the_whole() {
        let live = Live::default();
        let share = |at: i64| {
            let draws = 0..100;
            draws
                .filter(|draw| live.takes_turn(Timestamp(at), *draw))
                .count()
        };
        assert_eq!(share(0), 100);
        for _ in 0..5 {
            live.failed(Timestamp(0));
        }
        assert!(live.is_ejected(Timestamp(SECOND - 1)));
        let shares = [1, 2, 11, 21, 31, 500].map(|second| share(second * SECOND));
        assert_eq!(shares, [10, 13, 40, 70, 100, 100]);
        assert!(!live.is_ejected(Timestamp(SECOND)));
        // One more failure, and it begins again.
        live.failed(Timestamp(31 * SECOND));
        assert!(live.is_ejected(Timestamp(32 * SECOND)));
        assert_eq!(share(33 * SECOND), 10);
    }

    #[test]
    fn a_pause_ejects_nobody_and_ends_at_once() {
        let live = Live::default();
        live.pause(Timestamp(0), Duration::from_secs(3));
        assert!(!live.is_ejected(Timestamp(0)) && !live.is_available(Timestamp(0)));
        assert!(live.takes_turn(Timestamp(3 * SECOND), 99));
    }

    #[test]
    fn the_number_of_failed_probes_can_be_chosen() {
        let strict = Live::new(0);
        assert_eq!(strict.probed(false), Some(false));
        let patient = Live::new(3);
        assert_eq!(
            [(); 3].map(|()| patient.probed(false)),
            [None, None, Some(false)]
        );
    }

    #[test]
    fn who_asks_for_a_pause_gets_it_within_a_bound() {
        let live = Live::default();
        live.pause(Timestamp(0), Duration::from_secs(3));
        live.pause(Timestamp(0), Duration::from_secs(1));
        assert!(!live.is_available(Timestamp(3 * SECOND - 1)));
        assert!(live.is_available(Timestamp(3 * SECOND)));
        live.pause(Timestamp(0), Duration::MAX);
        assert!(live.is_available(Timestamp(60 * SECOND)));
    }

    #[test]
    fn the_mean_follows_the_last_answers_of_its_kind() {
        let live = Live::default();
        assert_eq!(live.latency(true), None);
        live.took(true, Duration::from_micros(800));
        live.took(true, Duration::from_micros(1600));
        live.took(false, Duration::ZERO);
        assert_eq!(live.latency(true), Some(900));
        assert_eq!(live.latency(false), Some(1));
    }
}
