use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use prometheus::Gauge;

use super::register::{Register, Registered};
use crate::runtime::clock;

/// How old what is served is, and when control was last heard of: a quiet
/// deployment has an old snapshot, a stuck gateway an old contact. Both by this
/// process's own clock.
#[derive(Debug)]
pub(super) struct ControlContact {
    began: Instant,
    /// Milliseconds since it began.
    published: AtomicU64,
    heard: AtomicU64,
    age: Gauge,
    silence: Gauge,
}

impl ControlContact {
    pub(super) fn new(register: &Register) -> Registered<Self> {
        Ok(Self {
            began: clock::now(),
            published: AtomicU64::new(0),
            heard: AtomicU64::new(0),
            age: register.seconds(
                "fastllm_snapshot_age_seconds",
                "For how long this gateway has served its present snapshot",
            )?,
            silence: register.seconds(
                "fastllm_snapshot_last_contact_seconds",
                "Since control last answered a poll, or else since the start",
            )?,
        })
    }

    /// Another snapshot is served.
    pub(super) fn published(&self) {
        self.published.store(self.now(), Ordering::Relaxed);
    }

    /// Control has answered.
    pub(super) fn heard(&self) {
        self.heard.store(self.now(), Ordering::Relaxed);
    }

    /// Brings the gauges up to date; `served` says that there is a snapshot.
    pub(super) fn update(&self, served: bool) {
        let now = self.now();
        let since = |mark: &AtomicU64| {
            let passed = now.saturating_sub(mark.load(Ordering::Relaxed));
            std::time::Duration::from_millis(passed).as_secs_f64()
        };
        self.age
            .set(if served { since(&self.published) } else { 0.0 });
        self.silence.set(since(&self.heard));
    }

    fn now(&self) -> u64 {
        u64::try_from(self.began.elapsed().as_millis()).unwrap_or(u64::MAX)
    }
}
