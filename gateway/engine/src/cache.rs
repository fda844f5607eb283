//! Has this been answered already?
//!
//! Answers in one piece are kept by everything that decides them ([`CacheKey`]) and
//! given again, byte for byte, while their model says so. A cache belongs to a
//! process, not to a snapshot: what a new one leaves unchanged is found again.
//! Two requests that ask the same at once are both forwarded.

mod caching;
mod capture;
mod key;

pub use caching::ModelCaching;
pub use capture::ResponseCapture;
pub use key::{CacheKey, CacheKeyBuilder, CacheScope};

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use fastllm_contract::Timestamp;
use http::HeaderMap;
use moka::Expiry;
use moka::policy::EvictionPolicy;
use moka::sync::Cache;

/// The most that one answer has, in bytes: body, header fields and what it takes
/// to find them.
pub const LARGEST: usize = 512 << 10;

/// What an entry takes beside its body and its fields' text, in bytes: roughly.
const FRAME: usize = 512;

/// The same for one field.
const FIELD: usize = 96;

/// What all answers that are being read may take together, in bytes.
const CAPTURES: u64 = 32 << 20;

/// How much is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CacheLimits {
    /// So many answers at most.
    pub entries: u64,
    /// So many bytes of them at most.
    pub bytes: u64,
}

/// How much is kept at the moment.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CacheUsage {
    /// So many answers.
    pub entries: u64,
    /// With so many bytes.
    pub bytes: u64,
}

/// An answer that was kept.
#[derive(Debug)]
pub struct CachedResponse<T> {
    headers: HeaderMap,
    body: Bytes,
    attachment: T,
    ttl: Duration,
    until: Timestamp,
    size: u32,
}

impl<T> CachedResponse<T> {
    /// Its header fields.
    pub fn headers(&self) -> &HeaderMap {
        &self.headers
    }

    /// Its body, to the last byte; cheap to copy.
    pub fn body(&self) -> &Bytes {
        &self.body
    }

    /// What the shell keeps with it.
    pub fn attachment(&self) -> &T {
        &self.attachment
    }
}

type Kept<T> = Arc<CachedResponse<T>>;

/// Answers by their keys. Where there is no room, the one goes that was not
/// asked for the longest, whether it could still be given or not.
///
/// Whether an answer may still be given is decided by the time that the caller
/// gives; when its memory is freed, by a clock of the library's own. Neither
/// takes a thread: what has to be done is done by who keeps something.
pub struct ResponseCache<T> {
    entries: Cache<CacheKey, Kept<T>>,
    bytes: Arc<AtomicU64>,
    captures: Arc<AtomicU64>,
}

impl<T: Send + Sync + 'static> ResponseCache<T> {
    /// An empty one; nothing where nothing could be kept.
    pub fn new(bounds: CacheLimits) -> Option<Self> {
        let CacheLimits { entries, bytes } = bounds;
        // More than the largest ones take is no bound.
        let capacity = bytes.min(entries.saturating_mul(LARGEST as u64));
        if capacity == 0 {
            return None;
        }
        // The library knows one bound. It holds both where an entry counts for
        // no less than its share of the bytes.
        let share = u32::try_from((capacity / entries).max(1)).unwrap_or(u32::MAX);
        let capacity = capacity.min(entries.saturating_mul(u64::from(share)));
        let held = Arc::new(AtomicU64::new(0));
        let gone = Arc::clone(&held);
        let entries = Cache::builder()
            .max_capacity(capacity)
            .eviction_policy(EvictionPolicy::lru())
            .weigher(move |_, entry: &Kept<T>| entry.size.max(share))
            .expire_after(AfterItsOwnTime)
            .eviction_listener(move |_, entry: Kept<T>, _| {
                gone.fetch_sub(u64::from(entry.size), Ordering::Relaxed);
            })
            .build();
        Some(Self {
            entries,
            bytes: held,
            captures: Arc::new(AtomicU64::new(CAPTURES)),
        })
    }

    /// The answer that may be given again at this time.
    pub fn get(&self, key: &CacheKey, at: Timestamp) -> Option<Kept<T>> {
        self.entries.get(key).filter(|entry| at < entry.until)
    }

    /// Begins to read an answer of the model that really gives it, which has
    /// `length` bytes where that is known. Nothing where it shall not be kept.
    pub fn begin_capture(
        &self,
        key: CacheKey,
        caching: &ModelCaching,
        length: Option<u64>,
    ) -> Option<ResponseCapture> {
        ResponseCapture::begin(key, caching.ttl(), length, &self.captures)
    }

    /// Keeps an answer that has come to its end, in place of what was kept under
    /// its key before; `attachment` is returned with it. False where it is too large.
    pub fn insert(
        &self,
        capture: ResponseCapture,
        headers: HeaderMap,
        attachment: T,
        at: Timestamp,
    ) -> bool {
        let ResponseCapture {
            key, ttl, mut body, ..
        } = capture;
        let fields_size: usize = headers
            .iter()
            .map(|(name, value)| FIELD + name.as_str().len() + value.len())
            .sum();
        let size = FRAME + fields_size + body.len();
        let Some(size) = u32::try_from(size).ok().filter(|_| size <= LARGEST) else {
            return false;
        };
        body.shrink_to_fit();
        let lives = i64::try_from(ttl.as_micros()).unwrap_or(i64::MAX);
        let entry = CachedResponse {
            headers,
            body: Bytes::from(body),
            attachment,
            ttl,
            until: Timestamp(at.0.saturating_add(lives)),
            size,
        };
        self.bytes.fetch_add(u64::from(size), Ordering::Relaxed);
        self.entries.insert(key, Arc::new(entry));
        // The library would let many more come before it made room.
        self.entries.run_pending_tasks();
        true
    }

    /// How much is kept, without what has expired.
    pub fn usage(&self) -> CacheUsage {
        self.entries.run_pending_tasks();
        CacheUsage {
            entries: self.entries.entry_count(),
            bytes: self.bytes.load(Ordering::Relaxed),
        }
    }
}

impl<T> fmt::Debug for ResponseCache<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ResponseCache")
            .field("bytes", &self.bytes)
            .finish_non_exhaustive()
    }
}

/// Each entry says itself for how long it lives.
struct AfterItsOwnTime;

impl<T> Expiry<CacheKey, Kept<T>> for AfterItsOwnTime {
    fn expire_after_create(&self, _: &CacheKey, entry: &Kept<T>, _: Instant) -> Option<Duration> {
        Some(entry.ttl)
    }

    fn expire_after_update(
        &self,
        _: &CacheKey,
        entry: &Kept<T>,
        _: Instant,
        _: Option<Duration>,
    ) -> Option<Duration> {
        Some(entry.ttl)
    }
}

#[cfg(test)]
mod tests;
