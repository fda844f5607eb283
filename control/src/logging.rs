use std::io::IsTerminal;

use clap::ValueEnum;
use tracing_subscriber::EnvFilter;

use crate::Error;

/// How log lines look.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    /// For people.
    #[default]
    Text,
    /// One JSON object a line.
    Json,
}

/// Sends the process's events to standard error. To be called once, first.
///
/// # Errors
/// When `filter` is not a list of filter directives.
pub fn init_logging(filter: &str, format: LogFormat) -> Result<(), Error> {
    // The database's notices are about our own migrations.
    let quiet = if filter.contains("sqlx") {
        ""
    } else {
        ",sqlx::postgres::notice=warn"
    };
    let filter = EnvFilter::try_new(format!("{filter}{quiet}"))
        .map_err(|error| Error::Config(format!("--log: {error}")))?;
    let builder = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_ansi(std::io::stderr().is_terminal())
        .with_writer(std::io::stderr);
    let outcome = match format {
        LogFormat::Text => builder.try_init(),
        LogFormat::Json => builder.json().flatten_event(true).try_init(),
    };
    outcome.map_err(|_| Error::Internal("logging was set up twice"))
}
