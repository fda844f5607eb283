//! Listening for TCP connections and accepting them.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::sleep;

/// An address cannot be listened on.
#[derive(Debug, thiserror::Error)]
#[error("cannot listen on {address}")]
pub struct ListenError {
    /// The address.
    pub address: SocketAddr,
    /// The system's error.
    pub source: io::Error,
}

/// How an open port accepts connections.
#[derive(Debug, Clone, Copy)]
pub struct Config {
    /// Length of the kernel's queue of connections that are not accepted yet.
    pub backlog: u32,
    /// Maximum number of open connections. Further ones wait in the kernel's
    /// queue.
    pub max_connections: usize,
    /// Pause after an accept that failed for lack of a resource (descriptors,
    /// memory).
    pub pause: Duration,
}

/// An open port.
#[derive(Debug)]
pub struct Listener {
    socket: TcpListener,
    address: SocketAddr,
    slots: Arc<Semaphore>,
    config: Config,
}

/// An accepted connection.
#[derive(Debug)]
pub struct Accepted<S> {
    /// The connection.
    pub stream: S,
    /// Address of the client.
    pub peer: SocketAddr,
    /// One of [`Config::max_connections`]; to be held while the connection is open.
    pub permit: OwnedSemaphorePermit,
}

/// Opens a port. Port 0 means one that the system chooses. Needs a tokio runtime.
pub fn bind(address: SocketAddr, backlog: u32) -> Result<TcpListener, ListenError> {
    let open = || {
        let socket = if address.is_ipv4() {
            TcpSocket::new_v4()?
        } else {
            TcpSocket::new_v6()?
        };
        socket.set_reuseaddr(true)?;
        socket.bind(address)?;
        socket.listen(backlog)
    };
    open().map_err(|source| ListenError { address, source })
}

impl Listener {
    /// Opens a port. Needs a tokio runtime.
    pub fn bind(address: SocketAddr, config: Config) -> Result<Self, ListenError> {
        let socket = bind(address, config.backlog)?;
        let address = socket
            .local_addr()
            .map_err(|source| ListenError { address, source })?;
        let slots = config.max_connections.min(Semaphore::MAX_PERMITS);
        Ok(Self {
            socket,
            address,
            slots: Arc::new(Semaphore::new(slots)),
            config,
        })
    }

    /// The address, with the port that the system chose.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Waits for a free slot and the next connection. Can be cancelled without
    /// losing a connection. Failures are logged and tried again.
    pub async fn accept(&self) -> Accepted<TcpStream> {
        loop {
            let accepted = async {
                let slots = Arc::clone(&self.slots);
                let permit = slots.acquire_owned().await.map_err(io::Error::other)?;
                let (stream, peer) = self.socket.accept().await?;
                Ok(Accepted {
                    stream,
                    peer,
                    permit,
                })
            };
            match accepted.await {
                Ok(accepted) => return accepted,
                Err(error) if concerns_one_connection(&error) => {}
                Err(error) => {
                    tracing::warn!(%error, "cannot accept connections");
                    sleep(self.config.pause).await;
                }
            }
        }
    }

    /// Closes the port after passing to `serve` every connection that the
    /// kernel has established, as far as there are free slots. The runtime may
    /// not have noticed these connections yet, so this calls the kernel.
    pub fn drain(self, mut serve: impl FnMut(Accepted<std::net::TcpStream>)) -> io::Result<()> {
        let socket = self.socket.into_std()?;
        for _ in 0..self.config.backlog {
            let Ok(permit) = Arc::clone(&self.slots).try_acquire_owned() else {
                return Ok(());
            };
            match socket.accept() {
                Ok((stream, peer)) => serve(Accepted {
                    stream,
                    peer,
                    permit,
                }),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) if concerns_one_connection(&error) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

/// Whether the client disconnected before its connection was accepted.
fn concerns_one_connection(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::ConnectionAborted
            | io::ErrorKind::ConnectionReset
            | io::ErrorKind::ConnectionRefused
            | io::ErrorKind::Interrupted
    )
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, SocketAddr, TcpStream};
    use std::time::Duration;

    use super::{Config, Listener};
    use crate::error::Chain;

    fn listener(max_connections: usize) -> Listener {
        let config = Config {
            backlog: 16,
            max_connections,
            pause: Duration::from_millis(1),
        };
        Listener::bind(SocketAddr::new(Ipv4Addr::LOCALHOST.into(), 0), config).unwrap()
    }

    #[tokio::test]
    async fn no_more_connections_than_slots_are_accepted() {
        let listener = listener(1);
        let clients = [(); 2].map(|()| TcpStream::connect(listener.address()).unwrap());
        let first = listener.accept().await;
        assert_eq!(first.peer, clients[0].local_addr().unwrap());
        let second = tokio::time::timeout(Duration::from_millis(20), listener.accept());
        assert!(second.await.is_err());
        drop(first);
        let second = listener.accept().await;
        assert_eq!(second.peer, clients[1].local_addr().unwrap());
    }

    #[tokio::test]
    async fn established_connections_are_drained_as_far_as_slots_are_free() {
        let listener = listener(2);
        let _clients = [(); 3].map(|()| TcpStream::connect(listener.address()).unwrap());
        let mut drained = Vec::new();
        listener.drain(|accepted| drained.push(accepted)).unwrap();
        assert_eq!(drained.len(), 2);
    }

    #[tokio::test]
    async fn a_taken_port_is_reported_once() {
        let listener = listener(1);
        let error = super::bind(listener.address(), 1).unwrap_err();
        let text = Chain(&error).to_string();
        assert!(text.starts_with(&format!("cannot listen on {}: ", listener.address())));
        assert_eq!(text.matches("in use").count(), 1, "{text}");
    }
}
