use std::io;
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use fastllm_process::accept::{self, Accepted, ListenError};
use rustls::ServerConfig;
use socket2::SockRef;
use tokio::sync::OwnedSemaphorePermit;
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

/// An open port.
#[derive(Debug)]
pub(crate) struct Listener(accept::Listener);

/// What serves the connections of a port: threads, each with its own rooms.
#[derive(Debug, Clone)]
pub(crate) struct Crew {
    pub(crate) workers: Arc<Workers>,
    /// One for each worker.
    pub(crate) services: Arc<[Service]>,
    /// Does the handshakes, where clients speak TLS.
    pub(crate) tls: Option<Arc<ServerConfig>>,
    /// How long a client may take for the head of a request, idle time before
    /// it included.
    pub(crate) header_timeout: Duration,
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
    /// Opens a port on which at most `max_connections` are served at one time;
    /// further ones wait in the kernel's queue.
    pub(crate) fn bind(address: SocketAddr, max_connections: u32) -> Result<Self, ListenError> {
        let config = accept::Config {
            backlog: BACKLOG,
            max_connections: usize::try_from(max_connections).unwrap_or(usize::MAX),
            pause: PAUSE,
        };
        accept::Listener::bind(address, config).map(Self)
    }

    /// The address with the port that was chosen.
    pub(crate) fn address(&self) -> SocketAddr {
        self.0.address()
    }

    /// Accepts until the door is closed; connections that the kernel had
    /// accepted by then are still served.
    pub(crate) async fn run(self, crew: Crew, door: Door) {
        let _emptied = door.emptied.clone().drop_guard();
        loop {
            let Accepted { stream, permit, .. } = tokio::select! {
                accepted = self.0.accept() => accepted,
                () = door.closed.cancelled() => break,
            };
            // It belongs to the thread that will serve it.
            match stream.into_std() {
                Ok(stream) => crew.serve(permit, stream, &door),
                Err(error) => tracing::debug!(%error, "a connection cannot be served"),
            }
        }
        let drained = self.0.drain(|Accepted { stream, permit, .. }| {
            crew.serve(permit, stream, &door);
        });
        if let Err(error) = drained {
            tracing::warn!(%error, "cannot accept the last connections");
        }
    }
}

impl Crew {
    /// Hands a connection to the worker that has the fewest.
    fn serve(&self, permit: OwnedSemaphorePermit, stream: TcpStream, door: &Door) {
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
            patience: self.header_timeout,
            closing: door.last_request.clone(),
            tasks: door.connections.clone(),
        };
        worker.spawn(&door.connections, async move {
            tokio::select! {
                biased;
                () = serve(stream, tls, service, terms) => {}
                () = cut_off.cancelled() => {}
            }
            drop((permit, load, counted));
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

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::{Ipv4Addr, SocketAddr};
    use std::sync::Arc;
    use std::time::Duration;

    use socket2::SockRef;

    use super::{Crew, Door, Listener, STALLED, prepare};
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
            header_timeout: Duration::from_secs(75),
        }
    }

    fn listener() -> Listener {
        Listener::bind(SocketAddr::new(Ipv4Addr::LOCALHOST.into(), 0), 10).unwrap()
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
            patience: crew.header_timeout,
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
        let accepted = listener.0.accept().await;
        let stream = prepare(accepted.stream.into_std().unwrap()).unwrap();
        let socket = SockRef::from(&stream);
        assert!(socket.keepalive().unwrap() && stream.nodelay().unwrap());
        assert_eq!(socket.tcp_user_timeout().unwrap(), Some(STALLED));
    }
}
