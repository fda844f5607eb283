use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use fastllm_process::back_off::{self, Jitter};
use parking_lot::RwLock;
use sqlx::postgres::PgListener;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep, timeout};
use tokio_util::sync::CancellationToken;

use super::publish::{BuildError, Publisher};
use crate::clock;
use crate::db::{Db, DbError, state};
use crate::metrics::Metrics;

/// Told by the database at each commit that raises the version.
const CONFIG_CHANNEL: &str = "fastllm_config";
/// Told by a listener to itself, to see whether notifications pass.
const PROBE_CHANNEL: &str = "fastllm_probe";
/// A connection that hangs counts as lost. Long enough to build everything
/// from a large database; later builds read only what changed.
const PATIENCE: Duration = Duration::from_secs(30);
const PROBE_PATIENCE: Duration = Duration::from_secs(2);
/// How often to look where notifications do not pass (a transaction pooler).
const POLL: Duration = Duration::from_millis(100);
/// Intervals of looking while the database is away.
const AWAY: back_off::Config =
    back_off::Config::new(Duration::from_millis(200), Duration::from_secs(1))
        .with_jitter(Jitter::NONE);
/// How long to poll before listening is tried again.
const LISTEN_AGAIN: Duration = Duration::from_secs(30);

/// Whether the database answers, as last seen; for readiness to tell.
#[derive(Default)]
pub(crate) struct DatabaseStatus(RwLock<Option<String>>);

impl DatabaseStatus {
    /// What is wrong, or nothing.
    pub(crate) fn trouble(&self) -> Option<String> {
        self.0.read().clone()
    }

    /// Notes an outcome. Returns whether it differs in kind from the last.
    pub(crate) fn note(&self, trouble: Option<String>) -> bool {
        let mut held = self.0.write();
        let changed = held.is_some() != trouble.is_some();
        *held = trouble;
        changed
    }
}

/// Follows the database's changes: by notification where they pass, else by
/// looking often; every `interval` in any case.
pub(crate) struct Watcher {
    pub(crate) db: Db,
    pub(crate) publisher: Arc<Publisher>,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) status: Arc<DatabaseStatus>,
    pub(crate) interval: Duration,
}

impl Watcher {
    /// Runs until `stop`.
    pub(crate) async fn run(self, stop: CancellationToken) {
        stop.run_until_cancelled(async {
            loop {
                let listener = timeout(PATIENCE, Box::pin(self.listen())).await;
                match listener.unwrap_or_else(|_| Err("the database hangs".to_owned())) {
                    Ok(listener) => Box::pin(self.follow(listener)).await,
                    Err(reason) => {
                        tracing::info!(reason, "changes are polled for");
                        Box::pin(self.poll()).await;
                    }
                }
            }
        })
        .await;
    }

    /// A listener that was seen to receive.
    async fn listen(&self) -> Result<PgListener, String> {
        let failed = |error: sqlx::Error| DbError::from(error).to_string();
        let mut listener = PgListener::connect_with(self.db.listen_pool())
            .await
            .map_err(failed)?;
        listener.eager_reconnect(false);
        listener
            .listen_all([CONFIG_CHANNEL, PROBE_CHANNEL])
            .await
            .map_err(failed)?;
        let token = format!(
            "{}-{}",
            std::process::id(),
            clock::now().unix_timestamp_nanos()
        );
        let mut connection = self.db.acquire().await.map_err(|error| error.to_string())?;
        state::notify(&mut connection, PROBE_CHANNEL, &token)
            .await
            .map_err(|error| error.to_string())?;
        drop(connection);
        let heard = timeout(PROBE_PATIENCE, async {
            while let Ok(Some(notification)) = listener.try_recv().await {
                if notification.payload() == token {
                    return true;
                }
            }
            false
        });
        match heard.await {
            Ok(true) => Ok(listener),
            Ok(false) => Err("the listening connection was lost".to_owned()),
            Err(_) => Err("notifications do not arrive".to_owned()),
        }
    }

    /// Returns when the listener is lost, or seems deaf.
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
                        // A change that nobody told of: is the listener deaf?
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

    /// Returns after a while, or as soon as the database is back.
    async fn poll(&self) {
        let end = Instant::now() + LISTEN_AGAIN;
        let mut pause = POLL;
        let mut back_off = AWAY.build();
        let mut was_away = false;
        while Instant::now() < end {
            match self.refresh().await {
                Some(_) if was_away => return,
                Some(_) => {}
                None => {
                    was_away = true;
                    pause = back_off.next_delay();
                }
            }
            sleep(pause).await;
        }
    }

    /// Whether there was something new; nothing when the database is away.
    async fn refresh(&self) -> Option<bool> {
        let outcome = timeout(PATIENCE, self.publisher.refresh()).await;
        let trouble = match &outcome {
            Err(_) => Some("unreachable: no answer in time".to_owned()),
            Ok(Err(BuildError::Database(error))) => Some(error.to_string()),
            Ok(Err(error)) => {
                tracing::error!(%error, "the snapshot cannot be built");
                None
            }
            Ok(Ok(_)) => None,
        };
        self.metrics.database_up.set(i64::from(trouble.is_none()));
        if self.status.note(trouble.clone()) {
            if let Some(trouble) = trouble {
                tracing::warn!(trouble, "the database does not answer");
            } else {
                tracing::info!("the database answers");
            }
        }
        outcome.ok()?.ok()
    }
}
