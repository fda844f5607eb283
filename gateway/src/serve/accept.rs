use std::future::{Future, poll_fn};
use std::io;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

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
        for _ in 0..BACKLOG {
            let Some(Ok((place, stream))) = now_or_never(self.accept(&room)).await else {
                return;
            };
            begin(place, stream, &service, &door);
        }
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

/// What a future gives without being waited for.
async fn now_or_never<T>(future: impl Future<Output = T>) -> Option<T> {
    let mut future = pin!(future);
    poll_fn(|cx| {
        Poll::Ready(match future.as_mut().poll(cx) {
            Poll::Ready(value) => Some(value),
            Poll::Pending => None,
        })
    })
    .await
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
    if stream.set_nodelay(true).is_ok() {
        connection::serve(stream, service, closing).await;
    }
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
