//! The admin listener: routes put together, TLS, connections, probes.

mod listener;
mod probes;
mod router;
mod tls;

use std::fmt;
use std::net::SocketAddr;

pub(crate) use listener::Listener;
pub(crate) use router::{in_time, router};
pub(crate) use tls::acceptor;

/// Where a request came from; in the request's extensions.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PeerAddress(pub(crate) SocketAddr);

impl fmt::Display for PeerAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.ip().to_canonical().fmt(f)
    }
}
