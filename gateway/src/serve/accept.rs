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

use super::Service;
use super::connection::ConnectionTerms;
use crate::runtime::Tasks;
use crate::runtime::Workers;
use crate::runtime::socket;
use crate::serve::connection;

/// The length of the kernel's accept queue.
const BACKLOG: u32 = 4_096;

/// The pause after an accept that failed for lack of resources (descriptors,
/// memory): an immediate retry would spin.
const PAUSE: Duration = Duration::from_millis(100);

/// A listening socket.
#[derive(Debug)]
pub(crate) struct Listener(accept::Listener);

/// What serves the connections of a port: workers, each with its own service.
#[derive(Debug, Clone)]
pub(crate) struct WorkerSet {
    pub(crate) workers: Arc<Workers>,
    /// One entry per worker.
    pub(crate) services: Arc<[Service]>,
    /// Performs the TLS handshakes, if the port uses TLS.
    pub(crate) tls: Option<Arc<ServerConfig>>,
    /// The timeout for the head of a request, including the idle time before it.
    pub(crate) header_timeout: Duration,
    /// The timeout for a client to receive a part of its response.
    pub(crate) send_timeout: Duration,
}

/// The steps of shutdown.
#[derive(Debug, Clone, Default)]
pub(crate) struct Shutdown {
    /// Stops accepting connections.
    pub(crate) stop_accepting: CancellationToken,
    /// All accepted connections are counted in `connections`.
    pub(crate) backlog_served: CancellationToken,
    /// Stops accepting requests on open connections.
    pub(crate) last_request: CancellationToken,
    /// Open connections are closed.
    pub(crate) abort: CancellationToken,
    /// The open connections.
    pub(crate) connections: Tasks,
}

impl Listener {
    /// Opens a port that serves at most `max_connections` at a time; further
    /// ones wait in the kernel's queue.
    pub(crate) fn bind(address: SocketAddr, max_connections: u32) -> Result<Self, ListenError> {
        let config = accept::Config {
            backlog: BACKLOG,
            max_connections: usize::try_from(max_connections).unwrap_or(usize::MAX),
            pause: PAUSE,
        };
        accept::Listener::bind(address, config).map(Self)
    }

    /// The bound address, with the actual port.
    pub(crate) fn address(&self) -> SocketAddr {
        self.0.address()
    }

    /// Accepts connections until shutdown; those that the kernel had accepted by
    /// then are still served.
    pub(crate) async fn run(self, worker_set: WorkerSet, shutdown: Shutdown) {
        let _backlog_served = shutdown.backlog_served.clone().drop_guard();
        loop {
            let Accepted { stream, permit, .. } = tokio::select! {
                accepted = self.0.accept() => accepted,
                () = shutdown.stop_accepting.cancelled() => break,
            };
            // The socket is registered with the runtime of its worker.
            match stream.into_std() {
                Ok(stream) => worker_set.serve(permit, stream, &shutdown),
                Err(error) => tracing::debug!(%error, "a connection cannot be served"),
            }
        }
        let drained = self.0.drain(|Accepted { stream, permit, .. }| {
            worker_set.serve(permit, stream, &shutdown);
        });
        if let Err(error) = drained {
            tracing::warn!(%error, "cannot accept pending connections during the shutdown");
        }
    }
}

impl WorkerSet {
    /// Passes a connection to the worker with the fewest connections.
    fn serve(&self, permit: OwnedSemaphorePermit, stream: TcpStream, shutdown: &Shutdown) {
        let Some((number, worker)) = self.workers.least_loaded() else {
            return;
        };
        let Some(service) = self.services.get(number).cloned() else {
            return;
        };
        let (connection_count, tls) = (worker.begin(), self.tls.clone());
        let counted = service.connected();
        let abort = shutdown.abort.clone();
        let terms = ConnectionTerms {
            head_timeout: self.header_timeout,
            send_timeout: self.send_timeout,
            closing: shutdown.last_request.clone(),
            tasks: shutdown.connections.clone(),
        };
        worker.spawn(&shutdown.connections, async move {
            tokio::select! {
                biased;
                () = serve(stream, tls, service, terms) => {}
                () = abort.cancelled() => {}
            }
            drop((permit, connection_count, counted));
        });
    }
}

async fn serve(
    stream: TcpStream,
    tls: Option<Arc<ServerConfig>>,
    service: Service,
    terms: ConnectionTerms,
) {
    match prepare(stream, terms.send_timeout) {
        Ok(stream) => {
            let tls = tls.map(TlsAcceptor::from);
            connection::serve(stream, tls, service, terms).await;
        }
        Err(error) => tracing::debug!(%error, "a connection cannot be served"),
    }
}

fn prepare(stream: TcpStream, send_timeout: Duration) -> io::Result<tokio::net::TcpStream> {
    stream.set_nonblocking(true)?;
    let stream = tokio::net::TcpStream::from_std(stream)?;
    socket::prepare(&stream)?;
    SockRef::from(&stream).set_tcp_user_timeout(Some(send_timeout))?;
    Ok(stream)
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::{Ipv4Addr, SocketAddr};
    use std::sync::Arc;
    use std::time::Duration;

    use socket2::SockRef;

    use super::{Listener, Shutdown, WorkerSet, prepare};
    use crate::runtime::Workers;
    use crate::serve::{Service, Status};
    use crate::snapshot::CurrentSnapshot;
    use crate::telemetry::Metrics;

    const SEND_TIMEOUT: Duration = Duration::from_mins(5);

    fn worker_set() -> WorkerSet {
        let metrics = Arc::new(Metrics::new().unwrap());
        let current = Arc::new(CurrentSnapshot::new(
            Arc::clone(&metrics),
            fastllm_engine::Tuning::default(),
        ));
        let status = Arc::new(Status::new(current, metrics));
        WorkerSet {
            workers: Arc::new(Workers::start(1).unwrap()),
            services: Arc::from([Service::Status(status)]),
            tls: None,
            header_timeout: Duration::from_secs(75),
            send_timeout: SEND_TIMEOUT,
        }
    }

    fn listener() -> Listener {
        Listener::bind(SocketAddr::new(Ipv4Addr::LOCALHOST.into(), 0), 10).unwrap()
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn connections_in_the_kernels_queue_are_still_served() {
        let (listener, shutdown) = (listener(), Shutdown::default());
        let mut client = std::net::TcpStream::connect(listener.address()).unwrap();
        client
            .write_all(b"GET /livez HTTP/1.1\r\nhost: g\r\nconnection: close\r\n\r\n")
            .unwrap();
        shutdown.stop_accepting.cancel();
        let worker_set = worker_set();
        listener.run(worker_set.clone(), shutdown.clone()).await;
        assert!(shutdown.backlog_served.is_cancelled());
        let mut answer = String::new();
        client.read_to_string(&mut answer).unwrap();
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    }

    /// The resources of a connection, which are released together.
    #[tokio::test]
    async fn the_task_of_a_connection_is_small() {
        let (listener, worker_set, shutdown) = (listener(), worker_set(), Shutdown::default());
        let stream = std::net::TcpStream::connect(listener.address()).unwrap();
        let service = worker_set.services[0].clone();
        let terms = super::ConnectionTerms {
            head_timeout: worker_set.header_timeout,
            send_timeout: worker_set.send_timeout,
            closing: shutdown.last_request,
            tasks: shutdown.connections,
        };
        let task = super::serve(stream, None, service, terms);
        let size = size_of_val(&task);
        assert!(size <= 8 << 10, "{size} bytes");
    }

    #[tokio::test]
    async fn vanished_and_stalled_clients_are_detected() {
        let listener = listener();
        let _client = std::net::TcpStream::connect(listener.address()).unwrap();
        let accepted = listener.0.accept().await;
        let stream = prepare(accepted.stream.into_std().unwrap(), SEND_TIMEOUT).unwrap();
        let socket = SockRef::from(&stream);
        assert!(socket.keepalive().unwrap() && stream.nodelay().unwrap());
        assert_eq!(socket.tcp_user_timeout().unwrap(), Some(SEND_TIMEOUT));
    }
}
