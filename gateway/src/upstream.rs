//! Connections to upstreams: addresses, sockets, pools, probes.

mod awaiting_response;
mod buffered_request;
mod connection;
mod connector;
mod dns;
mod permitted;
mod pool;
mod probe;

use std::sync::Arc;

use fastllm_process::upstream_addresses::UpstreamAddresses;

pub(crate) use awaiting_response::AwaitingResponse;
pub(crate) use buffered_request::BufferedRequest;
pub(crate) use connection::RequestWriter;
pub(crate) use connector::Connector;
pub(crate) use dns::Resolver;
pub(crate) use pool::{Lease, Upstreams};
pub(crate) use probe::{ProbeConfig, Prober};

/// Limits of the upstream connection pools.
#[derive(Debug, Clone)]
pub(crate) struct Config {
    /// Idle connections per upstream address, over all threads.
    pub(crate) max_idle: usize,
    /// The addresses that connections may use.
    pub(crate) addresses: Arc<UpstreamAddresses>,
}

impl Config {
    /// The idle connections per address that each of this many threads keeps.
    pub(crate) fn max_idle_per_thread(&self, threads: usize) -> usize {
        self.max_idle.div_ceil(threads.max(1))
    }
}

/// Why a request got no response head. The texts hold no address.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ExchangeError {
    /// No connection could be made.
    #[error("cannot connect: {0}")]
    Connect(String),
    /// The connection broke before the response began.
    #[error("the connection broke before a response: {0}")]
    Broken(String),
    /// The response head timed out.
    #[error("no response in time")]
    Timeout,
    /// The request timed out.
    #[error("the time of the request is over")]
    RequestTimeout,
}
