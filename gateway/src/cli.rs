//! The command line of the data plane: its own binary's, and what
//! `fastllm-proxy --role proxy` takes.

mod flags;

pub use flags::{CacheSharing, Flags, ForwardingFlags, SourceError};

use std::ffi::OsString;
use std::process::ExitCode;

use clap::Parser;
use clap::error::{ContextKind, ContextValue};
use fastllm_process::logging::{self, LogError};
use fastllm_process::{error, signals};

use crate::configuration_file::ConfigFile;
use crate::telemetry::ACCESS_TARGET;
use crate::{Error, run, runtime};

/// An LLM gateway: OpenAI-compatible, in front of any number of upstreams.
#[derive(Debug, Parser)]
#[command(name = "fastllm-gateway", version)]
struct Command {
    #[command(flatten)]
    flags: Flags,
}

/// Parses the arguments (the program's name first) and serves until it is
/// terminated. The exit code is 2 for invalid flags and 1 for later errors.
pub fn main(arguments: impl IntoIterator<Item = OsString>) -> ExitCode {
    let flags = match Command::try_parse_from(arguments) {
        Ok(command) => command.flags,
        Err(error) => silent(error).exit(),
    };
    if let Some(path) = &flags.check_config {
        return check(&flags.file(path));
    }
    match serve(flags) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            error::print("fastllm-gateway", &error);
            ExitCode::from(if error.is_configuration() { 2 } else { 1 })
        }
    }
}

/// Reports the problems of a configuration file; the exit code is 2 if it has errors.
fn check(file: &ConfigFile) -> ExitCode {
    let problems = file.check().problems;
    // A closed output is not an error.
    let _written = file.report(&problems, &mut std::io::stdout().lock());
    ExitCode::from(if problems.errors() > 0 { 2 } else { 0 })
}

/// The error without the given address: a rejected address may contain a
/// password, which must not be printed.
fn silent(mut error: clap::Error) -> clap::Error {
    let at_fault = error.get(ContextKind::InvalidArg).map(ToString::to_string);
    let addresses = ["--control-url", "--otel-endpoint"];
    if at_fault.is_some_and(|flag| addresses.iter().any(|name| flag.starts_with(name))) {
        let hidden = ContextValue::String("...".to_owned());
        let _given = error.insert(ContextKind::InvalidValue, hidden);
    }
    error
}

/// Why the program exits with an error.
#[derive(Debug, thiserror::Error)]
enum CommandError {
    #[error(transparent)]
    Source(#[from] SourceError),
    #[error(transparent)]
    Log(#[from] LogError),
    #[error(transparent)]
    Gateway(#[from] Error),
}

impl CommandError {
    /// Whether the flags are at fault, so that a restart would not help.
    fn is_configuration(&self) -> bool {
        match self {
            Self::Source(_) | Self::Log(_) => true,
            Self::Gateway(error) => error.is_configuration(),
        }
    }
}

fn serve(flags: Flags) -> Result<(), CommandError> {
    let logging = logging::Config {
        format: flags.log_format,
        flatten_fields: true,
        include_spans: false,
        preformatted_target: Some(ACCESS_TARGET),
    };
    let _log = logging.init_buffered(&flags.log)?;
    let config = flags.config()?;
    let runtime = runtime().map_err(|error| setup("the runtime", &error))?;
    runtime.block_on(async {
        let shutdown = signals::shutdown().map_err(|error| setup("signals", &error))?;
        run(config, shutdown).await?;
        Ok(())
    })
}

fn setup(what: &'static str, error: &std::io::Error) -> Error {
    let reason = error.to_string();
    Error::Setup { what, reason }
}
