use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use prometheus::Gauge;

use super::register::{Register, Registered};
use crate::runtime::clock;

/// The age of the served snapshot, and of the last contact with control: a
/// deployment without changes has an old snapshot, a stuck gateway an old
/// contact. Both use the clock of this process.
#[derive(Debug)]
pub(super) struct ControlContact {
    began: Instant,
    /// Milliseconds since the start of the process.
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
                "Time for which this gateway has served its current snapshot",
            )?,
            silence: register.seconds(
                "fastllm_snapshot_last_contact_seconds",
                "Time since control last responded to a poll, or else since startup",
            )?,
        })
    }

    /// Records a new snapshot.
    pub(super) fn published(&self) {
        self.published.store(self.now(), Ordering::Relaxed);
    }

    /// Records a response of control.
    pub(super) fn heard(&self) {
        self.heard.store(self.now(), Ordering::Relaxed);
    }

    /// Updates the gauges; `served` is whether there is a snapshot.
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
