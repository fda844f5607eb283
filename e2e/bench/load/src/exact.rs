//! Requests of which everything is known: who asks for what, what the upstream
//! says that it used, what fails and who hangs up are functions of the request's
//! number, which travels as its id (`x-7`) from client to upstream and into the
//! usage row. What client and upstream saw is written down, to be compared with
//! the rows.
//!
//! Clients and upstream share a thread, so that one knows when the other has a
//! request.

use std::cell::Cell;
use std::io::{self, Write};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::rc::Rc;

use serde::Deserialize;
use tokio::net::TcpListener;
use tokio::task::{JoinSet, LocalSet, spawn_blocking};

use crate::{Error, local};

mod board;
mod case;
mod client;
mod outcome;
mod upstream;

use board::Board;
use client::{Asking, Gateway, now};

/// What is asked.
#[derive(Debug, Clone, clap::Args)]
pub struct Plan {
    /// How many requests
    #[arg(long, default_value_t = 100_000, value_parser = clap::value_parser!(u32).range(1..=10_000_000))]
    pub requests: u32,
    /// Requests a second, at most
    #[arg(long, default_value_t = 1500, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub rate: u32,
    /// Requests at a time, at most
    #[arg(long, default_value_t = 48, value_parser = clap::value_parser!(u16).range(1..=4096))]
    pub clients: u16,
    /// Where to write what was seen, as CSV
    #[arg(long)]
    pub out: PathBuf,
}

/// What is known only when the upstream listens.
#[derive(Debug, Deserialize)]
struct Start {
    gateways: Vec<SocketAddr>,
    keys: Vec<String>,
}

/// How often it is said how many requests have ended.
const TELL_EVERY: u32 = 500;

/// Says where both upstreams listen; reads gateways and keys, a line of JSON;
/// says now and then how many requests have ended, and `done` in the end.
pub fn run(plan: &Plan) -> Result<(), Error> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    LocalSet::new().block_on(&runtime, whole(plan))
}

async fn whole(plan: &Plan) -> Result<(), Error> {
    let board = Rc::new(Board::new(plan.requests));
    let mut upstreams = JoinSet::new();
    let mut addresses = Vec::new();
    for _ in 0..2 {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        addresses.push(listener.local_addr()?.to_string());
        upstreams.spawn_local(upstream::serve(listener, Rc::clone(&board)));
    }
    say(&addresses.join(" "))?;
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
    let asking = Rc::new(Asking {
        board: Rc::clone(&board),
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
        clients.spawn_local(Rc::clone(&asking).run(tell));
    }
    for client in clients.join_all().await {
        client?;
    }
    let file = std::fs::File::create(&plan.out)?;
    outcome::write(&board.take_outcomes(), io::BufWriter::new(file))?;
    say("done")
}

fn tell(ended: u32) {
    if ended.is_multiple_of(TELL_EVERY) {
        // Whoever does not listen any more ends us otherwise.
        let _said = say(&ended.to_string());
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

fn say(line: &str) -> Result<(), Error> {
    let mut out = io::stdout().lock();
    writeln!(out, "{line}")?;
    out.flush().map_err(Error::from)
}
