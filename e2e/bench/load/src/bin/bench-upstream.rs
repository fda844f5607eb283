//! The mock upstream; prints its address on the first line.

use std::io::Write;
use std::net::SocketAddr;

use clap::Parser;
use fastllm_bench::upstream::Upstream;

/// Responds to chat completions according to the name of the model
#[derive(Debug, Parser)]
struct Flags {
    /// A loopback address; port 0 selects a free one
    #[arg(long, default_value = "127.0.0.1:0")]
    listen: SocketAddr,
}

fn main() -> anyhow::Result<()> {
    let upstream = Upstream::bind(Flags::parse().listen)?;
    writeln!(std::io::stdout(), "{}", upstream.address()?)?;
    Ok(upstream.run()?)
}
