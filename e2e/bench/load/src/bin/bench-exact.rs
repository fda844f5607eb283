//! Sends scripted requests through gateways to its own upstreams; prints the
//! addresses of the upstreams on the first line.

use clap::Parser;
use fastllm_bench::exact::{ExactPlan, run};

/// Sends scripted requests through gateways to its own upstreams and records
/// the results
#[derive(Debug, Parser)]
struct Flags {
    #[command(flatten)]
    plan: ExactPlan,
}

fn main() -> anyhow::Result<()> {
    Ok(run(&Flags::parse().plan)?)
}
