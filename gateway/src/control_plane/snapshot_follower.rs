use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use fastllm_contract::{MissingSection, Snapshot};
use fastllm_process::back_off::{self, BackOff, Jitter};
use fastllm_process::error::Chain;
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;

use super::client::ControlError;
use super::snapshot_client::Fetched;
use super::snapshot_client::SnapshotClient;
use super::snapshot_file::SnapshotFile;
use crate::snapshot::CurrentSnapshot;
use crate::telemetry::Metrics;

/// The timeout of the first fetch, after which the copy on disk is served. A key
/// that was revoked in the meantime must not become valid again while control is
/// available.
const FIRST_FETCH: Duration = Duration::from_secs(3);

/// A "not modified" response that arrives sooner was not held open.
const MIN_HELD_OPEN: Duration = Duration::from_secs(1);

/// Keeps [`CurrentSnapshot`] in sync with the control plane.
#[derive(Debug)]
pub(crate) struct SnapshotFollower {
    pub(crate) source: SnapshotClient,
    pub(crate) cache: SnapshotFile,
    pub(crate) current: Arc<CurrentSnapshot>,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) poll: Duration,
    pub(crate) etag: Option<String>,
}

/// Why a fetched snapshot is not served.
#[derive(Debug, thiserror::Error)]
enum FollowError {
    #[error(transparent)]
    ControlClient(#[from] ControlError),
    #[error("the snapshot is not valid")]
    Unreadable(#[from] serde_json::Error),
    #[error(transparent)]
    Invalid(#[from] fastllm_engine::InvalidSnapshot),
    #[error(transparent)]
    Incomplete(#[from] MissingSection),
    #[error("building was interrupted")]
    Interrupted,
}

/// The outcome of one round.
enum FetchOutcome {
    Changed,
    Unchanged,
}

impl SnapshotFollower {
    pub(crate) async fn run(mut self, stop: CancellationToken) {
        tokio::select! {
            () = self.follow() => {}
            () = stop.cancelled() => {}
        }
    }

    async fn follow(&mut self) {
        self.begin().await;
        let mut back_off = back_off::Config::new(Duration::from_millis(100), self.poll).build();
        // A control plane that shuts down responds "not modified" early once;
        // one that never holds requests open is polled.
        let mut early_response_back_off =
            back_off::Config::new(Duration::from_millis(100), self.poll).build();
        let mut last_error = String::new();
        loop {
            let started = tokio::time::Instant::now();
            let wait = match self.fetch().await {
                Ok(fetch) => {
                    if !std::mem::take(&mut last_error).is_empty() {
                        tracing::info!("reconnected to the control plane");
                    }
                    back_off.reset();
                    if matches!(fetch, FetchOutcome::Unchanged) && started.elapsed() < MIN_HELD_OPEN
                    {
                        early_response_back_off.next_delay()
                    } else {
                        early_response_back_off.reset();
                        Duration::ZERO
                    }
                }
                Err(error) => self.failed(&error, &mut last_error, &mut back_off),
            };
            sleep(wait).await;
        }
    }

    /// Loads the first snapshot from control, or from disk if control is
    /// unavailable.
    async fn begin(&mut self) {
        // Only the fetch has a timeout: a build continues when it is no longer
        // awaited, and the copy on disk would replace its result.
        match timeout(FIRST_FETCH, self.source.fetch(None)).await {
            Ok(Ok(fetched)) => {
                self.metrics.control_answered();
                match self.take(fetched).await {
                    Ok(_) => return,
                    Err(error) => {
                        tracing::warn!(error = %Chain(&error), "the control plane's snapshot cannot be used");
                    }
                }
            }
            Ok(Err(error)) => {
                tracing::warn!(%error, "cannot fetch a snapshot from the control plane");
            }
            Err(_) => tracing::warn!("timed out fetching a snapshot from the control plane"),
        }
        self.metrics.poll_failed();
        let (cache, current) = (self.cache.clone(), Arc::clone(&self.current));
        let path = self.cache.path().display().to_string();
        let read = tokio::task::spawn_blocking(move || {
            let snapshot = cache.read().map_err(|error| Chain(&error).to_string())?;
            snapshot
                .map(|snapshot| {
                    complete(&current, snapshot).map_err(|error| Chain(&error).to_string())
                })
                .transpose()
        });
        match read.await {
            Ok(Ok(Some(()))) => tracing::warn!(path, "serving the last snapshot from disk"),
            Ok(Ok(None)) => tracing::warn!(
                path,
                "no snapshot on disk; responding 503 until the control plane provides one"
            ),
            Ok(Err(error)) => tracing::error!(path, error, "the snapshot on disk cannot be used"),
            Err(_) => tracing::error!(path, "the snapshot on disk cannot be read"),
        }
    }

    /// Logs a repeated failure once, and returns the time to wait.
    fn failed(
        &mut self,
        error: &FollowError,
        last_error: &mut String,
        back_off: &mut BackOff,
    ) -> Duration {
        self.metrics.poll_failed();
        let text = Chain(error).to_string();
        if text != *last_error {
            tracing::warn!(error = text, "the snapshot may be stale; retrying");
            *last_error = text;
        }
        match error {
            FollowError::ControlClient(_) | FollowError::Interrupted => back_off.next_delay(),
            // The whole snapshot is fetched at once.
            FollowError::Incomplete(_) if self.etag.take().is_some() => Duration::ZERO,
            // Control would send the same snapshot again.
            FollowError::Incomplete(_) | FollowError::Unreadable(_) | FollowError::Invalid(_) => {
                Jitter::HALF.apply(self.poll)
            }
        }
    }

    async fn fetch(&mut self) -> Result<FetchOutcome, FollowError> {
        let fetched = self.source.fetch(self.etag.as_deref()).await?;
        self.metrics.control_answered();
        self.take(fetched).await
    }

    async fn take(&mut self, fetched: Fetched) -> Result<FetchOutcome, FollowError> {
        match fetched {
            Fetched::Unchanged { etag } => {
                self.renumber(etag).await?;
                Ok(FetchOutcome::Unchanged)
            }
            Fetched::Changed { etag, .. } if etag.is_some() && etag == self.etag => {
                Ok(FetchOutcome::Unchanged)
            }
            Fetched::Changed { etag, body } => {
                self.publish(body).await?;
                self.etag = etag;
                Ok(FetchOutcome::Changed)
            }
        }
    }

    /// Adopts a new version of the same content, so that all replicas report the
    /// same version. The tag of other content is ignored.
    async fn renumber(&mut self, etag: Option<String>) -> Result<(), FollowError> {
        let Some((etag, version)) = etag.and_then(|etag| renumbered(self.etag.as_deref(), etag))
        else {
            return Ok(());
        };
        if let Some(held) = self.current.held() {
            let current = Arc::clone(&self.current);
            let same = Snapshot {
                version,
                ..Snapshot::clone(&held)
            };
            tokio::task::spawn_blocking(move || current.publish(Arc::new(same)))
                .await
                .map_err(|_| FollowError::Interrupted)??;
        }
        self.etag = Some(etag);
        Ok(())
    }

    /// Parses and builds the tables away from the request threads.
    async fn publish(&self, body: Bytes) -> Result<(), FollowError> {
        let current = Arc::clone(&self.current);
        tokio::task::spawn_blocking(move || {
            let snapshot: Snapshot = serde_json::from_slice(&body)?;
            complete(&current, snapshot)
        })
        .await
        .unwrap_or(Err(FollowError::Interrupted))
    }
}

/// The tag and version, if the content is the same under another version.
fn renumbered(held: Option<&str>, received: String) -> Option<(String, u64)> {
    let (held_version, held_digest) = parts_of(held?)?;
    let (version, digest) = parts_of(&received)?;
    (held_digest == digest && held_version != version).then_some((received, version))
}

/// Version and digest of an `ETag` (`"<version>-<digest>"`).
fn parts_of(etag: &str) -> Option<(u64, &str)> {
    let (version, digest) = etag.trim_matches('"').split_once('-')?;
    Some((version.parse().ok()?, digest))
}

/// Adds the parts that the gateway already has and serves the result.
fn complete(current: &CurrentSnapshot, snapshot: Snapshot) -> Result<(), FollowError> {
    let held = current.held();
    let whole = snapshot.merge(held.as_deref())?;
    current.publish(Arc::new(whole))?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::renumbered;

    #[test]
    fn only_an_etag_of_the_same_content_is_adopted() {
        let renumbered_to = |etag: &str| renumbered(Some("\"7-aa\""), etag.to_owned());
        assert_eq!(renumbered_to("\"8-aa\""), Some(("\"8-aa\"".to_owned(), 8)));
        assert_eq!(renumbered_to("\"6-aa\""), Some(("\"6-aa\"".to_owned(), 6)));
        assert_eq!(renumbered_to("\"7-aa\""), None);
        assert_eq!(renumbered_to("\"8-bb\""), None);
        assert_eq!(renumbered_to("\"x\""), None);
        assert_eq!(renumbered(None, "\"8-aa\"".to_owned()), None);
    }
}
