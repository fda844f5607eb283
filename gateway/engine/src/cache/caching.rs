use std::time::Duration;

use fastllm_contract::Model;
use ring::digest::{SHA256, digest};

/// The longest TTL: a year, in seconds.
const MAX_TTL_SECONDS: u64 = 31_536_000;

/// The cache settings of a model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ModelCaching {
    ttl: Duration,
    /// A digest of the whole model: after any change, above all of its
    /// backends, cached responses are no longer used.
    pub(super) identity: [u8; 32],
}

impl ModelCaching {
    /// `None` if the responses of the model are not cached. Equal for snapshots
    /// that describe the model identically.
    pub(crate) fn of(model: &Model) -> Option<Self> {
        let seconds = model.cache_ttl_seconds.filter(|seconds| *seconds > 0)?;
        // All of it serializes to JSON; otherwise nothing would be cached.
        let described = serde_json::to_vec(model).ok()?;
        let mut identity = [0; 32];
        identity.copy_from_slice(digest(&SHA256, &described).as_ref());
        Some(Self {
            ttl: Duration::from_secs(seconds.min(MAX_TTL_SECONDS)),
            identity,
        })
    }

    /// How long a response may be reused.
    pub fn ttl(&self) -> Duration {
        self.ttl
    }
}
