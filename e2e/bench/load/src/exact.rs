//! Scripted requests: the client, the reported usage, failures and disconnects
//! are pure functions of the request number. The number is sent as the request
//! ID (`x-7`) from client to upstream and appears in the usage row. The
//! observations of client and upstream are written to a file for comparison
//! with the rows.
//!
//! Clients and upstream share a thread, so that a client can wait until the
//! upstream has received a request.

use std::cell::Cell;
use std::io::{self, Write};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::rc::Rc;

use serde::Deserialize;
use tokio::net::TcpListener;
use tokio::task::{JoinSet, LocalSet, spawn_blocking};

use crate::{Error, local};

mod case;
mod client;
mod outcome;
mod shared;
mod upstream;

use client::{ClientPool, Gateway, now};
use shared::SharedState;

/// The requests to send.
#[derive(Debug, Clone, clap::Args)]
pub struct ExactPlan {
    /// Number of requests
    #[arg(long, default_value_t = 100_000, value_parser = clap::value_parser!(u32).range(1..=10_000_000))]
    pub requests: u32,
    /// Maximum number of requests per second
    #[arg(long, default_value_t = 1500, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub rate: u32,
    /// Maximum number of concurrent requests
    #[arg(long, default_value_t = 48, value_parser = clap::value_parser!(u16).range(1..=4096))]
    pub clients: u16,
    /// Path of the CSV file for the observations
    #[arg(long)]
    pub out: PathBuf,
}

/// The input that is available only after the upstreams listen.
#[derive(Debug, Deserialize)]
struct Start {
    gateways: Vec<SocketAddr>,
    keys: Vec<String>,
}

/// Progress is printed after this many ended requests.
const PROGRESS_INTERVAL: u32 = 500;

/// Prints the addresses of both upstreams; reads gateways and keys as one line
/// of JSON; prints the number of ended requests at intervals, and `done` at the
/// end.
pub fn run(plan: &ExactPlan) -> Result<(), Error> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    LocalSet::new().block_on(&runtime, run_plan(plan))
}

async fn run_plan(plan: &ExactPlan) -> Result<(), Error> {
    let shared = Rc::new(SharedState::new(plan.requests));
    let mut upstreams = JoinSet::new();
    let mut addresses = Vec::new();
    for _ in 0..2 {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        addresses.push(listener.local_addr()?.to_string());
        upstreams.spawn_local(upstream::serve(listener, Rc::clone(&shared)));
    }
    print_line(&addresses.join(" "))?;
    let Start { gateways, keys } = start().await?;
    if keys.len() != case::KEYS || gateways.is_empty() {
        return Err(Error::Malformed("number of keys or gateways"));
    }
    let gateway = |address| {
        Ok::<_, Error>(Gateway {
            address: local(address)?,
            gone: Cell::new(false),
        })
    };
    let pool = Rc::new(ClientPool {
        shared: Rc::clone(&shared),
        gateways: gateways
            .into_iter()
            .map(gateway)
            .collect::<Result<_, _>>()?,
        keys,
        requests: plan.requests,
        rate: plan.rate,
        next: Cell::new(0),
        began: now(),
    });
    let mut clients = JoinSet::new();
    for _ in 0..plan.clients {
        clients.spawn_local(Rc::clone(&pool).run(print_progress));
    }
    for client in clients.join_all().await {
        client?;
    }
    let file = std::fs::File::create(&plan.out)?;
    outcome::write(&shared.take_outcomes(), io::BufWriter::new(file))?;
    print_line("done")
}

fn print_progress(ended: u32) {
    if ended.is_multiple_of(PROGRESS_INTERVAL) {
        // A closed pipe is not an error here.
        let _printed = print_line(&ended.to_string());
    }
}

async fn start() -> Result<Start, Error> {
    let read = spawn_blocking(|| {
        let mut line = String::new();
        io::stdin().read_line(&mut line).map(|_| line)
    });
    let line = read.await.map_err(io::Error::other)??;
    serde_json::from_str(&line).map_err(|_| Error::Malformed("gateways and keys"))
}

fn print_line(line: &str) -> Result<(), Error> {
    let mut out = io::stdout().lock();
    writeln!(out, "{line}")?;
    out.flush().map_err(Error::from)
}
