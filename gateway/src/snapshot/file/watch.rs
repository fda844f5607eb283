use std::sync::Arc;
use std::time::Duration;

use fastllm_engine::InvalidSnapshot;
use tokio::signal::unix::Signal;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use super::config_file::{ConfigFile, FileContent, FileError, IncludedFile, log};
use super::problem::Problems;
use super::read::FileContents;
use crate::snapshot::CurrentSnapshot;
use crate::telemetry::Metrics;

/// Keeps [`CurrentSnapshot`] in sync with a file: reloads it on SIGHUP and when
/// its content changes. A file that cannot be used changes nothing.
#[derive(Debug)]
pub(crate) struct Watcher {
    file: ConfigFile,
    current: Arc<CurrentSnapshot>,
    metrics: Arc<Metrics>,
    /// Interval between checks of the file; 0 reloads on SIGHUP only.
    poll: Duration,
    seen: FileContent,
    included: Vec<IncludedFile>,
    affinity_slots: usize,
}

impl Watcher {
    /// Reads the file for the first time and serves it.
    pub(crate) fn start(
        file: ConfigFile,
        current: Arc<CurrentSnapshot>,
        metrics: Arc<Metrics>,
        poll: Duration,
    ) -> Result<Self, FileError> {
        let text = file
            .text()
            .map_err(|error| file.error(Problems::of_file(error)))?;
        let (reading, included) = file.read(&text);
        let Some(contents) = reading.contents else {
            return Err(file.error(reading.problems));
        };
        log(&file.path, &reading.problems);
        let affinity_slots = contents.tuning.affinity_slots;
        publish(&current, contents)
            .map_err(|error| file.error(Problems::of_file(error.to_string())))?;
        Ok(Self {
            file,
            current,
            metrics,
            poll,
            seen: FileContent::of(&Ok(text)),
            included,
            affinity_slots,
        })
    }

    /// Runs until `stop`; `hang_up` receives SIGHUP.
    pub(crate) async fn run(mut self, mut hang_up: Signal, stop: CancellationToken) {
        loop {
            let requested = tokio::select! {
                Some(()) = hang_up.recv() => true,
                () = sleep(self.poll), if !self.poll.is_zero() => false,
                () = stop.cancelled() => return,
            };
            // Disk access and building tables run off the request threads.
            let looked = tokio::task::spawn_blocking(move || {
                self.look(requested);
                self
            });
            match looked.await {
                Ok(watcher) => self = watcher,
                Err(_) => return,
            }
        }
    }

    fn look(&mut self, requested: bool) {
        let text = self.file.text();
        let content = FileContent::of(&text);
        let is_unchanged = |included| self.file.is_unchanged(included);
        if !requested && content == self.seen && self.included.iter().all(is_unchanged) {
            return;
        }
        self.seen = content;
        let served = match text {
            Ok(text) => self.serve(&text),
            Err(error) => Err(error),
        };
        let path = self.file.path.display();
        match served {
            Ok(()) => tracing::info!(file = %path, "configuration file reloaded"),
            Err(error) => {
                self.metrics.poll_failed();
                tracing::error!(file = %path, error, "cannot reload the configuration file; the previous configuration stays in effect");
            }
        }
    }

    fn serve(&mut self, text: &str) -> Result<(), String> {
        let (reading, included) = self.file.read(text);
        self.included = included;
        log(&self.file.path, &reading.problems);
        let contents = reading
            .contents
            .ok_or("the configuration file cannot be used")?;
        // A partly written file may lack its keys.
        let was_open = self.current.tables().is_none_or(|tables| tables.open());
        if contents.snapshot.open && !was_open {
            return Err("without keys the gateway is open to everyone: restart to apply".into());
        }
        if contents.tuning.affinity_slots != self.affinity_slots {
            tracing::warn!("fastllm.affinity_slots has changed: this change requires a restart");
        }
        publish(&self.current, contents).map_err(|error| error.to_string())
    }
}

fn publish(current: &CurrentSnapshot, contents: FileContents) -> Result<(), InvalidSnapshot> {
    let FileContents { snapshot, tuning } = contents;
    current.publish_tuned(Arc::new(snapshot), &tuning)?;
    Ok(())
}
