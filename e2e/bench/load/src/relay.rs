//! A relay that copies bytes without parsing them: the minimum cost of reading
//! and writing every byte. With TLS to its target it adds TLS for the load
//! generator, which has none.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;

use rustls::crypto::ring::default_provider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio_rustls::TlsConnector;

use crate::{Error, local};

/// Maximum number of open connections.
const MAX_CONNECTIONS: usize = 16_384;

/// A TLS client that trusts the authorities in a PEM file.
pub fn trusting(authorities: &Path) -> Result<TlsConnector, Error> {
    let mut roots = RootCertStore::empty();
    let read = CertificateDer::pem_file_iter(authorities).map_err(Error::tls)?;
    for certificate in read {
        let certificate = certificate.map_err(Error::tls)?;
        roots.add(certificate).map_err(Error::tls)?;
    }
    let config = ClientConfig::builder_with_provider(Arc::new(default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(Error::tls)?
        .with_root_certificates(roots)
        .with_no_client_auth();
    Ok(TlsConnector::from(Arc::new(config)))
}

/// Connects every client of `listener` to `target`, forever.
pub async fn run(
    listener: TcpListener,
    target: SocketAddr,
    tls: Option<TlsConnector>,
) -> Result<(), Error> {
    let target = local(target)?;
    let mut connections = JoinSet::new();
    loop {
        let (client, _) = listener.accept().await?;
        while connections.try_join_next().is_some() {}
        if connections.len() < MAX_CONNECTIONS {
            connections.spawn(connect(client, target, tls.clone()));
        }
    }
}

/// Either end may disconnect; the other connection is then closed.
async fn connect(mut client: TcpStream, target: SocketAddr, tls: Option<TlsConnector>) {
    let _either_way = async {
        let mut upstream = TcpStream::connect(target).await?;
        client.set_nodelay(true)?;
        upstream.set_nodelay(true)?;
        let Some(tls) = tls else {
            return copy_bidirectional(&mut client, &mut upstream).await;
        };
        let name = ServerName::from(target.ip());
        let mut upstream = tls.connect(name, upstream).await?;
        copy_bidirectional(&mut client, &mut upstream).await
    }
    .await;
}
