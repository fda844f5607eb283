use std::fmt;
use std::io::{self, BufWriter, Stderr, Write};
use std::time::Duration;

use tracing::field::{Field, Visit};
use tracing::{Event, Subscriber};
use tracing_appender::non_blocking::{NonBlockingBuilder, WorkerGuard};
use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::registry::LookupSpan;
use tracing_subscriber::util::SubscriberInitExt;

use super::access;

/// Lines that wait for a slow reader of the log; later ones are lost.
const WAITING_LINES: usize = 16_384;

/// Lines are gathered up to so many bytes. The writer's thread flushes whenever
/// no line waits, so this saves calls under load and delays nothing.
const GATHERED: usize = 64 << 10;

/// How long the writer's thread rests after it has written: to be woken by each
/// line would cost the threads that serve requests a system call for each.
const REST: Duration = Duration::from_millis(10);

/// How log lines look.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum LogFormat {
    /// For people.
    #[default]
    Text,
    /// One object per line.
    Json,
}

/// Why logging could not be set up.
#[derive(Debug, thiserror::Error)]
pub enum LogError {
    /// Not a filter.
    #[error("the log filter is not understood: {0}")]
    Filter(String),
    /// Somebody else has set up logging before.
    #[error("logging is set up already")]
    AlreadySet,
}

/// Writes out what is left when dropped; `main` holds it until the end.
#[derive(Debug)]
pub struct LogGuard {
    _worker: WorkerGuard,
}

/// Sets up logging to standard error for the whole process. A writer on its
/// own thread keeps a slow reader from holding up requests.
pub fn init_logging(filter: &str, format: LogFormat) -> Result<LogGuard, LogError> {
    let filter = EnvFilter::builder()
        .parse(filter)
        .map_err(|error| LogError::Filter(error.to_string()))?;
    let (writer, worker) = NonBlockingBuilder::default()
        .lossy(true)
        .buffered_lines_limit(WAITING_LINES)
        .thread_name("log")
        .finish(Resting(BufWriter::with_capacity(GATHERED, io::stderr())));
    let lines = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(writer);
    let set = match format {
        LogFormat::Text => lines
            .with_ansi(false)
            .map_event_format(Lines)
            .finish()
            .try_init(),
        LogFormat::Json => lines
            .json()
            .flatten_event(true)
            .with_current_span(false)
            .with_span_list(false)
            .map_event_format(Lines)
            .finish()
            .try_init(),
    };
    set.map_err(|_| LogError::AlreadySet)?;
    Ok(LogGuard { _worker: worker })
}

/// Standard error, at most once every [`REST`].
struct Resting(BufWriter<Stderr>);

impl Write for Resting {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.write(bytes)
    }

    #[expect(
        clippy::disallowed_methods,
        reason = "the log's own thread rests, so that lines gather"
    )]
    fn flush(&mut self) -> io::Result<()> {
        let flushed = self.0.flush();
        std::thread::sleep(REST);
        flushed
    }
}

/// Passes access lines on as they are; formats everything else.
struct Lines<F>(F);

impl<S, N, F> FormatEvent<S, N> for Lines<F>
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
    F: FormatEvent<S, N>,
{
    fn format_event(
        &self,
        context: &FmtContext<'_, S, N>,
        writer: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        if event.metadata().target() != access::TARGET {
            return self.0.format_event(context, writer, event);
        }
        let mut line = Line {
            writer,
            written: Ok(()),
        };
        event.record(&mut line);
        line.written
    }
}

/// An event's message, and the end of its line.
struct Line<'a> {
    writer: Writer<'a>,
    written: fmt::Result,
}

impl Visit for Line<'_> {
    fn record_str(&mut self, _field: &Field, value: &str) {
        self.written = self
            .writer
            .write_str(value)
            .and_then(|()| self.writer.write_char('\n'));
    }

    fn record_debug(&mut self, _field: &Field, value: &dyn fmt::Debug) {
        self.written = writeln!(self.writer, "{value:?}");
    }
}
