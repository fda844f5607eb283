use std::io::{self, BufWriter, Stderr, Write};
use std::time::Duration;

use tracing_appender::non_blocking::{NonBlockingBuilder, WorkerGuard};

use super::{Config, LogError};

/// Maximum number of lines that wait for a slow reader of the log; later ones
/// are dropped.
const MAX_QUEUED_LINES: usize = 16_384;

/// Size of the writer's buffer in bytes. The writer's thread flushes whenever
/// no line is queued, so this saves calls under load and delays nothing.
const BUFFER_BYTES: usize = 64 << 10;

/// Pause of the writer's thread after each flush: waking it for each line would
/// cost the threads that serve requests a system call per line.
const FLUSH_PAUSE: Duration = Duration::from_millis(10);

/// Writes the remaining lines when dropped; `main` holds it until the end.
#[derive(Debug)]
pub struct LogGuard {
    _worker: WorkerGuard,
}

impl Config {
    /// Sets up logging for the whole process, without colors. A thread of its
    /// own writes the lines, so that a slow reader does not delay requests.
    pub fn init_buffered(self, filter: &str) -> Result<LogGuard, LogError> {
        let output = Paused(BufWriter::with_capacity(BUFFER_BYTES, io::stderr()));
        let (writer, worker) = NonBlockingBuilder::default()
            .lossy(true)
            .buffered_lines_limit(MAX_QUEUED_LINES)
            .thread_name("log")
            .finish(output);
        self.install(filter, writer, false)?;
        Ok(LogGuard { _worker: worker })
    }
}

/// Standard error, flushed at most once every [`FLUSH_PAUSE`].
struct Paused(BufWriter<Stderr>);

impl Write for Paused {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.write(bytes)
    }

    #[expect(
        clippy::disallowed_methods,
        reason = "only the log's thread sleeps, so that lines are written together"
    )]
    fn flush(&mut self) -> io::Result<()> {
        let flushed = self.0.flush();
        std::thread::sleep(FLUSH_PAUSE);
        flushed
    }
}
