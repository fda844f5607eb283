use std::io;
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use rustls::ServerConfig;
use socket2::SockRef;
use tokio::net::{TcpListener, TcpSocket};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::sleep;
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;

use super::connection::{self, Terms};
use super::{STALLED, Service};
use crate::socket;
use crate::tasks::Tasks;
use crate::workers::Workers;

/// Connections that the kernel keeps waiting.
const BACKLOG: u32 = 4_096;

/// Pause after an accept that failed for want of something (descriptors,
/// memory): trying again at once would spin.
const PAUSE: Duration = Duration::from_millis(100);

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

/// What serves the connections of a port: threads, each with its own rooms.
#[derive(Debug, Clone)]
pub(crate) struct Crew {
    pub(crate) workers: Arc<Workers>,
    /// One for each worker.
    pub(crate) services: Arc<[Service]>,
    /// Does the handshakes, where clients speak TLS.
    pub(crate) tls: Option<Arc<ServerConfig>>,
    pub(crate) limits: ConnectionLimits,
}

/// What clients' connections are allowed.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ConnectionLimits {
    /// That many are served at one time, on one port. Further ones wait in the
    /// kernel's queue.
    pub(crate) connections: u32,
    /// How long a client may take for the head of a request, idle time before
    /// it included.
    pub(crate) head: Duration,
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
    pub(crate) async fn run(self, crew: Crew, door: Door) {
        let _emptied = door.emptied.clone().drop_guard();
        let room = usize::try_from(crew.limits.connections).unwrap_or(Semaphore::MAX_PERMITS);
        let room = Arc::new(Semaphore::new(room));
        loop {
            let accepted = tokio::select! {
                accepted = self.accept(&room) => accepted,
                () = door.closed.cancelled() => break,
            };
            match accepted {
                Ok((place, stream)) => crew.serve(place, stream, &door),
                Err(error) if concerns_one_connection(&error) => {}
                Err(error) => {
                    tracing::warn!(%error, "cannot accept connections");
                    sleep(PAUSE).await;
                }
            }
        }
        if let Err(error) = self.empty(&room, &crew, &door) {
            tracing::warn!(%error, "cannot accept the last connections");
        }
    }

    /// Serves what waits in the kernel's queue. The runtime may not know of it
    /// yet, so the kernel itself is asked.
    fn empty(self, room: &Arc<Semaphore>, crew: &Crew, door: &Door) -> io::Result<()> {
        let listener = self.listener.into_std()?;
        for _ in 0..BACKLOG {
            let Ok(place) = Arc::clone(room).try_acquire_owned() else {
                return Ok(());
            };
            match listener.accept() {
                Ok((stream, _)) => crew.serve(place, stream, door),
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
        // It belongs to the thread that will serve it.
        Ok((place, stream.into_std()?))
    }
}

impl Crew {
    /// Hands a connection to the worker that has the fewest.
    fn serve(&self, place: OwnedSemaphorePermit, stream: TcpStream, door: &Door) {
        let Some((number, worker)) = self.workers.idlest() else {
            return;
        };
        let Some(service) = self.services.get(number).cloned() else {
            return;
        };
        let (load, tls) = (worker.begin(), self.tls.clone());
        let counted = service.connected();
        let cut_off = door.cut_off.clone();
        let terms = Terms {
            patience: self.limits.head,
            closing: door.last_request.clone(),
            tasks: door.connections.clone(),
        };
        worker.spawn(&door.connections, async move {
            tokio::select! {
                biased;
                () = serve(stream, tls, service, terms) => {}
                () = cut_off.cancelled() => {}
            }
            drop((place, load, counted));
        });
    }
}

async fn serve(stream: TcpStream, tls: Option<Arc<ServerConfig>>, service: Service, terms: Terms) {
    match prepare(stream) {
        Ok(stream) => {
            let tls = tls.map(TlsAcceptor::from);
            connection::serve(stream, tls, service, terms).await;
        }
        Err(error) => tracing::debug!(%error, "a connection cannot be served"),
    }
}

fn prepare(stream: TcpStream) -> io::Result<tokio::net::TcpStream> {
    stream.set_nonblocking(true)?;
    let stream = tokio::net::TcpStream::from_std(stream)?;
    socket::prepare(&stream)?;
    SockRef::from(&stream).set_tcp_user_timeout(Some(STALLED))?;
    Ok(stream)
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
    use std::time::Duration;

    use socket2::SockRef;
    use tokio::sync::Semaphore;

    use super::{ConnectionLimits, Crew, Door, Listener, STALLED, prepare};
    use crate::record::Ledger;
    use crate::report::queue;
    use crate::serve::{Service, Status};
    use crate::snapshot::Current;
    use crate::telemetry::Metrics;
    use crate::workers::Workers;

    fn crew() -> Crew {
        let metrics = Arc::new(Metrics::new().unwrap());
        let (usage, _) = queue(&metrics);
        let ledger = Ledger::new(Arc::clone(&metrics), usage, Arc::from("boot"));
        let current = Arc::new(Current::new(metrics, fastllm_engine::Tuning::default()));
        let status = Arc::new(Status::new(current, Arc::new(ledger)));
        Crew {
            workers: Arc::new(Workers::start(1).unwrap()),
            services: Arc::from([Service::Status(status)]),
            tls: None,
            limits: ConnectionLimits {
                connections: 10,
                head: Duration::from_secs(75),
            },
        }
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
        let crew = crew();
        listener.run(crew.clone(), door.clone()).await;
        assert!(door.emptied.is_cancelled());
        let mut answer = String::new();
        client.read_to_string(&mut answer).unwrap();
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    }

    /// All that a connection is made of, whatever becomes of it.
    #[tokio::test]
    async fn the_task_of_a_connection_is_small() {
        let (listener, crew, door) = (listener(), crew(), Door::default());
        let stream = std::net::TcpStream::connect(listener.address()).unwrap();
        let service = crew.services[0].clone();
        let terms = super::Terms {
            patience: crew.limits.head,
            closing: door.last_request,
            tasks: door.connections,
        };
        let task = super::serve(stream, None, service, terms);
        let size = size_of_val(&task);
        assert!(size <= 8 << 10, "{size} bytes");
    }

    #[tokio::test]
    async fn a_client_that_vanished_or_stalled_is_noticed() {
        let listener = listener();
        let _client = std::net::TcpStream::connect(listener.address()).unwrap();
        let room = Arc::new(Semaphore::new(1));
        let (_place, stream) = listener.accept(&room).await.unwrap();
        let stream = prepare(stream).unwrap();
        let socket = SockRef::from(&stream);
        assert!(socket.keepalive().unwrap() && stream.nodelay().unwrap());
        assert_eq!(socket.tcp_user_timeout().unwrap(), Some(STALLED));
    }
}
