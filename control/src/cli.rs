//! The command line of the control plane: its own binary's, and what
//! `fastllm-proxy --role control` and the subcommands take.

use std::ffi::OsString;
use std::io::Write;
use std::process::ExitCode;

use clap::Parser;
use tokio::signal::unix::{SignalKind, signal};

use crate::{
    Command, Config, Error, LogFormat, PasswordOutcome, SetPassword, init_logging,
    openapi_document, run, set_password,
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
            complain(&error);
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
            runtime.block_on(give_password(&arguments))
        }
        Some(Command::Openapi) => {
            let document = openapi_document()?;
            let written = std::io::stdout().write_all(document.as_bytes());
            written.map_err(|_| Error::Internal("standard output is closed"))
        }
    }
}

async fn give_password(arguments: &SetPassword) -> Result<(), Error> {
    let name = &arguments.name;
    match set_password(arguments).await? {
        PasswordOutcome::Set => tracing::info!(name, "password set"),
        PasswordOutcome::Kept => tracing::info!(name, "there is a password; nothing changed"),
    }
    Ok(())
}

async fn serve(config: Config) -> Result<(), Error> {
    let listen = |kind| signal(kind).map_err(|_| Error::Internal("signals cannot be handled"));
    let mut terminate = listen(SignalKind::terminate())?;
    let mut interrupt = listen(SignalKind::interrupt())?;
    let shutdown = async {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
    };
    run(config, shutdown).await
}

#[expect(clippy::print_stderr, reason = "the last words of the process")]
fn complain(error: &Error) {
    eprintln!("fastllm-control: {error}");
}
