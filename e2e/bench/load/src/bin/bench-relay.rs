//! The bare relay; prints its address on the first line.

use std::io::Write;
use std::net::SocketAddr;
use std::path::PathBuf;

use clap::Parser;
use fastllm_bench::relay;

/// Copies bytes between every connection and the target
#[derive(Debug, Parser)]
struct Flags {
    /// A loopback address; port 0 selects a free one
    #[arg(long, default_value = "127.0.0.1:0")]
    listen: SocketAddr,
    /// Address of the target
    #[arg(long)]
    target: SocketAddr,
    /// PEM certificates to trust: uses TLS to the target
    #[arg(long)]
    tls_ca: Option<PathBuf>,
}

fn main() -> anyhow::Result<()> {
    let flags = Flags::parse();
    let tls = flags.tls_ca.as_deref().map(relay::trusting).transpose()?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_io()
        .build()?;
    runtime.block_on(async {
        let listener = tokio::net::TcpListener::bind(fastllm_bench::local(flags.listen)?).await?;
        writeln!(std::io::stdout(), "{}", listener.local_addr()?)?;
        Ok(relay::run(listener, flags.target, tls).await?)
    })
}
