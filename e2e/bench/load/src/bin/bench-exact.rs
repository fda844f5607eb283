//! Requests of which everything is known, through gateways, to an upstream that
//! is part of it; says on its first line where the upstreams listen.

use clap::Parser;
use fastllm_bench::exact::{Plan, run};

/// Asks gateways for what it answers itself, and writes down what was seen
#[derive(Debug, Parser)]
struct Flags {
    #[command(flatten)]
    plan: Plan,
}

fn main() -> anyhow::Result<()> {
    Ok(run(&Flags::parse().plan)?)
}
