//! Prints what each step costs that the crates without sockets take, as lines
//! of JSON.

mod answers;
mod decisions;
mod requests;

use clap::Parser;
use fastllm_steps::Stopwatch;

/// Times each step of a request
#[derive(Debug, Parser)]
struct Flags {
    /// Rounds of each step
    #[arg(long, default_value_t = 9)]
    rounds: usize,
    /// Milliseconds of CPU time that a round takes
    #[arg(long, default_value_t = 40, value_parser = clap::value_parser!(u64).range(1..=10_000))]
    round_ms: u64,
}

fn main() -> anyhow::Result<()> {
    let flags = Flags::parse();
    let watch = Stopwatch {
        rounds: flags.rounds,
        round_ns: flags.round_ms * 1_000_000,
    };
    requests::run(watch)?;
    decisions::run(watch)?;
    answers::run(watch)
}
