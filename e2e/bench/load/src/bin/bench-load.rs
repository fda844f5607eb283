//! The load generator. Between its steps it waits for a line on its input, so
//! that whoever started it can read counters while nothing is under way.

use std::io::{self, Write};
use std::time::Duration;

use clap::{Parser, Subcommand};
use fastllm_bench::load::{Load, Plan};

/// Asks a gateway for chat completions
#[derive(Debug, Parser)]
struct Flags {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Warms up, says `ready`, waits for a line, asks for a while, prints JSON
    Run {
        #[command(flatten)]
        plan: Plan,
        /// Milliseconds that the window takes
        #[arg(long, default_value_t = 1200, value_parser = clap::value_parser!(u64).range(1..=60_000))]
        window_ms: u64,
        /// Milliseconds of asking before it
        #[arg(long, default_value_t = 300, value_parser = clap::value_parser!(u64).range(1..=60_000))]
        warm_up_ms: u64,
    },
    /// Opens streams, says `ready`, waits for a line, prints how many have ended
    Hold {
        #[command(flatten)]
        plan: Plan,
        /// Seconds until all must have begun
        #[arg(long, default_value_t = 60)]
        patience: u64,
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
        Command::Hold { plan, patience } => {
            let mut load = Load::connect(&plan)?;
            load.hold(Duration::from_secs(patience))?;
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
