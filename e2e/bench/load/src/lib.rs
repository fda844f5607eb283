//! What the benchmarks run beside the gateways under test: a load generator
//! and a mock upstream (one thread and one epoll each, so that they outrun any
//! gateway), a relay that only copies bytes, and a control plane that serves
//! snapshots from files.
//!
//! Nothing here is shared with the gateway: an instrument that used the code
//! that it measures would be blind to its mistakes.

use std::net::SocketAddr;

mod answer;
mod clock;
pub mod control;
pub mod exact;
pub mod load;
mod message;
pub mod relay;
mod request;
pub mod upstream;

pub use request::Population;

/// The events of an answer to `bench-burst`, `bench-clump` and `bench-hold` that
/// carry content.
pub const BURST_FRAMES: usize = 200;

/// The same for `bench-paced`.
pub const PACED_FRAMES: usize = 20;

/// Events that end a stream after its content: the finish reason and `[DONE]`.
pub const CLOSING_EVENTS: usize = 2;

/// Bytes of the JSON answer.
pub const JSON_BYTES: usize = 602;

/// Why a tool gives up. A run in which that happens measured nothing.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A socket or a timer failed.
    #[error(transparent)]
    Io(#[from] std::io::Error),
    /// What came is not HTTP/1.1 as it has to be here.
    #[error("not understood: {0}")]
    Malformed(&'static str),
    /// The gateway answered something else than 200.
    #[error("the gateway answered {status}: {text}")]
    Status {
        /// Its status.
        status: u16,
        /// The first bytes that came with it.
        text: String,
    },
    /// The gateway closed a connection.
    #[error("the gateway closed a connection")]
    Closed,
    /// Requests were not answered in time.
    #[error("{0} requests were not answered in time")]
    Stuck(usize),
    /// The benchmarks speak with this machine only.
    #[error("{0} is no loopback address")]
    Elsewhere(SocketAddr),
    /// Certificates cannot be read, or TLS cannot be set up.
    #[error("TLS: {0}")]
    Tls(String),
    /// Latencies cannot be counted.
    #[error("{0}")]
    Histogram(String),
}

impl Error {
    fn tls(error: impl std::fmt::Display) -> Self {
        Self::Tls(error.to_string())
    }
}

/// Refuses every address but those of this machine.
pub fn local(address: SocketAddr) -> Result<SocketAddr, Error> {
    if address.ip().is_loopback() {
        Ok(address)
    } else {
        Err(Error::Elsewhere(address))
    }
}

#[cfg(test)]
mod tests {
    use super::local;

    #[test]
    fn only_this_machine_is_a_target() {
        assert!(local("127.0.0.1:1".parse().unwrap()).is_ok());
        assert!(local("10.0.0.1:1".parse().unwrap()).is_err());
        assert!(local("[2001:db8::1]:1".parse().unwrap()).is_err());
    }
}
