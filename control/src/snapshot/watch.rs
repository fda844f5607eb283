use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use fastllm_process::back_off::{self, Jitter};
use fastllm_process::error::Chain;
use parking_lot::RwLock;
use sqlx::postgres::PgListener;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep, timeout};
use tokio_util::sync::CancellationToken;

use super::publish::{BuildError, Publisher};
use crate::clock;
use crate::db::{Db, DbError, state};
use crate::metrics::Metrics;

/// The database notifies this channel at each commit that increments the version.
const CONFIG_CHANNEL: &str = "fastllm_config";
/// A listener notifies itself on this channel, to check whether notifications pass.
const PROBE_CHANNEL: &str = "fastllm_probe";
/// The timeout after which a connection is considered lost. Long enough for a first
/// build from a large database; later builds read only changes.
const DATABASE_TIMEOUT: Duration = Duration::from_secs(30);
const PROBE_TIMEOUT: Duration = Duration::from_secs(2);
/// The polling interval if notifications do not pass (a transaction pooler).
const POLL_INTERVAL: Duration = Duration::from_millis(100);
/// Back-off of polling while the database is unavailable.
const UNAVAILABLE_BACK_OFF: back_off::Config =
    back_off::Config::new(Duration::from_millis(200), Duration::from_secs(1))
        .with_jitter(Jitter::NONE);
const POOLED: &str = "a transaction pooler does not pass notifications";
/// How often it is checked for a transaction pooler before listening.
const POOLER_CHECKS: usize = 5;
/// How long to poll before trying to listen again.
const LISTEN_RETRY_INTERVAL: Duration = Duration::from_secs(30);

/// The last known availability of the database, reported by the readiness probe.
pub(crate) struct DatabaseStatus(RwLock<Option<String>>);

impl Default for DatabaseStatus {
    fn default() -> Self {
        Self(RwLock::new(Some("not connected yet".to_owned())))
    }
}

impl DatabaseStatus {
    /// The last error, if the database is unavailable.
    pub(crate) fn problem(&self) -> Option<String> {
        self.0.read().clone()
    }

    /// Records the last error. Returns whether it differs from the former one.
    pub(crate) fn record(&self, problem: Option<String>) -> bool {
        let mut held = self.0.write();
        let changed = *held != problem;
        *held = problem;
        changed
    }
}

/// Watches the database for changes: by notifications if they pass, otherwise by
/// frequent polling; in both cases also every `interval`.
pub(crate) struct Watcher {
    pub(crate) db: Db,
    /// For LISTEN.
    pub(crate) listen: Db,
    pub(crate) publisher: Arc<Publisher>,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) status: Arc<DatabaseStatus>,
    pub(crate) interval: Duration,
    /// Whether a transaction pooler was found: LISTEN would then remain on a connection
    /// of the server that other clients use.
    pub(crate) pooled: AtomicBool,
}

impl Watcher {
    /// Runs until `stop`.
    pub(crate) async fn run(self, stop: CancellationToken) {
        stop.run_until_cancelled(async {
            loop {
                let listener = timeout(DATABASE_TIMEOUT, Box::pin(self.listen())).await;
                match listener.unwrap_or_else(|_| Err("the database timed out".to_owned())) {
                    Ok(listener) => Box::pin(self.follow(listener)).await,
                    Err(reason) => {
                        tracing::info!(reason, "polling for changes");
                        Box::pin(self.poll()).await;
                    }
                }
            }
        })
        .await;
    }

    /// Connects a listener and verifies that it receives notifications.
    async fn listen(&self) -> Result<PgListener, String> {
        let failed = |error: DbError| Chain(&error).to_string();
        if self.pooled.load(Ordering::Relaxed) {
            return Err(POOLED.to_owned());
        }
        let mut listener = PgListener::connect_with(self.listen.pool())
            .await
            .map_err(|error| failed(error.into()))?;
        if self.is_pooled(&mut listener).await.map_err(failed)? {
            return Err(POOLED.to_owned());
        }
        listener.eager_reconnect(false);
        listener
            .listen_all([CONFIG_CHANNEL, PROBE_CHANNEL])
            .await
            .map_err(|error| failed(error.into()))?;
        let token = format!(
            "{}-{}",
            std::process::id(),
            clock::now().unix_timestamp_nanos()
        );
        let mut transaction = self.db.begin().await.map_err(failed)?;
        state::notify(&mut transaction, PROBE_CHANNEL, &token)
            .await
            .map_err(failed)?;
        let committed = transaction.commit().await;
        committed.map_err(|error| failed(error.into()))?;
        let received = timeout(PROBE_TIMEOUT, async {
            while let Ok(Some(notification)) = listener.try_recv().await {
                if notification.payload() == token {
                    return true;
                }
            }
            false
        });
        match received.await {
            Ok(true) => Ok(listener),
            Ok(false) => Err("the listening connection was lost".to_owned()),
            Err(_) => Err("notifications do not arrive".to_owned()),
        }
    }

    /// Whether a transaction pooler is between: a connection then changes its process of
    /// the server, or shares it with another.
    async fn is_pooled(&self, listener: &mut PgListener) -> Result<bool, DbError> {
        for _ in 0..POOLER_CHECKS {
            let before = state::server_process(&mut *listener).await?;
            let mut other = self.db.begin().await?;
            let of_other = state::server_process(&mut *other).await?;
            let after = state::server_process(&mut *listener).await?;
            if before != after || before == of_other {
                self.pooled.store(true, Ordering::Relaxed);
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Returns when the listener is lost or misses a notification.
    async fn follow(&self, mut listener: PgListener) {
        self.metrics.listening.set(1);
        self.refresh().await;
        let mut tick = interval(self.interval);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        tick.tick().await;
        'lost: loop {
            let mut next = pin!(listener.try_recv());
            let received = loop {
                tokio::select! {
                    received = &mut next => break received,
                    _ = tick.tick() => {
                        // A change without a notification: the listener may be broken.
                        if self.refresh().await != Some(false) {
                            break 'lost;
                        }
                    }
                }
            };
            match received {
                Ok(Some(notification)) if notification.channel() == CONFIG_CHANNEL => {
                    self.refresh().await;
                }
                Ok(Some(_)) => {}
                Ok(None) | Err(_) => break,
            }
        }
        self.metrics.listening.set(0);
    }

    /// Returns after an interval, or when the database is available again.
    async fn poll(&self) {
        let end = Instant::now() + LISTEN_RETRY_INTERVAL;
        let mut pause = POLL_INTERVAL;
        let mut back_off = UNAVAILABLE_BACK_OFF.build();
        let mut was_unavailable = false;
        while Instant::now() < end {
            match self.refresh().await {
                Some(_) if was_unavailable => return,
                Some(_) => {}
                None => {
                    was_unavailable = true;
                    pause = back_off.next_delay();
                }
            }
            sleep(pause).await;
        }
    }

    /// Whether something changed; `None` if the database is unavailable.
    async fn refresh(&self) -> Option<bool> {
        let outcome = timeout(DATABASE_TIMEOUT, self.publisher.refresh()).await;
        let problem = match &outcome {
            Err(_) => Some("unreachable: timed out".to_owned()),
            Ok(Err(BuildError::Database(error))) => Some(Chain(error).to_string()),
            Ok(Err(error)) => {
                tracing::error!(error = %Chain(error), "cannot build the snapshot");
                None
            }
            Ok(Ok(_)) => None,
        };
        self.metrics.database_up.set(i64::from(problem.is_none()));
        if self.status.record(problem.clone()) {
            if let Some(problem) = problem {
                tracing::warn!(problem, "the database is unavailable");
            } else {
                tracing::info!("the database is available");
            }
        }
        outcome.ok()?.ok()
    }
}
