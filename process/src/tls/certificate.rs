use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use rustls::ServerConfig;
use rustls::crypto::ring::default_provider;
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use tokio::time::{MissedTickBehavior, interval};
use tokio_util::sync::CancellationToken;

use super::{TlsError, read_certificates, read_private_key};
use crate::error::Chain;

/// How often the files are read again.
const RELOAD_INTERVAL: Duration = Duration::from_secs(5);

/// The certificate that a server presents, and the files it comes from. A new
/// one is presented to new connections; open ones stay.
#[derive(Debug)]
pub struct ServerCertificate {
    chain: PathBuf,
    key: PathBuf,
    current: ArcSwap<CertifiedKey>,
}

#[derive(Debug)]
struct Resolver(Arc<ServerCertificate>);

impl ResolvesServerCert for Resolver {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(self.0.current.load_full())
    }
}

impl ServerCertificate {
    /// Reads a certificate chain and its private key (PEM).
    pub fn read(chain: &Path, key: &Path) -> Result<Arc<Self>, TlsError> {
        let current = load(chain, key)?;
        Ok(Arc::new(Self {
            chain: chain.to_owned(),
            key: key.to_owned(),
            current: ArcSwap::from_pointee(current),
        }))
    }

    /// A configuration for the server that offers these protocols (ALPN).
    pub fn server_config(
        self: &Arc<Self>,
        protocols: &[&[u8]],
    ) -> Result<Arc<ServerConfig>, TlsError> {
        let mut config = ServerConfig::builder_with_provider(Arc::new(default_provider()))
            .with_safe_default_protocol_versions()?
            .with_no_client_auth()
            .with_cert_resolver(Arc::new(Resolver(Arc::clone(self))));
        config.alpn_protocols = protocols.iter().map(|&name| name.to_vec()).collect();
        Ok(Arc::new(config))
    }

    /// Presents a new certificate soon after its files have changed, until
    /// `stop`. Files that do not match, as in the middle of a change, have no
    /// effect.
    pub async fn follow(self: Arc<Self>, stop: CancellationToken) {
        let mut tick = interval(RELOAD_INTERVAL);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut failing = false;
        loop {
            tokio::select! {
                _ = tick.tick() => {}
                () = stop.cancelled() => return,
            }
            let this = Arc::clone(&self);
            match tokio::task::spawn_blocking(move || this.reload()).await {
                Ok(Ok(changed)) => {
                    if changed {
                        tracing::info!("server certificate reloaded");
                    }
                    failing = false;
                }
                Ok(Err(error)) if !failing => {
                    failing = true;
                    tracing::warn!(error = %Chain(&error), "cannot reload the server certificate; keeping the current one");
                }
                Ok(Err(_)) | Err(_) => {}
            }
        }
    }

    /// Reads the files again. Returns whether the certificate has changed.
    fn reload(&self) -> Result<bool, TlsError> {
        let read = load(&self.chain, &self.key)?;
        // A new key comes with a new certificate.
        if read.cert == self.current.load().cert {
            return Ok(false);
        }
        self.current.store(Arc::new(read));
        Ok(true)
    }
}

fn load(chain: &Path, key: &Path) -> Result<CertifiedKey, TlsError> {
    let certificates = read_certificates(chain)?;
    let private = read_private_key(key)?;
    CertifiedKey::from_der(certificates, private, &default_provider()).map_err(|source| {
        TlsError::Unusable {
            path: key.to_owned(),
            source,
        }
    })
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::ServerCertificate;

    fn write(folder: &Path, name: &str) -> rcgen::CertifiedKey<rcgen::KeyPair> {
        let made = rcgen::generate_simple_self_signed([name.to_owned()]).unwrap();
        std::fs::write(folder.join("tls.crt"), made.cert.pem()).unwrap();
        std::fs::write(folder.join("tls.key"), made.signing_key.serialize_pem()).unwrap();
        made
    }

    #[test]
    fn a_new_certificate_is_presented_once_its_key_matches() {
        let folder = tempfile::tempdir().unwrap();
        let (chain, key) = (folder.path().join("tls.crt"), folder.path().join("tls.key"));
        let first = write(folder.path(), "one.test");
        let certificate = ServerCertificate::read(&chain, &key).unwrap();
        assert!(!certificate.reload().unwrap());
        let second = write(folder.path(), "two.test");
        std::fs::write(&key, first.signing_key.serialize_pem()).unwrap();
        assert!(certificate.reload().is_err());
        assert_eq!(certificate.current.load().cert[0], *first.cert.der());
        std::fs::write(&key, second.signing_key.serialize_pem()).unwrap();
        assert!(certificate.reload().unwrap());
        assert_eq!(certificate.current.load().cert[0], *second.cert.der());
        std::fs::remove_file(&chain).unwrap();
        let error = certificate.reload().unwrap_err().to_string();
        assert!(error.contains("tls.crt"), "{error}");
    }
}
