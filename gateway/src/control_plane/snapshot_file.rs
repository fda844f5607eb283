use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use fastllm_contract::Snapshot;
use fastllm_process::error::Chain;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio_util::sync::CancellationToken;

use crate::snapshot::CurrentSnapshot;

/// The last-known-good snapshot on disk. It contains credentials, so its mode
/// is 0600.
#[derive(Debug, Clone)]
pub(crate) struct SnapshotFile {
    path: PathBuf,
}

/// Why the copy on disk cannot be used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum DiskError {
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error("invalid content")]
    Unreadable(#[from] serde_json::Error),
    #[error("writing was interrupted")]
    Interrupted,
}

impl SnapshotFile {
    pub(crate) fn new(path: PathBuf) -> Self {
        Self { path }
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Reads the snapshot; nothing if the file does not exist.
    pub(crate) fn read(&self) -> Result<Option<Snapshot>, DiskError> {
        read_json(&self.path)
    }

    pub(crate) fn write(&self, snapshot: &Snapshot) -> Result<(), DiskError> {
        write_json(&self.path, snapshot)
    }
}

/// Reads a JSON file; nothing if it does not exist.
pub(crate) fn read_json<T: DeserializeOwned>(path: &Path) -> Result<Option<T>, DiskError> {
    match fs::read(path) {
        Ok(bytes) => Ok(Some(serde_json::from_slice(&bytes)?)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// Replaces a JSON file atomically: readers see the old or the new content, even
/// after a power failure. Only the owner may read the file.
pub(crate) fn write_json(path: &Path, value: &impl Serialize) -> Result<(), DiskError> {
    let bytes = serde_json::to_vec(value)?;
    let folder = path.parent().filter(|path| !path.as_os_str().is_empty());
    let folder = folder.unwrap_or(Path::new("."));
    let next = path.with_extension(format!("{}.tmp", std::process::id()));
    let written = replace(&next, path, &bytes, folder);
    if written.is_err() {
        // A failure to remove the file cannot be handled further.
        let _left = fs::remove_file(&next);
    }
    Ok(written?)
}

fn replace(next: &Path, path: &Path, bytes: &[u8], folder: &Path) -> io::Result<()> {
    // An existing file of this name may have another mode.
    match fs::remove_file(next) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let mut file = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(next)?;
    file.write_all(bytes)?;
    file.sync_all()?;
    drop(file);
    fs::rename(next, path)?;
    File::open(folder)?.sync_all()
}

/// Writes each published snapshot; of several pending ones, only the newest.
#[derive(Debug)]
pub(crate) struct SnapshotWriter {
    cache: SnapshotFile,
    current: Arc<CurrentSnapshot>,
    written: Option<Arc<Snapshot>>,
    failing: bool,
}

impl SnapshotWriter {
    pub(crate) fn new(cache: SnapshotFile, current: Arc<CurrentSnapshot>) -> Self {
        Self {
            cache,
            current,
            written: None,
            failing: false,
        }
    }

    /// Runs until `stop`, then writes any pending snapshot.
    pub(crate) async fn run(mut self, stop: CancellationToken) {
        let mut changes = self.current.changes();
        loop {
            self.write_news().await;
            tokio::select! {
                alive = changes.changed() => if alive.is_err() { return },
                () = stop.cancelled() => {
                    self.write_news().await;
                    return;
                }
            }
        }
    }

    async fn write_news(&mut self) {
        let Some(held) = self.current.held() else {
            return;
        };
        if self
            .written
            .as_ref()
            .is_some_and(|last| Arc::ptr_eq(last, &held))
        {
            return;
        }
        let result = self.write(Arc::clone(&held)).await;
        self.written = Some(held);
        let failed_before = std::mem::replace(&mut self.failing, result.is_err());
        match result {
            Err(error) if !failed_before => tracing::warn!(
                path = %self.cache.path().display(),
                error = %Chain(&error),
                "cannot write the snapshot to disk; a restart without the control plane would lose it"
            ),
            _ => {}
        }
    }

    async fn write(&self, snapshot: Arc<Snapshot>) -> Result<(), DiskError> {
        let cache = self.cache.clone();
        tokio::task::spawn_blocking(move || cache.write(&snapshot))
            .await
            .unwrap_or(Err(DiskError::Interrupted))
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use fastllm_contract::{FORMAT, Section, Snapshot};

    use super::SnapshotFile;

    fn snapshot(version: u64) -> Snapshot {
        Snapshot {
            teams: Section::default(),
            format: FORMAT,
            version,
            open: false,
            models: Section::complete("m", Vec::new()),
            principals: Section::complete("p", Vec::new()),
            virtual_models: Section::default(),
            fallback_model: None,
            key_shards: Vec::new(),
        }
    }

    #[test]
    fn a_written_snapshot_is_readable_by_its_owner_only() {
        let folder = tempfile::tempdir().unwrap();
        let cache = SnapshotFile::new(folder.path().join("snapshot.json"));
        assert!(cache.read().unwrap().is_none());
        for version in [1, 2] {
            cache.write(&snapshot(version)).unwrap();
            assert_eq!(cache.read().unwrap(), Some(snapshot(version)));
        }
        let mode = std::fs::metadata(cache.path())
            .unwrap()
            .permissions()
            .mode();
        assert_eq!(mode & 0o777, 0o600);
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
    }

    #[test]
    fn a_damaged_copy_is_an_error_and_a_failed_write_leaves_no_file() {
        let folder = tempfile::tempdir().unwrap();
        let cache = SnapshotFile::new(folder.path().join("snapshot.json"));
        std::fs::write(cache.path(), b"{\"format\":1,").unwrap();
        assert!(cache.read().is_err());
        let nowhere = SnapshotFile::new(folder.path().join("none/snapshot.json"));
        assert!(nowhere.write(&snapshot(1)).is_err());
    }
}
