//! The mock upstream; says on its first line where it listens.

use std::io::Write;
use std::net::SocketAddr;

use clap::Parser;
use fastllm_bench::upstream::Upstream;

/// Answers chat completions by the name of the model
#[derive(Debug, Parser)]
struct Flags {
    /// A loopback address; port 0 means a free one
    #[arg(long, default_value = "127.0.0.1:0")]
    listen: SocketAddr,
}

fn main() -> anyhow::Result<()> {
    let upstream = Upstream::bind(Flags::parse().listen)?;
    writeln!(std::io::stdout(), "{}", upstream.address()?)?;
    Ok(upstream.run()?)
}
