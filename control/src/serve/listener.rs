use std::io;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use fastllm_process::accept::{self, Accepted};
use fastllm_process::tls::ServerCertificate;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use ipnet::IpNet;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tower::ServiceExt;

use super::client_address::client_address;
use crate::Error;
use crate::api::ClientAddress;

const ACCEPT: accept::Config = accept::Config {
    backlog: 1024,
    max_connections: 1024,
    pause: Duration::from_millis(50),
};
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
const HEADER_TIMEOUT: Duration = Duration::from_secs(15);

/// The listener of the admin API.
pub(crate) struct Listener {
    socket: accept::Listener,
    tls: Option<TlsAcceptor>,
    trusted_proxies: Arc<[IpNet]>,
}

impl Listener {
    /// Opens the listener, with TLS if there is a certificate. `trusted_proxies` are the
    /// ranges whose `X-Forwarded-For` counts. Requires a Tokio runtime.
    pub(crate) fn bind(
        address: SocketAddr,
        certificate: Option<&Arc<ServerCertificate>>,
        trusted_proxies: &[IpNet],
    ) -> Result<Self, Error> {
        let config = certificate.map(|certificate| certificate.server_config(&[b"http/1.1"]));
        Ok(Self {
            socket: accept::Listener::bind(address, ACCEPT)?,
            tls: config.transpose()?.map(TlsAcceptor::from),
            trusted_proxies: trusted_proxies.into(),
        })
    }

    /// The listen address, with the actual port.
    pub(crate) fn address(&self) -> SocketAddr {
        self.socket.address()
    }

    /// Serves until `stop`, then waits up to `grace` for running requests.
    pub(crate) async fn serve(self, router: Router, stop: CancellationToken, grace: Duration) {
        let connections = TaskTracker::new();
        let abort = CancellationToken::new();
        while let Some(accepted) = stop.run_until_cancelled(self.socket.accept()).await {
            let Accepted {
                stream,
                peer,
                permit,
            } = accepted;
            let connection = Connection {
                router: router.clone(),
                peer,
                trusted_proxies: Arc::clone(&self.trusted_proxies),
                stop: stop.clone(),
                _permit: permit,
            };
            let tls = self.tls.clone();
            let abort = abort.clone();
            connections.spawn(async move {
                abort.run_until_cancelled(connection.run(stream, tls)).await;
            });
        }
        drop(self.socket);
        connections.close();
        if timeout(grace, connections.wait()).await.is_err() {
            tracing::warn!(
                connections = connections.len(),
                "aborting requests that are still running"
            );
            abort.cancel();
            connections.wait().await;
        }
    }
}

struct Connection {
    router: Router,
    peer: SocketAddr,
    trusted_proxies: Arc<[IpNet]>,
    stop: CancellationToken,
    _permit: OwnedSemaphorePermit,
}

impl Connection {
    /// The TLS handshake runs in the task of the connection, so that a silent client
    /// does not delay others.
    async fn run(self, stream: TcpStream, tls: Option<TlsAcceptor>) {
        let peer = self.peer;
        let outcome = async {
            stream.set_nodelay(true)?;
            match tls {
                Some(tls) => {
                    let stream = timeout(HANDSHAKE_TIMEOUT, tls.accept(stream)).await??;
                    self.serve(stream).await
                }
                None => self.serve(stream).await,
            }
        };
        if let Err(error) = outcome.await {
            tracing::debug!(%peer, %error, "connection failed");
        }
    }

    async fn serve<S>(self, stream: S) -> io::Result<()>
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let Self {
            router,
            peer,
            trusted_proxies,
            stop,
            _permit,
        } = self;
        let service = service_fn(move |mut request: hyper::Request<hyper::body::Incoming>| {
            let client = client_address(peer.ip(), request.headers(), &trusted_proxies);
            request.extensions_mut().insert(ClientAddress(client));
            router.clone().oneshot(request)
        });
        let connection = http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(HEADER_TIMEOUT)
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
