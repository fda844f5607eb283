//! The tokens that gateways authenticate with, and their replacement without a refused
//! request.
//!
//! Control planes record their token in the database, as a digest. Each accepts its own
//! token, those of the other control planes, and for a grace period those that were
//! replaced: until it ends, gateways with the former token continue to receive snapshots
//! and to deliver usage.

use std::time::Duration;

use fastllm_contract::Secret;
use fastllm_process::error::Chain;
use parking_lot::RwLock;
use tokio::sync::Mutex;
use tokio::time::{Instant, MissedTickBehavior, interval, timeout};
use tokio_util::sync::CancellationToken;

use crate::crypto::TokenDigest;
use crate::db::proxy_tokens::{OtherToken, others, record};
use crate::db::{Db, DbError};

/// Time between two records of the own token.
const RECORD_INTERVAL: Duration = Duration::from_secs(30);
/// Minimum time between two reads that an unknown token causes.
const READ_INTERVAL: Duration = Duration::from_secs(1);
/// Timeout of such a read.
const READ_TIMEOUT: Duration = Duration::from_secs(2);

/// A token of another control plane, or one that was replaced.
struct Accepted {
    digest: TokenDigest,
    until: Option<Instant>,
}

/// The accepted tokens.
pub(crate) struct ProxyTokens {
    own: TokenDigest,
    grace: Duration,
    db: Db,
    others: RwLock<Vec<Accepted>>,
    last_read: Mutex<Option<Instant>>,
}

impl ProxyTokens {
    /// A token that is replaced by `own` is accepted for `grace`; with a grace of 0, no
    /// other token than `own` is.
    pub(crate) fn new(own: &Secret, grace: Duration, db: Db) -> Self {
        Self {
            own: TokenDigest::of(own.expose().as_bytes()),
            grace,
            db,
            others: RwLock::default(),
            last_read: Mutex::default(),
        }
    }

    /// Whether a gateway's token is accepted. An unknown token causes a read of the
    /// database, at most once a second.
    pub(crate) async fn accept(&self, presented: &[u8]) -> bool {
        let presented = TokenDigest::of(presented);
        if self.own.is(&presented) || self.is_other(&presented) {
            return true;
        }
        if self.grace.is_zero() {
            return false;
        }
        let mut last_read = self.last_read.lock().await;
        if last_read.is_none_or(|at| at.elapsed() >= READ_INTERVAL) {
            *last_read = Some(Instant::now());
            match timeout(READ_TIMEOUT, self.read()).await {
                Ok(Ok(())) => {}
                Ok(Err(error)) => {
                    tracing::debug!(error = %Chain(&error), "cannot read the proxy tokens");
                }
                Err(_) => tracing::debug!("cannot read the proxy tokens: timed out"),
            }
        }
        drop(last_read);
        self.is_other(&presented)
    }

    /// Records the own token and reads the others.
    pub(crate) async fn refresh(&self) -> Result<(), DbError> {
        let mut transaction = self.db.begin().await?;
        record(&mut transaction, self.own.as_bytes(), self.grace).await?;
        transaction.commit().await?;
        self.read().await
    }

    /// Refreshes periodically until `stop`.
    pub(crate) async fn run(&self, stop: CancellationToken) {
        let mut tick = interval(RECORD_INTERVAL);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        while stop.run_until_cancelled(tick.tick()).await.is_some() {
            if let Err(error) = self.refresh().await {
                tracing::info!(error = %Chain(&error), "recording the proxy token failed; it is retried");
            }
        }
    }

    async fn read(&self) -> Result<(), DbError> {
        if self.grace.is_zero() {
            return Ok(());
        }
        let mut transaction = self.db.begin().await?;
        let rows = others(&mut transaction, self.own.as_bytes()).await?;
        let found: Vec<_> = rows.iter().filter_map(accepted).collect();
        let count = found.len();
        let before = std::mem::replace(&mut *self.others.write(), found).len();
        if count != before {
            tracing::info!(
                tokens = count,
                "accepting proxy tokens of other control planes or from before a replacement"
            );
        }
        Ok(())
    }

    fn is_other(&self, presented: &TokenDigest) -> bool {
        let now = Instant::now();
        let others = self.others.read();
        let valid = others
            .iter()
            .filter(|other| other.until.is_none_or(|until| now < until));
        // Every token is compared, so that the time does not depend on which one matches.
        valid.fold(false, |found, other| found | other.digest.is(presented))
    }
}

fn accepted(row: &OtherToken) -> Option<Accepted> {
    let lifetime = match row.seconds {
        Some(seconds) => Some(Duration::try_from_secs_f64(seconds).ok()?),
        None => None,
    };
    Some(Accepted {
        digest: TokenDigest::from_bytes(&row.digest)?,
        until: lifetime.map(|lifetime| Instant::now() + lifetime),
    })
}
