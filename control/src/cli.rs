//! The command line of the control plane: its own binary's, and what
//! `fastllm-proxy --role control` and the subcommands take.

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

/// Parses the arguments (the program's name first), does what they say, and
/// says how that ended: 2 for what flags and variables are to blame for, 1 for
/// what happened later.
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
        .map_err(|_| Error::Internal("the runtime cannot start"))?;
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
            written.map_err(|_| Error::Internal("standard output is closed"))
        }
    }
}

async fn set_user_password(arguments: &SetPassword) -> Result<(), Error> {
    let name = &arguments.name;
    match set_password(arguments).await? {
        PasswordOutcome::Set => tracing::info!(name, "password set"),
        PasswordOutcome::Kept => tracing::info!(name, "there is a password; nothing changed"),
    }
    Ok(())
}

async fn serve(config: Config) -> Result<(), Error> {
    let shutdown = signals::shutdown().map_err(|_| Error::Internal("signals cannot be handled"))?;
    run(config, shutdown).await
}

fn init_logging(filter: &str, format: LogFormat) -> Result<(), LogError> {
    // Notices of the database concern our own migrations.
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
