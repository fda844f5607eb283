use std::collections::VecDeque;
use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use fastllm_contract::Snapshot;
use parking_lot::Mutex;
use tokio::sync::watch;

use super::build::{self, AssembleError, Built};
use super::etag::Etag;
use crate::clock;
use crate::crypto::Vault;
use crate::db::{Db, DbError, state};
use crate::metrics::Metrics;

/// The number of recent versions to which differences can be computed.
const RECENT_VERSIONS: usize = 16;

/// The reason why a snapshot was not built. The previous one stays published.
#[derive(Debug, thiserror::Error)]
pub(crate) enum BuildError {
    #[error("cannot read the database")]
    Database(#[from] DbError),
    #[error("cannot serialize the snapshot")]
    Serialize(#[from] serde_json::Error),
    #[error(transparent)]
    Assemble(#[from] AssembleError),
    #[error("the thread that builds the snapshot panicked")]
    Panicked,
}

/// A published snapshot. Its bytes are created on the first request.
pub(crate) struct Published {
    pub(crate) etag: Etag,
    snapshot: Snapshot,
    complete: OnceLock<Bytes>,
    /// Differences by the entity tag of the earlier version.
    differences: Mutex<Vec<(String, Bytes)>>,
}

impl Published {
    /// The number of models.
    pub(crate) fn models(&self) -> usize {
        self.snapshot
            .models
            .items
            .as_ref()
            .map_or(0, |models| models.len())
    }

    fn complete(&self) -> Result<Bytes, serde_json::Error> {
        if let Some(bytes) = self.complete.get() {
            return Ok(bytes.clone());
        }
        let bytes = Bytes::from(serde_json::to_vec(&self.snapshot)?);
        Ok(self.complete.get_or_init(|| bytes).clone())
    }

    fn difference(&self, held: &str, digests: &Snapshot) -> Result<Bytes, serde_json::Error> {
        let mut differences = self.differences.lock();
        if let Some((_, bytes)) = differences.iter().find(|(name, _)| name == held) {
            return Ok(bytes.clone());
        }
        let bytes = Bytes::from(serde_json::to_vec(
            &self.snapshot.without_sections_of(digests),
        )?);
        // Bounded by the number of recent versions.
        differences.push((held.to_owned(), bytes.clone()));
        Ok(bytes)
    }
}

/// Builds snapshots one at a time and notifies subscribers.
///
/// Invariant: builds are serial, so a later build never publishes an older state of
/// the same database. A lower version therefore means that the database was restored
/// from a backup.
pub(crate) struct Publisher {
    db: Db,
    vault: Arc<Vault>,
    metrics: Arc<Metrics>,
    building: tokio::sync::Mutex<Option<Arc<Built>>>,
    current: watch::Sender<Option<Arc<Published>>>,
    recent: Mutex<VecDeque<(String, Snapshot)>>,
}

impl Publisher {
    pub(crate) fn new(db: Db, vault: Arc<Vault>, metrics: Arc<Metrics>) -> Self {
        Self {
            db,
            vault,
            metrics,
            building: tokio::sync::Mutex::new(None),
            current: watch::Sender::new(None),
            recent: Mutex::new(VecDeque::with_capacity(RECENT_VERSIONS)),
        }
    }

    /// The published snapshot.
    pub(crate) fn current(&self) -> Option<Arc<Published>> {
        self.current.borrow().clone()
    }

    /// Subscribes to publications.
    pub(crate) fn subscribe(&self) -> watch::Receiver<Option<Arc<Published>>> {
        self.current.subscribe()
    }

    /// Publishes the current state of the database. Returns whether it changed; cheap
    /// if it did not.
    pub(crate) async fn refresh(&self) -> Result<bool, BuildError> {
        self.refresh_to(None).await
    }

    /// Like [`Publisher::refresh`], but does nothing if `version` is already
    /// published.
    pub(crate) async fn refresh_to(&self, version: Option<u64>) -> Result<bool, BuildError> {
        let mut held = self.building.lock().await;
        let reached = held.as_ref().map(|built| built.state.version);
        if version.is_some() && reached >= version {
            return Ok(false);
        }
        let begun = clock::monotonic();
        let outcome = self.build(held.clone()).await;
        match outcome {
            Ok(None) => Ok(false),
            Ok(Some(built)) => {
                *held = Some(Arc::clone(&built));
                self.publish(&built);
                self.metrics.builds.inc();
                self.metrics
                    .build_seconds
                    .observe(begun.elapsed().as_secs_f64());
                Ok(true)
            }
            Err(error) => {
                self.metrics.build_failures.inc();
                Err(error)
            }
        }
    }

    async fn build(&self, held: Option<Arc<Built>>) -> Result<Option<Arc<Built>>, BuildError> {
        if let Some(held) = &held {
            // One round trip suffices if nothing changed, the most common case.
            let state = state::read(&mut *self.db.begin().await?).await?;
            if held.state == state {
                return Ok(None);
            }
        }
        let Some(rows) = build::read(&self.db, held.as_deref()).await? else {
            return Ok(None);
        };
        let vault = Arc::clone(&self.vault);
        let assembled =
            tokio::task::spawn_blocking(move || build::assemble(rows, held.as_deref(), &vault));
        let built = assembled.await.map_err(|_| BuildError::Panicked)??;
        Ok(Some(Arc::new(built)))
    }

    fn publish(&self, built: &Built) {
        let before = self.current();
        let version = built.etag.version;
        if let Some(before) = before
            .as_ref()
            .filter(|before| before.etag.version > version)
        {
            tracing::warn!(
                version,
                before = before.etag.version,
                "the configuration has a lower version: the database was restored from a backup"
            );
        }
        let published = Arc::new(Published {
            etag: built.etag.clone(),
            snapshot: built.snapshot.clone(),
            complete: OnceLock::new(),
            differences: Mutex::new(Vec::new()),
        });
        {
            let mut recent = self.recent.lock();
            recent.retain(|(name, _)| *name != built.etag.to_string());
            recent.truncate(RECENT_VERSIONS - 1);
            recent.push_front((built.etag.to_string(), built.snapshot.digests()));
        }
        self.metrics
            .snapshot_version
            .set(i64::try_from(version).unwrap_or(i64::MAX));
        let same = before.is_some_and(|before| before.etag.digest == built.etag.digest);
        // A new version with equal content does not notify subscribers.
        self.current.send_if_modified(|current| {
            *current = Some(published);
            !same
        });
        tracing::debug!(version, same, "snapshot published");
    }

    /// The bytes for a gateway that holds `held`: the difference if that version is
    /// recent, otherwise the complete snapshot.
    pub(crate) async fn bytes(
        &self,
        published: Arc<Published>,
        held: Option<&Etag>,
    ) -> Result<Bytes, BuildError> {
        let name = held.map(ToString::to_string);
        let digests = name.as_ref().and_then(|name| {
            let recent = self.recent.lock();
            recent
                .iter()
                .find(|(remembered, _)| remembered == name)
                .map(|(_, digests)| digests.clone())
        });
        let written = tokio::task::spawn_blocking(move || match (name, digests) {
            (Some(name), Some(digests)) => published.difference(&name, &digests),
            _ => published.complete(),
        });
        Ok(written.await.map_err(|_| BuildError::Panicked)??)
    }
}
