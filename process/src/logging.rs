//! Logging to standard error.

#[cfg(feature = "buffered-logging")]
mod buffered;
mod line;

use std::io::{self, IsTerminal};

#[cfg(feature = "buffered-logging")]
pub use buffered::LogGuard;
use line::LineFormat;
use tracing_subscriber::EnvFilter;
pub use tracing_subscriber::filter::ParseError;
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::util::SubscriberInitExt;

/// Format of log lines.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum LogFormat {
    /// For people.
    #[default]
    Text,
    /// One JSON object per line.
    Json,
}

/// How log lines are written.
#[derive(Debug, Clone, Copy, Default)]
pub struct Config {
    /// Format of the lines.
    pub format: LogFormat,
    /// Whether an event's fields are members of the JSON object itself, instead
    /// of its member `fields`.
    pub flatten_fields: bool,
    /// Whether JSON lines include the spans of an event.
    pub include_spans: bool,
    /// Target of events whose message is a complete line already; it is written
    /// as it is.
    pub preformatted_target: Option<&'static str>,
}

/// Why logging could not be set up.
#[derive(Debug, thiserror::Error)]
pub enum LogError {
    /// The filter directives are invalid.
    #[error("invalid log filter")]
    Filter(#[source] ParseError),
    /// The process has a logger already.
    #[error("logging is already initialized")]
    AlreadyInitialized,
}

/// Returns `text` if it is a list of filter directives.
pub fn parse_filter(text: &str) -> Result<String, ParseError> {
    EnvFilter::try_new(text).map(|_| text.to_owned())
}

impl Config {
    /// Sets up logging for the whole process. Each line is written when its
    /// event occurs, with colors if standard error is a terminal.
    pub fn init(self, filter: &str) -> Result<(), LogError> {
        self.install(filter, io::stderr, io::stderr().is_terminal())
    }

    fn install<W>(self, filter: &str, writer: W, ansi: bool) -> Result<(), LogError>
    where
        W: for<'w> MakeWriter<'w> + Send + Sync + 'static,
    {
        let Self {
            format,
            flatten_fields,
            include_spans,
            preformatted_target,
        } = self;
        let filter = EnvFilter::try_new(filter).map_err(LogError::Filter)?;
        let lines = tracing_subscriber::fmt()
            .with_env_filter(filter)
            .with_ansi(ansi)
            .with_writer(writer);
        let installed = match format {
            LogFormat::Text => lines
                .map_event_format(|format| LineFormat::new(format, preformatted_target))
                .finish()
                .try_init(),
            LogFormat::Json => lines
                .json()
                .flatten_event(flatten_fields)
                .with_current_span(include_spans)
                .with_span_list(include_spans)
                .map_event_format(|format| LineFormat::new(format, preformatted_target))
                .finish()
                .try_init(),
        };
        installed.map_err(|_| LogError::AlreadyInitialized)
    }
}

#[cfg(test)]
mod tests {
    use super::parse_filter;

    #[test]
    fn a_filter_is_a_list_of_directives() {
        assert_eq!(parse_filter("info,kube=debug").unwrap(), "info,kube=debug");
        assert!(parse_filter("a=b=c").is_err());
    }
}
