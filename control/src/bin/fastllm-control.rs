//! The control plane's own binary.

use std::io::Write;
use std::process::ExitCode;

use clap::Parser;
use fastllm_control::{
    Command, Config, LogFormat, PasswordOutcome, init_logging, openapi_document, run, set_password,
};
use tokio::signal::unix::{SignalKind, signal};

/// Control plane of FastLLM Proxy: admin API, usage, audit, snapshots.
#[derive(Parser)]
#[command(version, args_conflicts_with_subcommands = true)]
struct Cli {
    #[command(flatten)]
    config: Config,
    #[command(subcommand)]
    command: Option<Command>,
}

fn main() -> ExitCode {
    match start(Cli::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!("{error:#}");
            let code = error.downcast_ref::<fastllm_control::Error>();
            ExitCode::from(code.map_or(1, fastllm_control::Error::exit_code))
        }
    }
}

fn start(cli: Cli) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()?;
    match cli.command {
        None => {
            init_logging(&cli.config.log, cli.config.log_format)?;
            runtime.block_on(serve(cli.config))
        }
        Some(Command::SetPassword(arguments)) => {
            init_logging("info", LogFormat::Text)?;
            match runtime.block_on(set_password(&arguments))? {
                PasswordOutcome::Set => tracing::info!(name = arguments.name, "password set"),
                PasswordOutcome::Kept => {
                    tracing::info!(
                        name = arguments.name,
                        "there is a password; nothing changed"
                    );
                }
            }
            Ok(())
        }
        Some(Command::Openapi) => {
            std::io::stdout().write_all(openapi_document()?.as_bytes())?;
            Ok(())
        }
    }
}

async fn serve(config: Config) -> anyhow::Result<()> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let shutdown = async {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
    };
    run(config, shutdown).await?;
    Ok(())
}
