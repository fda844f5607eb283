//! The scripted control plane; prints its address on the first line.

use std::io::Write;
use std::net::SocketAddr;
use std::path::PathBuf;

use clap::Parser;
use fastllm_bench::control;

/// Serves snapshots from files and counts usage events
#[derive(Debug, Parser)]
struct Flags {
    /// A loopback address; port 0 selects a free one
    #[arg(long, default_value = "127.0.0.1:0")]
    listen: SocketAddr,
    /// Directory of the snapshots
    #[arg(long)]
    snapshots: PathBuf,
}

fn main() -> anyhow::Result<()> {
    let flags = Flags::parse();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    runtime.block_on(async {
        let listener = control::bind(flags.listen).await?;
        writeln!(std::io::stdout(), "{}", listener.local_addr()?)?;
        Ok(control::run(listener, &flags.snapshots).await?)
    })
}
