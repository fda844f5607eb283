//! Whether the controller makes progress, for the liveness probe.

use std::collections::BTreeMap;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

/// Time between two signs of life of the controller.
pub const BEAT: Duration = Duration::from_secs(5);
/// How long the controller may show no sign of life.
const MAX_SILENCE: Duration = Duration::from_mins(1);
/// How long a reconciliation may take. Each of its calls has a timeout, and their
/// sum is smaller.
const MAX_RECONCILIATION: Duration = Duration::from_mins(10);

/// The reason why the process should be restarted.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
pub enum Wedged {
    /// The controller's task is not executed.
    #[error("the controller has not run for {} seconds", .0.as_secs())]
    Controller(Duration),
    /// A reconciliation does not end.
    #[error("a reconciliation has been running for {} seconds", .0.as_secs())]
    Reconciliation(Duration),
}

/// The controller's signs of life.
pub struct Liveness(Mutex<Signs>);

struct Signs {
    last_beat: Instant,
    /// Starts of the running reconciliations.
    running: BTreeMap<u64, Instant>,
    serial: u64,
}

impl Default for Liveness {
    fn default() -> Self {
        Self(Mutex::new(Signs {
            last_beat: Instant::now(),
            running: BTreeMap::new(),
            serial: 0,
        }))
    }
}

impl Liveness {
    /// Records signs of life until the future is dropped. It must be part of the
    /// controller's task.
    pub async fn beat(&self) {
        loop {
            self.0.lock().last_beat = Instant::now();
            tokio::time::sleep(BEAT).await;
        }
    }

    /// Records a reconciliation until the guard is dropped.
    pub fn reconciliation(&self) -> Reconciliation<'_> {
        let mut signs = self.0.lock();
        signs.serial += 1;
        let serial = signs.serial;
        signs.running.insert(serial, Instant::now());
        Reconciliation {
            health: self,
            serial,
        }
    }

    /// Checks whether the controller makes progress.
    ///
    /// # Errors
    /// If it does not.
    pub fn check(&self) -> Result<(), Wedged> {
        let signs = self.0.lock();
        let silence = signs.last_beat.elapsed();
        if silence > MAX_SILENCE {
            return Err(Wedged::Controller(silence));
        }
        let oldest = signs.running.values().min();
        let longest = oldest.map(Instant::elapsed).unwrap_or_default();
        if longest > MAX_RECONCILIATION {
            return Err(Wedged::Reconciliation(longest));
        }
        Ok(())
    }
}

/// A running reconciliation.
pub struct Reconciliation<'a> {
    health: &'a Liveness,
    serial: u64,
}

impl Drop for Reconciliation<'_> {
    fn drop(&mut self) {
        self.health.0.lock().running.remove(&self.serial);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::time::{advance, timeout};

    use super::{Liveness, MAX_RECONCILIATION, MAX_SILENCE, Wedged};

    const SECOND: Duration = Duration::from_secs(1);

    #[tokio::test(start_paused = true)]
    async fn a_controller_that_is_not_executed_is_wedged() {
        let health = Liveness::default();
        assert!(timeout(MAX_SILENCE * 3, health.beat()).await.is_err());
        assert_eq!(health.check(), Ok(()));
        advance(MAX_SILENCE + SECOND).await;
        assert!(matches!(health.check(), Err(Wedged::Controller(_))));
        assert!(timeout(SECOND, health.beat()).await.is_err());
        assert_eq!(health.check(), Ok(()));
    }

    #[tokio::test(start_paused = true)]
    async fn a_reconciliation_that_does_not_end_is_wedged() {
        let health = Liveness::default();
        drop(health.reconciliation());
        let running = health.reconciliation();
        let _ = timeout(MAX_RECONCILIATION + SECOND, health.beat()).await;
        let wedged = health.check().unwrap_err();
        assert_eq!(
            wedged.to_string(),
            "a reconciliation has been running for 601 seconds"
        );
        drop(running);
        assert_eq!(health.check(), Ok(()));
    }
}
