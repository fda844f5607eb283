use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use fastllm_engine::Origin;
use fastllm_process::upstream_addresses::UpstreamAddresses;
use rustls::pki_types::ServerName;
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::{TlsConnector, TlsStream};

use super::ExchangeError;
use super::dns::DnsCache;
use super::permitted::{NotPermitted, check};
use crate::runtime::{Socket, socket};

/// The timeout of DNS, TCP and TLS together.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// The number of addresses beyond which the time per address is not reduced: a
/// distant address would be abandoned before it could respond.
const MAX_SHARES: u32 = 8;

/// Opens connections.
#[derive(Clone)]
pub(crate) struct Connector {
    tls: TlsConnector,
    names: Arc<DnsCache>,
    addresses: Arc<UpstreamAddresses>,
}

impl std::fmt::Debug for Connector {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Connector").finish_non_exhaustive()
    }
}

impl Connector {
    /// Uses HTTP/1.1 only, and connects only to these addresses.
    pub(crate) fn new(mut tls: rustls::ClientConfig, addresses: Arc<UpstreamAddresses>) -> Self {
        tls.alpn_protocols = vec![b"http/1.1".to_vec()];
        Self {
            tls: TlsConnector::from(Arc::new(tls)),
            names: Arc::default(),
            addresses,
        }
    }

    /// The DNS names that it resolves.
    pub(crate) fn names(&self) -> Arc<DnsCache> {
        Arc::clone(&self.names)
    }

    pub(crate) async fn connect(&self, origin: &Origin) -> Result<Socket, ExchangeError> {
        let reason = match timeout(CONNECT_TIMEOUT, self.try_connect(origin)).await {
            Ok(Ok(stream)) => return Ok(stream),
            Ok(Err(error)) => match error.downcast::<NotPermitted>() {
                Ok(refused) => refused.to_string(),
                Err(error) => error.kind().to_string(),
            },
            Err(_) => "the connection attempt timed out".to_owned(),
        };
        Err(ExchangeError::Connect(reason))
    }

    async fn try_connect(&self, origin: &Origin) -> io::Result<Socket> {
        let tcp = self.tcp(origin).await?;
        socket::prepare(&tcp)?;
        if !origin.tls {
            return Ok(Socket::Plain(tcp));
        }
        let name = ServerName::try_from(origin.host.to_string())
            .map_err(|error| io::Error::new(io::ErrorKind::InvalidInput, error))?;
        let tls = self.tls.connect(name, tcp).await?;
        Ok(Socket::Tls(Box::new(TlsStream::Client(tls))))
    }

    fn check(&self, address: IpAddr) -> io::Result<()> {
        check(&self.addresses, address)
            .map_err(|error| io::Error::new(io::ErrorKind::PermissionDenied, error))
    }

    async fn tcp(&self, origin: &Origin) -> io::Result<TcpStream> {
        if let Ok(address) = origin.host.parse::<IpAddr>() {
            self.check(address)?;
            return TcpStream::connect(SocketAddr::new(address, origin.port)).await;
        }
        let addresses = self.names.addresses(&origin.host).await?;
        let timeout_per_address = timeout_per_address(addresses.len());
        let mut last = io::Error::from(io::ErrorKind::AddrNotAvailable);
        for address in addresses {
            if let Err(error) = self.check(address) {
                last = error;
                continue;
            }
            let address = SocketAddr::new(address, origin.port);
            match timeout(timeout_per_address, TcpStream::connect(address)).await {
                Ok(Ok(stream)) => return Ok(stream),
                Ok(Err(error)) => last = error,
                Err(_) => last = io::ErrorKind::TimedOut.into(),
            }
            // The name may have other addresses now.
            self.names.request_lookup(&origin.host);
        }
        Err(last)
    }
}

/// The timeout for each of this many addresses. The caller limits the total
/// time.
fn timeout_per_address(addresses: usize) -> Duration {
    let shares = u32::try_from(addresses).unwrap_or(u32::MAX);
    CONNECT_TIMEOUT / shares.clamp(1, MAX_SHARES)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::{CONNECT_TIMEOUT, timeout_per_address};

    #[test]
    fn each_address_has_a_minimum_timeout() {
        assert_eq!(timeout_per_address(1), CONNECT_TIMEOUT);
        assert_eq!(timeout_per_address(2), CONNECT_TIMEOUT / 2);
        for many in [0, 8, 100, usize::MAX] {
            assert!(
                timeout_per_address(many) >= Duration::from_millis(500),
                "{many}"
            );
        }
    }
}
