//! The command line of the control plane, for the `fastllm-control` binary and for
//! `fastllm-proxy --role control` and its subcommands.

use std::ffi::OsString;
use std::io::Write;
use std::process::ExitCode;

use clap::Parser;
use fastllm_process::logging::{self, LogError, LogFormat};
use fastllm_process::{error, signals};

use crate::{
    Command, Config, Error, PasswordOutcome, SetPassword, openapi_document, run, set_password,
};

/// Control plane of FastLLM Proxy: admin API, usage, audit, snapshots.
#[derive(Parser)]
#[command(
    name = "fastllm-control",
    version,
    args_conflicts_with_subcommands = true
)]
struct Flags {
    #[command(flatten)]
    config: Config,
    #[command(subcommand)]
    command: Option<Command>,
}

/// Parses the arguments (the program's name first) and runs the command. The exit
/// code is 2 for invalid flags or environment variables and 1 for later failures.
pub fn main(arguments: impl IntoIterator<Item = OsString>) -> ExitCode {
    let flags = match Flags::try_parse_from(arguments) {
        Ok(flags) => flags,
        Err(error) => error.exit(),
    };
    match start(flags) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            error::print("fastllm-control", &error);
            ExitCode::from(error.exit_code())
        }
    }
}

fn start(flags: Flags) -> Result<(), Error> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .map_err(|source| Error::Io {
            what: "start the runtime",
            source,
        })?;
    match flags.command {
        None => {
            init_logging(&flags.config.log, flags.config.log_format)?;
            runtime.block_on(serve(flags.config))
        }
        Some(Command::SetPassword(arguments)) => {
            init_logging("info", LogFormat::Text)?;
            runtime.block_on(set_user_password(&arguments))
        }
        Some(Command::Openapi) => {
            let document = openapi_document()?;
            let written = std::io::stdout().write_all(document.as_bytes());
            written.map_err(|source| Error::Io {
                what: "write to standard output",
                source,
            })
        }
    }
}

async fn set_user_password(arguments: &SetPassword) -> Result<(), Error> {
    let name = &arguments.name;
    match set_password(arguments).await? {
        PasswordOutcome::Set => tracing::info!(name, "password set"),
        PasswordOutcome::Kept => tracing::info!(
            name,
            "the principal already has a password; nothing changed"
        ),
    }
    Ok(())
}

async fn serve(config: Config) -> Result<(), Error> {
    let shutdown = signals::shutdown().map_err(|source| Error::Io {
        what: "install signal handlers",
        source,
    })?;
    run(config, shutdown).await
}

fn init_logging(filter: &str, format: LogFormat) -> Result<(), LogError> {
    // The database sends notices about this project's own migrations only.
    let quiet = if filter.contains("sqlx") {
        ""
    } else {
        ",sqlx::postgres::notice=warn"
    };
    let config = logging::Config {
        format,
        flatten_fields: true,
        include_spans: true,
        preformatted_target: None,
    };
    config.init(&format!("{filter}{quiet}"))
}
