use std::time::Duration;

use fastllm_contract::Model;
use ring::digest::{SHA256, digest};

/// The longest that an answer is kept: a year, in seconds. A model may say more.
const LONGEST: u64 = 31_536_000;

/// That a model's answers may be given again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ModelCaching {
    ttl: Duration,
    /// Tells the model from every other, and from itself after a change:
    /// whatever of it changes, its backends above all, its answers may.
    pub(super) identity: [u8; 32],
}

impl ModelCaching {
    /// Nothing for a model whose answers may not. Outlives a snapshot that
    /// describes the model as the one before did.
    pub(crate) fn of(model: &Model) -> Option<Self> {
        let seconds = model.cache_ttl_seconds.filter(|seconds| *seconds > 0)?;
        // Everything in it has a JSON form. Without one nothing would be kept.
        let described = serde_json::to_vec(model).ok()?;
        let mut identity = [0; 32];
        identity.copy_from_slice(digest(&SHA256, &described).as_ref());
        Some(Self {
            ttl: Duration::from_secs(seconds.min(LONGEST)),
            identity,
        })
    }

    /// For how long an answer may be given again.
    pub fn ttl(&self) -> Duration {
        self.ttl
    }
}
