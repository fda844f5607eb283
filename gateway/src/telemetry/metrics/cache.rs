use fastllm_engine::CacheUsage;
use prometheus::IntCounter;
use prometheus::core::{AtomicU64, GenericGauge};

use super::register::{Register, Registered};

/// How a request used the response cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CacheUse {
    /// A cached response was found and sent.
    Hit,
    /// No cached response was found.
    Miss,
    /// A response was stored.
    Store,
}

impl CacheUse {
    const ALL: [Self; 3] = [Self::Hit, Self::Miss, Self::Store];

    /// The name in metrics and response headers.
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Hit => "hit",
            Self::Miss => "miss",
            Self::Store => "store",
        }
    }
}

/// The metrics of the response cache.
#[derive(Debug)]
pub(super) struct CacheMetrics {
    uses: Vec<IntCounter>,
    entries: GenericGauge<AtomicU64>,
    bytes: GenericGauge<AtomicU64>,
}

impl CacheMetrics {
    pub(super) fn new(register: &Register) -> Registered<Self> {
        Ok(Self {
            uses: register.fixed(
                "fastllm_cache_total",
                "Uses of the response cache",
                "kind",
                CacheUse::ALL.map(CacheUse::as_str),
            )?,
            entries: register.count("fastllm_cache_entries", "Cached responses")?,
            bytes: register.count("fastllm_cache_bytes", "Size of the cached responses")?,
        })
    }

    pub(super) fn used(&self, cache: CacheUse) {
        self.uses[cache as usize].inc();
    }

    pub(super) fn uses(&self, cache: CacheUse) -> u64 {
        self.uses[cache as usize].get()
    }

    pub(super) fn set_occupancy(&self, occupancy: CacheUsage) {
        self.entries.set(occupancy.entries);
        self.bytes.set(occupancy.bytes);
    }
}
