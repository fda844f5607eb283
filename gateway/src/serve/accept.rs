use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use socket2::{SockRef, TcpKeepalive};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use super::{Service, connection};
use crate::tasks::Tasks;

/// Connections that are served at one time, on one port. Further ones wait in
/// the kernel's queue.
const MAX_CONNECTIONS: usize = 16_384;

/// Connections that the kernel keeps waiting.
const BACKLOG: u32 = 4_096;

/// Pause after an accept that failed for want of something (descriptors,
/// memory): trying again at once would spin.
const PAUSE: Duration = Duration::from_millis(100);

/// A silent connection is asked whether anybody is there after this long: a
/// client that vanished without a word must not keep an upstream generating.
const KEEPALIVE: Duration = Duration::from_mins(1);

/// A client that takes nothing of its answer for this long is taken for gone.
const STALLED: Duration = Duration::from_mins(5);

/// A port cannot be listened on.
#[derive(Debug, thiserror::Error)]
#[error("cannot listen on {address}: {source}")]
pub struct ListenError {
    address: SocketAddr,
    source: io::Error,
}

/// An open port.
#[derive(Debug)]
pub(crate) struct Listener {
    listener: TcpListener,
    address: SocketAddr,
}

/// When a port stops to accept, and when its connections shall end.
#[derive(Debug, Clone, Default)]
pub(crate) struct Door {
    /// No new connections.
    pub(crate) closed: CancellationToken,
    /// Every connection that was accepted is among `connections`.
    pub(crate) emptied: CancellationToken,
    /// No new requests on open connections.
    pub(crate) last_request: CancellationToken,
    /// Open connections end as they are.
    pub(crate) cut_off: CancellationToken,
    /// The open connections.
    pub(crate) connections: Tasks,
}

impl Listener {
    pub(crate) fn bind(address: SocketAddr) -> Result<Self, ListenError> {
        let bind = || {
            let socket = if address.is_ipv4() {
                TcpSocket::new_v4()?
            } else {
                TcpSocket::new_v6()?
            };
            socket.set_reuseaddr(true)?;
            socket.bind(address)?;
            let listener = socket.listen(BACKLOG)?;
            let address = listener.local_addr()?;
            Ok(Self { listener, address })
        };
        bind().map_err(|source| ListenError { address, source })
    }

    /// The address with the port that was chosen.
    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Accepts until the door is closed; connections that the kernel had
    /// accepted by then are still served.
    pub(crate) async fn run(self, service: Service, door: Door) {
        let _emptied = door.emptied.clone().drop_guard();
        let room = Arc::new(Semaphore::new(MAX_CONNECTIONS));
        loop {
            let accepted = tokio::select! {
                accepted = self.accept(&room) => accepted,
                () = door.closed.cancelled() => break,
            };
            match accepted {
                Ok((place, stream)) => begin(place, stream, &service, &door),
                Err(error) if concerns_one_connection(&error) => {}
                Err(error) => {
                    tracing::warn!(%error, "cannot accept connections");
                    sleep(PAUSE).await;
                }
            }
        }
        if let Err(error) = self.empty(&room, &service, &door) {
            tracing::warn!(%error, "cannot accept the last connections");
        }
    }

    /// Serves what waits in the kernel's queue. The runtime may not know of it
    /// yet, so the kernel itself is asked.
    fn empty(self, room: &Arc<Semaphore>, service: &Service, door: &Door) -> io::Result<()> {
        let listener = self.listener.into_std()?;
        for _ in 0..BACKLOG {
            let Ok(place) = Arc::clone(room).try_acquire_owned() else {
                return Ok(());
            };
            match listener.accept() {
                Ok((stream, _)) => {
                    stream.set_nonblocking(true)?;
                    begin(place, TcpStream::from_std(stream)?, service, door);
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) if concerns_one_connection(&error) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    async fn accept(&self, room: &Arc<Semaphore>) -> io::Result<(OwnedSemaphorePermit, TcpStream)> {
        let place = Arc::clone(room)
            .acquire_owned()
            .await
            .map_err(io::Error::other)?;
        let (stream, _) = self.listener.accept().await?;
        Ok((place, stream))
    }
}

fn begin(place: OwnedSemaphorePermit, stream: TcpStream, service: &Service, door: &Door) {
    let (service, closing) = (service.clone(), door.last_request.clone());
    let cut_off = door.cut_off.clone();
    let _handle = door.connections.spawn(async move {
        tokio::select! {
            () = serve(stream, service, closing) => {}
            () = cut_off.cancelled() => {}
        }
        drop(place);
    });
}

async fn serve(stream: TcpStream, service: Service, closing: CancellationToken) {
    if prepare(&stream).is_ok() {
        connection::serve(stream, service, closing).await;
    }
}

fn prepare(stream: &TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let socket = SockRef::from(stream);
    let keepalive = TcpKeepalive::new()
        .with_time(KEEPALIVE)
        .with_interval(KEEPALIVE / 4);
    socket.set_tcp_keepalive(&keepalive)?;
    socket.set_tcp_user_timeout(Some(STALLED))
}

/// The client of one connection is gone before it was accepted.
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
    use std::io::{Read, Write};
    use std::net::{Ipv4Addr, SocketAddr};
    use std::sync::Arc;

    use socket2::SockRef;

    use super::{Door, Listener, STALLED, prepare};
    use crate::record::Ledger;
    use crate::report::queue;
    use crate::serve::{Service, Status};
    use crate::snapshot::Current;
    use crate::telemetry::Metrics;

    fn service() -> Service {
        let metrics = Arc::new(Metrics::new().unwrap());
        let (usage, _) = queue(&metrics);
        let ledger = Ledger::new(Arc::clone(&metrics), usage, Arc::from("boot"));
        let current = Arc::new(Current::new(metrics, fastllm_engine::Tuning::default()));
        Service::Status(Arc::new(Status::new(current, Arc::new(ledger))))
    }

    fn listener() -> Listener {
        Listener::bind(SocketAddr::new(Ipv4Addr::LOCALHOST.into(), 0)).unwrap()
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_connection_that_only_the_kernel_knows_is_still_served() {
        let (listener, door) = (listener(), Door::default());
        let mut client = std::net::TcpStream::connect(listener.address()).unwrap();
        client
            .write_all(b"GET /livez HTTP/1.1\r\nhost: g\r\nconnection: close\r\n\r\n")
            .unwrap();
        door.closed.cancel();
        listener.run(service(), door.clone()).await;
        assert!(door.emptied.is_cancelled());
        let mut answer = String::new();
        client.read_to_string(&mut answer).unwrap();
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    }

    #[tokio::test]
    async fn a_client_that_vanished_or_stalled_is_noticed() {
        let listener = listener();
        let _client = std::net::TcpStream::connect(listener.address()).unwrap();
        let (stream, _) = listener.listener.accept().await.unwrap();
        prepare(&stream).unwrap();
        let socket = SockRef::from(&stream);
        assert!(socket.keepalive().unwrap() && stream.nodelay().unwrap());
        assert_eq!(socket.tcp_user_timeout().unwrap(), Some(STALLED));
    }
}
