//! Detects the protocol of a client's connection.

use std::future::poll_fn;
use std::task::{Poll, ready};
use std::time::Duration;

use tokio::net::TcpStream;
use tokio::time::{sleep, timeout};
use tokio_rustls::{TlsAcceptor, TlsStream};
use tokio_util::sync::CancellationToken;

use super::{Service, http1, http2};
use crate::runtime::Deadline;
use crate::runtime::Socket;
use crate::runtime::Tasks;
use crate::runtime::buffers;

/// The connection preface of HTTP/2, with or without negotiation in TLS.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// The timeout of a TLS handshake.
const HANDSHAKE: Duration = Duration::from_secs(10);

/// How long a TLS handshake or a request head that has begun may take once the
/// gateway shuts down.
pub(super) const LAST_HEAD: Duration = Duration::from_secs(1);

/// The settings that a connection is served with.
#[derive(Debug, Clone)]
pub(super) struct ConnectionTerms {
    /// The timeout for each head, and for a connection without a request.
    pub(super) head_timeout: Duration,
    /// The timeout for a client to receive a part of its response.
    pub(super) send_timeout: Duration,
    /// When it is cancelled, the running requests are the last ones.
    pub(super) closing: CancellationToken,
    /// Tracks the other tasks of the connection.
    pub(super) tasks: Tasks,
}

/// Serves one client's connection to its end, with TLS if `tls` is set.
pub(super) async fn serve(
    stream: TcpStream,
    tls: Option<TlsAcceptor>,
    service: Service,
    terms: ConnectionTerms,
) {
    let mut socket = match tls {
        None => Socket::Plain(stream),
        Some(tls) => match handshake(tls, stream, &terms.closing).await {
            Some(socket) => socket,
            None => return,
        },
    };
    let Some((inbox, speaks_http2)) = beginning(&mut socket, &terms).await else {
        return;
    };
    if speaks_http2 {
        // Boxed, since it is large and most connections use HTTP/1.1.
        Box::pin(http2::serve(socket, inbox, service, terms)).await;
    } else {
        let connection = http1::ClientConnection::new(socket, inbox, &terms);
        http1::serve(connection, &service, &terms.closing).await;
    }
}

async fn handshake(
    tls: TlsAcceptor,
    stream: TcpStream,
    closing: &CancellationToken,
) -> Option<Socket> {
    let late = async {
        closing.cancelled().await;
        sleep(LAST_HEAD).await;
    };
    let accepted = tokio::select! {
        biased;
        accepted = timeout(HANDSHAKE, Box::pin(tls.accept(stream))) => accepted.ok()?,
        () = late => return None,
    };
    match accepted {
        Ok(stream) => Some(Socket::Tls(Box::new(TlsStream::Server(stream)))),
        Err(error) => {
            tracing::debug!(%error, "a client's handshake failed");
            None
        }
    }
}

/// Reads until the protocol is known.
async fn beginning(socket: &mut Socket, terms: &ConnectionTerms) -> Option<(Vec<u8>, bool)> {
    let mut inbox = Vec::new();
    let known = poll_fn(|cx| {
        loop {
            let length = inbox.len().min(PREFACE.len());
            if length > 0 && inbox.get(..length) != PREFACE.get(..length) {
                return Poll::Ready(Some(false));
            }
            if length == PREFACE.len() {
                return Poll::Ready(Some(true));
            }
            let read = buffers::with_read_buffer(|buffer| {
                let read = ready!(socket.poll_read_some(cx, buffer)).unwrap_or(0);
                inbox.extend_from_slice(buffer.get(..read).unwrap_or_default());
                Poll::Ready(read)
            });
            if ready!(read) == 0 {
                return Poll::Ready(None);
            }
        }
    });
    let mut deadline = Deadline::default();
    deadline.arm(terms.head_timeout);
    let speaks_http2 = tokio::select! {
        biased;
        known = deadline.before(known) => known??,
        () = terms.closing.cancelled() => return None,
    };
    Some((inbox, speaks_http2))
}
