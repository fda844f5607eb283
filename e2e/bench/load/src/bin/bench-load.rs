//! The load generator. Between its steps it waits for a line on its input, so
//! that the caller can read counters while no request is in progress.

use std::io::{self, Write};
use std::time::Duration;

use clap::{Parser, Subcommand};
use fastllm_bench::load::{Load, LoadPlan};

/// Sends chat completion requests to a gateway
#[derive(Debug, Parser)]
struct Flags {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Warms up, prints `ready`, waits for a line, measures for a while, prints
    /// JSON
    Run {
        #[command(flatten)]
        plan: LoadPlan,
        /// Duration of the measured window, in milliseconds
        #[arg(long, default_value_t = 1200, value_parser = clap::value_parser!(u64).range(1..=60_000))]
        window_ms: u64,
        /// Duration of the warm-up, in milliseconds
        #[arg(long, default_value_t = 300, value_parser = clap::value_parser!(u64).range(1..=60_000))]
        warm_up_ms: u64,
    },
    /// Opens streams, prints `ready`, waits for a line, prints the number of
    /// ended streams
    Hold {
        #[command(flatten)]
        plan: LoadPlan,
        /// Time limit for all streams to begin, in seconds
        #[arg(long, default_value_t = 60)]
        timeout: u64,
    },
}

fn main() -> anyhow::Result<()> {
    match Flags::parse().command {
        Command::Run {
            plan,
            window_ms,
            warm_up_ms,
        } => {
            let mut load = Load::connect(&plan)?;
            load.window(Duration::from_millis(warm_up_ms))?;
            ready()?;
            let outcome = load.window(Duration::from_millis(window_ms))?;
            serde_json::to_writer(io::stdout(), &outcome)?;
            writeln!(io::stdout())?;
        }
        Command::Hold { plan, timeout } => {
            let mut load = Load::connect(&plan)?;
            load.hold(Duration::from_secs(timeout))?;
            ready()?;
            writeln!(io::stdout(), "{}", load.lost())?;
        }
    }
    Ok(())
}

/// Says so, and waits until it may go on.
fn ready() -> io::Result<()> {
    writeln!(io::stdout(), "ready")?;
    let mut line = String::new();
    io::stdin().read_line(&mut line).map(drop)
}
