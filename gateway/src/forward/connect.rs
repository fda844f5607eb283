use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use fastllm_engine::Origin;
use parking_lot::Mutex;
use rustls::pki_types::ServerName;
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::{TlsConnector, TlsStream};

use super::AttemptError;
use crate::clock;
use crate::socket::{self, Socket};

/// Time limit of name look-up, TCP and TLS together.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// How long looked-up addresses are used without asking again.
const ADDRESSES_LIVE: Duration = Duration::from_secs(30);

/// Makes connections. Names are looked up off the reactor and remembered.
#[derive(Clone)]
pub(crate) struct Connector {
    tls: TlsConnector,
    names: Arc<Mutex<HashMap<Origin, Addresses>>>,
}

#[derive(Clone)]
struct Addresses {
    list: Arc<[SocketAddr]>,
    since: Instant,
}

impl std::fmt::Debug for Connector {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Connector").finish_non_exhaustive()
    }
}

impl Connector {
    /// Speaks HTTP/1.1 only.
    pub(crate) fn new(mut tls: rustls::ClientConfig) -> Self {
        tls.alpn_protocols = vec![b"http/1.1".to_vec()];
        Self {
            tls: TlsConnector::from(Arc::new(tls)),
            names: Arc::default(),
        }
    }

    pub(crate) async fn connect(&self, origin: &Origin) -> Result<Socket, AttemptError> {
        match timeout(CONNECT_TIMEOUT, self.try_connect(origin)).await {
            Ok(Ok(stream)) => Ok(stream),
            Ok(Err(error)) => {
                self.names.lock().remove(origin);
                Err(AttemptError::Connect(error.kind().to_string()))
            }
            Err(_) => {
                self.names.lock().remove(origin);
                Err(AttemptError::Connect("no connection in time".to_owned()))
            }
        }
    }

    /// Forgets the addresses of origins that no snapshot names any more.
    pub(crate) fn retain(&self, keep: impl Fn(&Origin) -> bool) {
        self.names.lock().retain(|origin, _| keep(origin));
    }

    async fn try_connect(&self, origin: &Origin) -> io::Result<Socket> {
        let addresses = self.addresses(origin).await?;
        let tcp = first_that_answers(&addresses).await?;
        socket::prepare(&tcp)?;
        if !origin.tls {
            return Ok(Socket::Plain(tcp));
        }
        let name = ServerName::try_from(origin.host.to_string())
            .map_err(|error| io::Error::new(io::ErrorKind::InvalidInput, error))?;
        let tls = self.tls.connect(name, tcp).await?;
        Ok(Socket::Tls(Box::new(TlsStream::Client(tls))))
    }

    async fn addresses(&self, origin: &Origin) -> io::Result<Arc<[SocketAddr]>> {
        if let Ok(address) = origin.host.parse::<IpAddr>() {
            return Ok(Arc::from([SocketAddr::new(address, origin.port)]));
        }
        let known = self.names.lock().get(origin).cloned();
        if let Some(known) = &known
            && clock::now().duration_since(known.since) < ADDRESSES_LIVE
        {
            return Ok(Arc::clone(&known.list));
        }
        let found = tokio::net::lookup_host((&*origin.host, origin.port)).await;
        let list: Arc<[SocketAddr]> = match (found, known) {
            (Ok(found), _) => found.collect(),
            // An old address is better than none while the resolver is away.
            (Err(_), Some(known)) => return Ok(known.list),
            (Err(error), None) => return Err(error),
        };
        let addresses = Addresses {
            list: Arc::clone(&list),
            since: clock::now(),
        };
        self.names.lock().insert(origin.clone(), addresses);
        Ok(list)
    }
}

/// Tries one address after the other, each with its share of the time.
async fn first_that_answers(addresses: &[SocketAddr]) -> io::Result<TcpStream> {
    let mut last = io::Error::from(io::ErrorKind::AddrNotAvailable);
    let share = u32::try_from(addresses.len()).unwrap_or(u32::MAX).max(1);
    for address in addresses {
        match timeout(CONNECT_TIMEOUT / share, TcpStream::connect(address)).await {
            Ok(Ok(stream)) => return Ok(stream),
            Ok(Err(error)) => last = error,
            Err(_) => last = io::Error::from(io::ErrorKind::TimedOut),
        }
    }
    Err(last)
}
