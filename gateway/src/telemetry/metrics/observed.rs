use std::fmt;
use std::sync::OnceLock;

use fastllm_engine::CacheUsage;

/// Values that are measured when metrics are read rather than when they change.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Observed {
    /// Usage events waiting to be sent.
    pub(crate) usage_queued: usize,
    /// The contents of the response cache.
    pub(crate) cache: CacheUsage,
}

type Observe = dyn Fn() -> Observed + Send + Sync;

/// Measures the values; all are zero until it is set.
#[derive(Default)]
pub(super) struct Observer(OnceLock<Box<Observe>>);

impl Observer {
    pub(super) fn set(&self, observe: impl Fn() -> Observed + Send + Sync + 'static) {
        let _first = self.0.get_or_init(|| Box::new(observe));
    }

    pub(super) fn observe(&self) -> Observed {
        self.0.get().map(|observe| observe()).unwrap_or_default()
    }
}

impl fmt::Debug for Observer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Observer").finish_non_exhaustive()
    }
}
