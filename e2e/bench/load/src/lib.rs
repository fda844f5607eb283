//! Tools that run beside the gateways under test: a load generator and a mock
//! upstream (one thread and one epoll each, so that they are faster than any
//! gateway), a relay that only copies bytes, and a control plane that serves
//! snapshots from files.
//!
//! Nothing here shares code with the gateway, because shared errors would not
//! be detected.

use std::net::SocketAddr;

mod clock;
pub mod control;
pub mod exact;
pub mod load;
mod message;
pub mod relay;
mod request;
mod response;
pub mod upstream;

pub use request::Population;

/// Number of content events in a response of `bench-burst`, `bench-clump` and
/// `bench-hold`.
pub const BURST_FRAMES: usize = 200;

/// The same for `bench-paced`.
pub const PACED_FRAMES: usize = 20;

/// Events that end a stream after its content: the finish reason and `[DONE]`.
pub const CLOSING_EVENTS: usize = 2;

/// Size of the JSON response, in bytes.
pub const JSON_BYTES: usize = 602;

/// Why a tool fails. A failed run has no result.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A socket or a timer failed.
    #[error(transparent)]
    Io(#[from] std::io::Error),
    /// The input is not HTTP/1.1 as expected here.
    #[error("unexpected input: {0}")]
    Malformed(&'static str),
    /// The gateway responded with a status other than 200.
    #[error("the gateway responded with {status}: {text}")]
    Status {
        /// Its status.
        status: u16,
        /// The first bytes of its body.
        text: String,
    },
    /// The gateway closed a connection.
    #[error("the gateway closed a connection")]
    Closed,
    /// Requests did not complete in time.
    #[error("{0} requests did not complete in time")]
    Stuck(usize),
    /// The benchmarks connect only to this machine.
    #[error("{0} is not a loopback address")]
    Elsewhere(SocketAddr),
    /// Certificates cannot be read, or TLS cannot be configured.
    #[error("TLS: {0}")]
    Tls(String),
    /// Latencies cannot be recorded.
    #[error("{0}")]
    Histogram(String),
}

impl Error {
    fn tls(error: impl std::fmt::Display) -> Self {
        Self::Tls(error.to_string())
    }
}

/// Rejects every address that is not a loopback address.
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
    fn only_loopback_addresses_are_accepted() {
        assert!(local("127.0.0.1:1".parse().unwrap()).is_ok());
        assert!(local("10.0.0.1:1".parse().unwrap()).is_err());
        assert!(local("[2001:db8::1]:1".parse().unwrap()).is_err());
    }
}
