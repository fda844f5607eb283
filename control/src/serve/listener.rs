use std::io;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{sleep, timeout};
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tower::ServiceExt;

use crate::Error;
use crate::api::PeerAddress;

/// Open connections at a time. More wait in the kernel's queue.
const MOST_CONNECTIONS: usize = 1024;
const HANDSHAKE_PATIENCE: Duration = Duration::from_secs(10);
const HEADER_PATIENCE: Duration = Duration::from_secs(15);
/// Pause after an accept that failed, so that it does not spin.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// The open admin port.
pub(crate) struct Listener {
    listener: TcpListener,
    tls: Option<TlsAcceptor>,
}

impl Listener {
    pub(crate) async fn bind(address: SocketAddr, tls: Option<TlsAcceptor>) -> Result<Self, Error> {
        let listener = TcpListener::bind(address)
            .await
            .map_err(|source| Error::Listen { address, source })?;
        Ok(Self { listener, tls })
    }

    /// Where it listens: the port that the system chose, where 0 was asked for.
    pub(crate) fn address(&self) -> Option<SocketAddr> {
        self.listener.local_addr().ok()
    }

    /// Serves until `stop`; then lets requests under way finish for `grace`.
    pub(crate) async fn serve(self, router: Router, stop: CancellationToken, grace: Duration) {
        let connections = TaskTracker::new();
        let places = Arc::new(Semaphore::new(MOST_CONNECTIONS));
        let abort = CancellationToken::new();
        while let Some((stream, peer, place)) = self.next(&places, &stop).await {
            let connection = Connection {
                router: router.clone(),
                peer,
                stop: stop.clone(),
                _place: place,
            };
            let tls = self.tls.clone();
            let abort = abort.clone();
            connections.spawn(async move {
                abort.run_until_cancelled(connection.run(stream, tls)).await;
            });
        }
        drop(self.listener);
        connections.close();
        if timeout(grace, connections.wait()).await.is_err() {
            tracing::warn!(connections = connections.len(), "requests are cut off");
            abort.cancel();
            connections.wait().await;
        }
    }

    /// The next connection; nothing once `stop` was called.
    async fn next(
        &self,
        places: &Arc<Semaphore>,
        stop: &CancellationToken,
    ) -> Option<(TcpStream, SocketAddr, OwnedSemaphorePermit)> {
        stop.run_until_cancelled(async {
            loop {
                let place = Arc::clone(places).acquire_owned().await.ok()?;
                match self.listener.accept().await {
                    Ok((stream, peer)) => return Some((stream, peer, place)),
                    Err(error) => {
                        tracing::warn!(%error, "a connection is not accepted");
                        sleep(ACCEPT_PAUSE).await;
                    }
                }
            }
        })
        .await
        .flatten()
    }
}

struct Connection {
    router: Router,
    peer: SocketAddr,
    stop: CancellationToken,
    _place: OwnedSemaphorePermit,
}

impl Connection {
    /// The handshake is here, in the connection's own task: a silent client
    /// holds up nobody else.
    async fn run(self, stream: TcpStream, tls: Option<TlsAcceptor>) {
        let peer = self.peer;
        let outcome = async {
            stream.set_nodelay(true)?;
            match tls {
                Some(tls) => {
                    let stream = timeout(HANDSHAKE_PATIENCE, tls.accept(stream)).await??;
                    self.serve(stream).await
                }
                None => self.serve(stream).await,
            }
        };
        if let Err(error) = outcome.await {
            tracing::debug!(%peer, %error, "a connection ended early");
        }
    }

    async fn serve<S>(self, stream: S) -> io::Result<()>
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let Self {
            router,
            peer,
            stop,
            _place,
        } = self;
        let service = service_fn(move |mut request: hyper::Request<hyper::body::Incoming>| {
            request.extensions_mut().insert(PeerAddress(peer));
            router.clone().oneshot(request)
        });
        let connection = http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(HEADER_PATIENCE)
            .serve_connection(TokioIo::new(stream), service);
        let mut connection = pin!(connection);
        let outcome = tokio::select! {
            outcome = connection.as_mut() => outcome,
            () = stop.cancelled() => {
                connection.as_mut().graceful_shutdown();
                connection.await
            }
        };
        outcome.map_err(io::Error::other)
    }
}
