//! The response cache.
//!
//! Complete responses are stored under everything that determines them
//! ([`CacheKey`]) and returned byte for byte for as long as their model allows.
//! A cache belongs to the process, not to a snapshot: entries of unchanged
//! models survive a new snapshot. Concurrent identical requests are all
//! forwarded.

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

/// The largest cached response, in bytes: body, header fields and overhead.
pub const LARGEST: usize = 512 << 10;

/// Approximate overhead of an entry, in bytes.
const FRAME: usize = 512;

/// Approximate overhead of a header field.
const FIELD: usize = 96;

/// Memory for all responses being captured, in bytes.
const CAPTURES: u64 = 32 << 20;

/// Limits of the cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CacheLimits {
    /// Maximum number of responses.
    pub entries: u64,
    /// Maximum size of all responses, in bytes.
    pub bytes: u64,
}

/// Present usage of the cache.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CacheUsage {
    /// Number of responses.
    pub entries: u64,
    /// Their size in bytes.
    pub bytes: u64,
}

/// A cached response.
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
    /// Header fields.
    pub fn headers(&self) -> &HeaderMap {
        &self.headers
    }

    /// The complete body; cheap to clone.
    pub fn body(&self) -> &Bytes {
        &self.body
    }

    /// Data that the gateway stored with the response.
    pub fn attachment(&self) -> &T {
        &self.attachment
    }
}

type Kept<T> = Arc<CachedResponse<T>>;

/// Responses by key. The least recently used entry is evicted first, expired or
/// not.
///
/// Expiry is decided by the time that the caller passes; memory is freed by the
/// clock of the library. No thread is needed: maintenance runs when entries are
/// inserted.
pub struct ResponseCache<T> {
    entries: Cache<CacheKey, Kept<T>>,
    bytes: Arc<AtomicU64>,
    captures: Arc<AtomicU64>,
}

impl<T: Send + Sync + 'static> ResponseCache<T> {
    /// An empty cache; `None` if the limits admit no entry.
    pub fn new(bounds: CacheLimits) -> Option<Self> {
        let CacheLimits { entries, bytes } = bounds;
        // A byte limit above the size of the largest possible entries has no
        // effect.
        let capacity = bytes.min(entries.saturating_mul(LARGEST as u64));
        if capacity == 0 {
            return None;
        }
        // The library supports one limit. Both hold if an entry weighs at least
        // its share of the bytes.
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

    /// The cached response that is valid at this time.
    pub fn get(&self, key: &CacheKey, at: Timestamp) -> Option<Kept<T>> {
        self.entries.get(key).filter(|entry| at < entry.until)
    }

    /// Starts to capture a response, which has `length` bytes if known; `None`
    /// if it cannot be cached.
    pub fn begin_capture(
        &self,
        key: CacheKey,
        caching: &ModelCaching,
        length: Option<u64>,
    ) -> Option<ResponseCapture> {
        ResponseCapture::begin(key, caching.ttl(), length, &self.captures)
    }

    /// Stores a complete response and replaces an earlier one under its key;
    /// `attachment` is returned with it. False if it is too large.
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
        // Otherwise the library would admit many more entries before it evicts.
        self.entries.run_pending_tasks();
        true
    }

    /// Present usage, without expired entries.
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

/// Expiry by the TTL of each entry.
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
