//! The slim binary of the data plane.

use std::process::ExitCode;

use clap::Parser;
use fastllm_gateway::{Config, Error, init_logging, run, runtime, terminated};

/// An LLM gateway: OpenAI-compatible, in front of any number of upstreams.
#[derive(Debug, Parser)]
#[command(name = "fastllm-gateway", version)]
struct Flags {
    #[command(flatten)]
    config: Config,
}

/// Exit codes: 2 for what flags are to blame for, 1 for what happens later.
fn main() -> ExitCode {
    match start(Flags::parse().config) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let code = if is_configuration(&error) { 2 } else { 1 };
            complain(&error);
            ExitCode::from(code)
        }
    }
}

fn start(config: Config) -> anyhow::Result<()> {
    let _log = init_logging(&config.log, config.log_format).map_err(Error::from)?;
    runtime(&config)?.block_on(async {
        let terminated = terminated()?;
        Ok(run(config, terminated).await?)
    })
}

fn is_configuration(error: &anyhow::Error) -> bool {
    error
        .downcast_ref::<Error>()
        .is_some_and(Error::is_configuration)
}

#[expect(clippy::print_stderr, reason = "the last words of the process")]
fn complain(error: &anyhow::Error) {
    eprintln!("fastllm-gateway: {error:#}");
}
